"""Enqueues in the caller's transaction, on the caller's connection. Its settings stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection

from outlive import db
from outlive.errors import ConfigError
from outlive.statement import Statement

T = TypeVar("T")


def run_all(connection: Connection[Any], statements: Sequence[Statement[T]]) -> list[T]:
    _expect(Connection, connection, "use aenqueue and aenqueue_many for an async connection")
    with db.translated_errors(foreign=True):
        return db.run_all(connection, statements, foreign=True)


async def arun_all(connection: AsyncConnection[Any], statements: Sequence[Statement[T]]) -> list[T]:
    _expect(AsyncConnection, connection, "use enqueue and enqueue_many for a sync connection")
    with db.translated_errors(foreign=True):
        return await db.arun_all(connection, statements, foreign=True)


def _expect(kind: type, connection: object, otherwise: str) -> None:
    if not isinstance(connection, kind):
        raise ConfigError(
            f"connection is of type {type(connection).__name__}: it must be a psycopg.{kind.__name__}; {otherwise}"
        )
