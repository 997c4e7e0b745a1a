"""The orders, and sessions of SQLAlchemy on their database. The queue is in the same database."""

from __future__ import annotations

import os
from functools import cache

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


def open_session() -> Session:
    return Session(_engine(os.environ[URL]))


def make_tables(url: str) -> None:
    Base.metadata.create_all(_engine(url))


@cache
def _engine(url: str) -> Engine:
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
