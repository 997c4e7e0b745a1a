"""Virtual clients: they enqueue, lose the answer, and ask again; or their transaction fails."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg

from outlive import db, store
from outlive.model import JobRequest, new_job_id
from outlive_lab.deaths.fleet import GONE, RETRY_S, Fleet, hang_up, post
from outlive_lab.deaths.history import Ask
from outlive_lab.deaths.plan import Kind, Order, Trouble

AHEAD = 250
"""How many jobs are unfinished, so that workers find some."""
KEYS = 12
MOST_BYTES = 1_000_000


class Client:
    def __init__(self, fleet: Fleet, orders: Iterator[Order]) -> None:
        self._fleet, self._orders = fleet, orders
        self._connection: db.AsyncConnection | None = None

    async def run(self) -> None:
        while not self._fleet.draining:
            if self._fleet.unfinished >= AHEAD:
                await asyncio.sleep(RETRY_S)
                continue
            order = next(self._orders)
            self._fleet.history.seen[f"client: {order.trouble}"] += 1
            self._fleet.unfinished += len(order.kinds)  # Until they are counted again.
            await self.place(order)
        await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def place(self, order: Order) -> None:
        rng = random.Random(order.seed)
        requests = list(_requests(order, rng))
        batch = (uuid4(), new_job_id()) if order.shape == "batch" else None
        if batch is not None:
            requests = [msgspec.structs.replace(one, links=_json(batch=str(batch[0]))) for one in requests]
        undone = order.trouble in (Trouble.ROLLED_BACK, Trouble.REFUSED)
        self._note(requests, must=False if undone else None)
        if undone:
            await self._undone(requests, batch, order.trouble)
            return
        if order.trouble is not Trouble.NONE:
            await self._unanswered(requests, batch, shot=order.trouble is Trouble.SHOT)
            if order.shape == "deduped":
                await self._ask_again(requests[0])
                return
        await self._surely(self._statements(requests, batch))
        self._note(requests, must=True)
        if batch is not None:
            self._fleet.history.batches[batch[0]] = batch[1]
            self._fleet.history.asks[batch[1]] = Ask(Kind.PLAIN, must=True)

    def _note(self, requests: list[JobRequest], *, must: bool | None) -> None:
        for one in requests:
            self._fleet.history.asks[one.id] = Ask(Kind(one.task), must)

    async def _ask_again(self, first: JobRequest) -> None:
        """Ask with the dedupe key of a job, whose answer was lost, for another one."""
        asks, second = self._fleet.history.asks, msgspec.structs.replace(first, id=new_job_id())
        asks[second.id] = Ask(Kind(second.task), None, instead_of=first.id)
        [not_made] = await self._surely(self._statements([second], None))
        asks[second.id].must, asks[second.id].answered_s = second.id not in not_made, time.time()
        if second.id in not_made:
            asks[first.id].must = not_made[second.id] == first.id

    def _statements(self, requests: list[JobRequest], batch: tuple[UUID, UUID] | None) -> list[db.Statement[Any]]:
        enqueue: db.Statement[Any] = store.enqueue(requests, max_args_bytes=MOST_BYTES)
        if batch is None:
            return [enqueue]
        called = JobRequest(batch[1], Kind.PLAIN, b"{}")
        return [store.open_batch(batch[0], "deaths", on_done=called), enqueue, store.close_batch(batch[0])]

    async def _connect(self) -> db.AsyncConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._fleet.connect(db.HASTY)
        return self._connection

    async def _surely(self, statements: list[db.Statement[Any]]) -> list[Any]:
        """As a client of outlive does: the same once more, until there is an answer."""
        while True:
            try:
                return await db.arun_all(await self._connect(), statements)
            except GONE as error:
                if self._connection is not None and db.lost(error):
                    await self._connection.close()
                await asyncio.sleep(RETRY_S)

    async def _unanswered(self, requests: list[JobRequest], batch: tuple[UUID, UUID] | None, *, shot: bool) -> None:
        statements = self._statements(requests, batch)
        connection = await self._connect()
        try:
            if batch is not None:
                await connection.execute("begin")
                for one in statements:
                    await db.arun(connection, one)
            post(connection, statements[0] if batch is None else b"commit")
            if shot:
                await self._fleet.terminate(connection)
            await self._fleet.cut(connection)
        except GONE:
            await hang_up(connection)

    async def _undone(self, requests: list[JobRequest], batch: tuple[UUID, UUID] | None, trouble: Trouble) -> None:
        connection = await self._connect()
        try:
            await connection.execute("begin")
            for one in self._statements(requests, batch):
                await db.arun(connection, one)
            if trouble is Trouble.REFUSED:  # The constraint is checked at the commit.
                await connection.execute("insert into outlive_deaths.refused values (1)")
            await connection.execute("commit" if trouble is Trouble.REFUSED else "rollback")
        except psycopg.Error:
            await connection.close()


def _requests(order: Order, rng: random.Random) -> Iterator[JobRequest]:
    before: UUID | None = None
    for kind in order.kinds:
        links: dict[str, object] = {}
        if order.shape == "chain" and before is not None:
            links = {"after": [str(before)], "on_failure": "proceed"}
        if kind is Kind.KEYED and order.shape == "apart":
            number = rng.randrange(KEYS)
            links = {"key": f"key {number}", "concurrency": 1 + number % 2}
        key = str(uuid4()) if order.shape == "deduped" else None
        before = new_job_id()
        yield JobRequest(before, kind, b"{}", dedupe_key=key, links=_json(**links) if links else None)


def _json(**values: object) -> bytes:
    return msgspec.json.encode(values)
