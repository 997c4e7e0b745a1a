"""Runs the client's statements: over its own connections, on one of the caller's, or, inside a job, by its supervisor.

The driver and asyncio are imported with the first connection, not before: a process that is forked for every job pays
for each library that its parent has loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from outlive import job_gateway, statement
from outlive.client.results import Polling, Waiter
from outlive.config import Config
from outlive.errors import ConfigError
from outlive.statement import Statement

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from outlive.client.connections import Connections

T = TypeVar("T")


class StatementRunner:
    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config

    @cached_property
    def connections(self) -> Connections:
        from outlive.client.connections import Connections

        return Connections(self._config)

    def run(self, one: Statement[T]) -> T:
        return self.run_all([one])[0]

    def run_all(self, statements: Sequence[Statement[T]], connection: Connection[Any] | None = None) -> list[T]:
        """Run all statements in one transaction: the caller's, if a connection is given."""
        if connection is not None:
            from outlive import db

            _expect("Connection", connection, "use aenqueue and aenqueue_many for an async connection")
            with db.translated_errors(foreign=True):
                return db.run_all(connection, statements, foreign=True)
        if job_gateway.gateway is not None:
            return statement.read_answers(statements, job_gateway.gateway.call("run", statement.ask(statements)))
        return self.connections.run_all(statements)

    def wait_for(self, ids: Collection[UUID], ring: Callable[[], object]) -> Waiter:
        """A waiter for the end of these jobs: `ring` is called when one may have ended."""
        if job_gateway.gateway is None:
            with suppress(RuntimeError):  # No thread can start, for example because the interpreter ends.
                return self.connections.waiting.enter(ids, ring)
        return Polling(ids)

    def close(self) -> None:
        """Close the idle connections, if any were opened."""
        if "connections" in self.__dict__:
            self.connections.close()

    async def arun(self, one: Statement[T]) -> T:
        return (await self.arun_all([one]))[0]

    async def arun_all(
        self, statements: Sequence[Statement[T]], connection: AsyncConnection[Any] | None = None
    ) -> list[T]:
        """The async twin of `run_all`."""
        if connection is not None:
            from outlive import db

            _expect("AsyncConnection", connection, "use enqueue and enqueue_many for a sync connection")
            with db.translated_errors(foreign=True):
                return await db.arun_all(connection, statements, foreign=True)
        if job_gateway.gateway is not None:
            import asyncio

            return await asyncio.to_thread(self.run_all, statements)
        return await self.connections.arun_all(statements)


def _expect(kind: str, connection: object, otherwise: str) -> None:
    import psycopg

    if not isinstance(connection, getattr(psycopg, kind)):
        raise ConfigError(
            f"connection is of type {type(connection).__name__}: it must be a psycopg.{kind}; {otherwise}"
        )
