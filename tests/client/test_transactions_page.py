"""Runs the examples of docs/how-to/transactions.md, one for each library, and the jobs that they enqueue."""

import asyncio
import importlib
import sys
from typing import Any

import sqlalchemy
from sqlalchemy.ext import asyncio as sa
from sqlalchemy.orm import Session

from outlive import config
from tests.driving import pages
from tests.driving.libraries import ASYNCPG, LIBPQ, django_at, parts
from tests.waiting import eventually

BLOCKS = [block.text for block in pages.blocks_of("how-to/transactions.md")]


async def order_async(shop: Any, url: str) -> None:
    async with shop.asyncpg.create_pool(**parts(url, *ASYNCPG), min_size=1) as pool:
        await shop.order_with_asyncpg(pool, 2)
    engine = sa.create_async_engine("postgresql+asyncpg://", connect_args=parts(url, *ASYNCPG))
    async with sa.AsyncSession(engine) as session:
        await shop.order_with_async_sqlalchemy(session, 4)
    await engine.dispose()


def test_the_examples_on_the_page_of_transactions_work(start, queue, database_url, tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text("\n".join(BLOCKS))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SHOP_URL", database_url)
    queue.execute("create table orders (id int); create table charges (id int)")
    shop = importlib.import_module("shop")
    shop.app.configure(config.load(environ={}, flags={"database_url": database_url}))
    shop.order_with_psycopg(database_url, 1)
    asyncio.run(order_async(shop, database_url))
    engine = sqlalchemy.create_engine("postgresql+psycopg://", connect_args=parts(database_url, *LIBPQ))
    with Session(engine) as session:
        shop.order_with_sqlalchemy(session, 3)
    engine.dispose()
    with django_at(database_url):
        shop.order_with_django(5)
    shop.charge.enqueue(6)
    shop.app.connections.close()
    del sys.modules["shop"]
    assert queue.values("select id from orders order by id") == [1, 2, 3, 4, 5]
    assert queue.value("select count(*) from outlive.jobs") == 6
    start(target="shop:app", folder=tmp_path)
    done = "select count(*) from outlive.attempts where state = 'succeeded'"
    eventually(lambda: queue.value(done) == 6, within_s=30, what="all jobs are done")
    assert queue.values("select id from charges") == [6]
