"""Huey, on Redis. It is executed by path."""

import shared
from huey import RedisHuey

huey = RedisHuey("bench", url=shared.REDIS, results=False)


@huey.task()
def noop(url, number):
    shared.begin(number)


class Queue(shared.RedisQueue):
    def one(self, number):
        noop(shared.URL, number)

    def left(self):
        return huey.pending_count()
