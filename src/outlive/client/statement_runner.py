"""Runs the client's statements: over its own connections, on one of the caller's, or, inside a job, by its supervisor.

The driver and asyncio are imported with the first connection, not before: a process that is forked for every job pays
for each library that its parent has loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from outlive import caller_connections, job_gateway, statement
from outlive.client import redirection
from outlive.config import Config
from outlive.errors import ConfigError
from outlive.statement import Statement

if TYPE_CHECKING:
    from outlive.caller_connections import AsyncConnection, SyncConnection
    from outlive.client.connections import Connections
    from outlive.client.waiting import Waiter

T = TypeVar("T")
_USE_ASYNC = "use aenqueue, aenqueue_many, asend, aadd_schedule or `async with app.batch(…)`"
_USE_SYNC = "use enqueue, enqueue_many, send, add_schedule or `with app.batch(…)`, from async code in a thread"


class StatementRunner:
    def __init__(self, config: Callable[[], Config], own_url: Callable[[], object] = lambda: None) -> None:
        self._config, self._own_url = config, own_url

    @property
    def _gateway(self) -> job_gateway.Gateway | None:
        """The way through the supervisor, inside a job. It has the database of its own app, and no other."""
        return None if job_gateway.is_elsewhere(self._own_url()) else job_gateway.gateway

    @property
    def connections(self) -> Connections:
        if redirection.database_url is None and redirection.django_tests():
            raise ConfigError(redirection.REFUSED)
        return self._connections

    @cached_property
    def _connections(self) -> Connections:
        from outlive.client.connections import Connections

        return Connections(self._config)

    joins: bool = False
    """Whether its statements may be part of a transaction that their caller does not name: client/home.py."""

    def transaction(self) -> SyncConnection | None:
        """The transaction in which jobs are enqueued that name no connection. None: they commit at once."""
        return None

    def run(self, one: Statement[T], connection: SyncConnection | None = None) -> T:
        return self.run_all([one], connection)[0]

    def read(self, one: Statement[T], until: float | None) -> T:
        """Run a statement that only reads. TimeoutError if there is no answer until then (monotonic)."""
        if until is None or self._gateway is not None:
            return self.run(one)
        from outlive import db

        return self.connections.within(lambda connection: db.run(connection, one), until=until)

    def run_all(self, statements: Sequence[Statement[T]], connection: SyncConnection | None = None) -> list[T]:
        """Run all statements in one transaction: the caller's, if a connection is given."""
        if connection is not None:
            return caller_connections.run_all(caller_connections.borrow(connection, _USE_ASYNC), statements)
        # Outside of jobs there is no gateway: a call less for each enqueue.
        if job_gateway.gateway is not None and (gateway := self._gateway) is not None:
            return statement.read_answers(statements, gateway.call("run", statement.ask(statements)))
        return self.connections.run_all(statements)

    def wait_for(self, ids: Collection[UUID], ring: Callable[[], object]) -> Waiter | None:
        """A waiter for the end of these jobs: `ring` is called when one may have ended. None: they must be polled."""
        if self._gateway is None:
            with suppress(RuntimeError):  # No thread can start, for example because the interpreter ends.
                return self.connections.waiting.enter(ids, ring)
        return None

    def close(self) -> None:
        """Close the idle connections, if any were opened."""
        if own := self.__dict__.get("_connections"):
            own.close()

    async def arun(self, one: Statement[T], connection: AsyncConnection | None = None) -> T:
        return (await self.arun_all([one], connection))[0]

    async def aread(self, one: Statement[T], until: float | None) -> T:
        """The async twin of `read`."""
        if until is None or self._gateway is not None:
            return await self.arun(one)
        from outlive import db

        return await self.connections.awithin(lambda connection: db.arun(connection, one), until=until)

    async def arun_all(self, statements: Sequence[Statement[T]], connection: AsyncConnection | None = None) -> list[T]:
        """The async twin of `run_all`."""
        if connection is not None:
            borrowed = await caller_connections.aborrow(connection, _USE_SYNC)
            return await caller_connections.arun_all(borrowed, statements)
        if (gateway := self._gateway) is not None:
            return statement.read_answers(statements, await gateway.acall("run", statement.ask(statements)))
        return await self.connections.arun_all(statements)
