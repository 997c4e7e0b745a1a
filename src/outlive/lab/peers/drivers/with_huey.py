"""Huey, on Redis. It is executed by path."""

import redis
from huey import RedisHuey

import driving

huey = RedisHuey("bench", url=driving.REDIS, results=False)


@huey.task()
def noop(url, number):
    driving.begin(number)


class Queue:
    def install(self):
        redis.Redis.from_url(driving.REDIS).flushall()

    def one(self, number):
        noop(driving.URL, number)

    def bulk(self, numbers):
        """Huey has no call that sends many jobs."""
        for number in numbers:
            noop(driving.URL, number)

    def left(self):
        return huey.pending_count()
