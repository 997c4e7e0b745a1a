"""Huey, on Redis. It is executed by path."""

from huey import RedisHuey

import driving

huey = RedisHuey("bench", url=driving.REDIS, results=False)


@huey.task()
def noop(url, number):
    driving.begin(number)


class Queue(driving.RedisQueue):
    def one(self, number):
        noop(driving.URL, number)

    def left(self):
        return huey.pending_count()
