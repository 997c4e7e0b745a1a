"""Dramatiq, on Redis. It is executed by path."""

import dramatiq
import shared
from dramatiq.brokers.redis import RedisBroker

queues = RedisBroker(url=shared.REDIS)
dramatiq.set_broker(queues)


@dramatiq.actor(actor_name="noop")
def noop(url, number):
    shared.begin(number)


class Queue(shared.RedisQueue):
    def one(self, number):
        noop.send(shared.URL, number)

    def left(self):
        return queues.do_qsize("default")
