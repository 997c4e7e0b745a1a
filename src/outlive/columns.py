"""How psycopg sends our columns and reads JSON: both as raw bytes."""

from __future__ import annotations

from typing import Self
from uuid import UUID

from psycopg import pq
from psycopg.abc import AdaptContext, Buffer, DumperKey
from psycopg.adapt import Dumper, Loader, PyFormat

from outlive.statement import Column


class _ColumnDumper(Dumper):
    """Sends a column as it is, under its own oid. psycopg keeps one dumper per oid."""

    format = pq.Format.BINARY

    def get_key(self, obj: Column, format: PyFormat) -> DumperKey:
        return (self.cls, obj.oid)  # type: ignore[return-value]  # psycopg takes any hashable key.

    def upgrade(self, obj: Column, format: PyFormat) -> Self:
        dumper = type(self)(self.cls)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: Column) -> Buffer:
        return obj.data


class _RawJson(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


class _RawJsonb(_RawJson):
    def load(self, data: Buffer) -> bytes:
        return bytes(data)[1:]  # Without the byte that gives the version of the format.


def adapt(context: AdaptContext) -> None:
    """Send columns as they are, and return JSON as raw bytes, which the caller decodes if it needs to."""
    context.adapters.register_dumper(Column, _ColumnDumper)
    context.adapters.register_loader("json", _RawJson)
    context.adapters.register_loader("jsonb", _RawJsonb)


def binary(value: object) -> bytes | None:
    """A parameter of a silent statement in Postgres' binary form."""
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case UUID():
            return value.bytes
        case int():
            return value.to_bytes(4, "big", signed=True)
    raise TypeError(f"a silent statement has no parameter like {value!r}")
