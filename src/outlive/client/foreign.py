"""Enqueuing in the caller's own transaction, on the caller's own connection, which is left as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection

from outlive import db
from outlive.errors import ConfigError
from outlive.statement import Statement

T = TypeVar("T")


def run_all(connection: Connection[Any], statements: Sequence[Statement[T]]) -> list[T]:
    _expect(Connection, connection, "for an async one there are aenqueue and aenqueue_many")
    with db.translated_errors(foreign=True):
        return db.run_all(connection, statements, foreign=True)


async def arun_all(connection: AsyncConnection[Any], statements: Sequence[Statement[T]]) -> list[T]:
    _expect(AsyncConnection, connection, "for a sync one there are enqueue and enqueue_many")
    with db.translated_errors(foreign=True):
        return await db.arun_all(connection, statements, foreign=True)


def _expect(kind: type, connection: object, otherwise: str) -> None:
    if not isinstance(connection, kind):
        raise ConfigError(
            f"jobs are enqueued here through a psycopg.{kind.__name__}, not through a {type(connection).__name__}; "
            f"{otherwise}"
        )
