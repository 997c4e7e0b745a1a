"""The orders, and sessions of SQLAlchemy on their database. The queue is in the same database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from uuid import UUID

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

URL = "ORDERS_DATABASE_URL"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    invoiced: Mapped[bool] = mapped_column(default=False)
    job: Mapped[UUID | None]
    """The job that fulfils it."""


class Payment(Base):
    __tablename__ = "payments"

    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]
    cents: Mapped[int]


class LedgerLine(Base):
    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]
    cents: Mapped[int]
    parcels: Mapped[int]


def open_session() -> Session:
    return Session(_engine(os.environ[URL]))


def session_of_request() -> Iterator[Session]:
    with open_session() as session:
        yield session


def make_tables(url: str) -> None:
    Base.metadata.create_all(_engine(url))


@cache
def _engine(url: str) -> Engine:
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
