"""Dramatiq, on Redis. It is executed by path."""

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

import driving

queues = RedisBroker(url=driving.REDIS)
dramatiq.set_broker(queues)


@dramatiq.actor(actor_name="noop")
def noop(url, number):
    driving.begin(number)


class Queue:
    def install(self):
        redis.Redis.from_url(driving.REDIS).flushall()

    def one(self, number):
        noop.send(driving.URL, number)

    def bulk(self, numbers):
        """Dramatiq has no call that sends many jobs."""
        for number in numbers:
            noop.send(driving.URL, number)

    def left(self):
        return queues.do_qsize("default")
