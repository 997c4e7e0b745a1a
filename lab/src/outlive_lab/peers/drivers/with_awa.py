"""awa: a Rust core that calls Python functions. It is executed by path.

awa has no command that runs a worker: the app starts one. `python with_awa.py WORKERS` does that.
"""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass

import awa
import shared


@dataclass
class Noop:
    url: str
    number: int


@dataclass
class Waiting:
    number: int


class Queue:
    async def install(self):
        self._client = awa.AsyncClient(shared.POSTGRES)
        await self._client.migrate()
        self._copy = self._client.insert_many_copy
        if os.environ.get("PEER_COPY"):
            await self._client.install_queue_storage()
            self._copy = self._client.enqueue_many_copy

    async def one(self, number):
        await self._client.insert(Noop(shared.URL, number), queue="bench")

    async def bulk(self, numbers):
        await self._copy([Noop(shared.URL, number) for number in numbers], queue="bench")

    async def waiting(self, numbers):
        await self._copy([Waiting(number) for number in numbers], queue="bench")

    async def left(self):
        if os.environ.get("PEER_COPY"):  # Counting takes seconds with queue storage, so these ends are not awaited.
            return 0
        stats = [one for one in await self._client.queue_stats() if one.queue == "bench"]
        return sum(one.total_queued + one.running for one in stats)


async def work(workers):
    client = awa.AsyncClient(shared.POSTGRES)

    @client.task(Noop, queue="bench")
    async def noop(job):
        shared.begin(job.args.number)

    @client.task(Waiting, queue="bench")
    async def waiting(job):
        await shared.wait()

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await client.start([("bench", workers)])
    await stop.wait()
    await client.shutdown()


if __name__ == "__main__":
    asyncio.run(work(int(sys.argv[1])))
