"""What the jobs and the clients of every system share. A worker imports only this, and no more than a job needs.

Most jobs are no-ops. Each has a number; those whose number is a multiple of PEER_MARK send a datagram when they begin.
Others wait for two seconds, and write down when they began and ended.
"""

import asyncio
import os
import socket
import time

POSTGRES = os.environ.get("PEER_POSTGRES", "")
REDIS = os.environ.get("PEER_REDIS", "")
MARK = int(os.environ.get("PEER_MARK", "1000"))
SOCKET = os.environ.get("PEER_SOCKET", "")

TIMES = SOCKET + ".times"
WAIT_S = 2.0
URL = "https://example.org/page"


class RedisQueue:
    """A queue on Redis. Most have no call that sends many jobs."""

    def install(self):
        import redis  # Not all systems have it.

        self.redis = redis.Redis.from_url(REDIS)
        self.redis.flushall()

    def bulk(self, numbers):
        for number in numbers:
            self.one(number)


def begin(number):
    """What each job does: nothing, except that some jobs say when they begin."""
    if number % MARK == 0:
        now = time.monotonic()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(f"{number} {now}".encode(), SOCKET)


async def wait():
    """What a job that waits does."""
    _note("began")
    await asyncio.sleep(WAIT_S)
    _note("ended")


def _note(words):
    global _times
    if _times is None:
        _times = os.open(TIMES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_times, f"{words} {time.monotonic()}\n".encode())


_times = None
