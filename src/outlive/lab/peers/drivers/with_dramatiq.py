"""Dramatiq, on Redis. It is executed by path."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import driving

queues = RedisBroker(url=driving.REDIS)
dramatiq.set_broker(queues)


@dramatiq.actor(actor_name="noop")
def noop(url, number):
    driving.begin(number)


class Queue(driving.RedisQueue):
    def one(self, number):
        noop.send(driving.URL, number)

    def left(self):
        return queues.do_qsize("default")
