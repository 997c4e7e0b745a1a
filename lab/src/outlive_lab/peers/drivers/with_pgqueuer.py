"""PgQueuer. It is executed by path."""

import json
import os
from contextlib import asynccontextmanager

import asyncpg
import shared
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries


@asynccontextmanager
async def main():
    """What `pgq run with_pgqueuer:main` runs."""
    if pool := int(os.environ.get("PEER_POOL", "0")):
        driver = AsyncpgPoolDriver(await asyncpg.create_pool(shared.POSTGRES, min_size=pool, max_size=pool))
    else:
        driver = AsyncpgDriver(await asyncpg.connect(shared.POSTGRES))
    worker = PgQueuer(driver)

    @worker.entrypoint("noop")
    async def noop(job):
        shared.begin(json.loads(job.payload)["number"])

    @worker.entrypoint("waiting")
    async def waiting(job):
        await shared.wait()

    yield worker


class Queue:
    async def install(self):
        self._connection = await asyncpg.connect(shared.POSTGRES)
        self._queries = Queries(AsyncpgDriver(self._connection))
        await self._queries.install()
        if os.environ.get("PEER_AUTOVACUUM"):
            await self._queries.optimize_autovacuum()

    async def one(self, number):
        await self._queries.enqueue("noop", _payload(number))

    async def bulk(self, numbers, entrypoint="noop"):
        await self._queries.enqueue([entrypoint] * len(numbers), [_payload(n) for n in numbers], [0] * len(numbers))

    async def waiting(self, numbers):
        await self.bulk(numbers, "waiting")

    async def left(self):
        return await self._connection.fetchval("select exists (select from pgqueuer)")


def _payload(number):
    return json.dumps({"url": shared.URL, "number": number}).encode()
