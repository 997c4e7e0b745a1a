"""A small app as a user would write it, and how a test uses it in an event loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import outlive
from outlive import config

app = outlive.App()
shop = app.source("shop", rate_limit_per_minute=60)


def app_at(database_url: str) -> outlive.App:
    """Let the app use this database."""
    app.configure(config.load(environ={}, flags={"database_url": database_url}))
    return app


def in_a_loop(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """What these return that use the app, one after the other in an event loop of their own."""

    async def use() -> list[Any]:
        try:
            return [await each for each in work]
        finally:
            await app.connections.aclose()
            for each in work:
                each.close()

    return asyncio.run(use())


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
async def aadd(a: int, b: int = 0) -> int:
    return a + b


@app.task(queue="slow", source=shop)
def fetch(url: str) -> dict[str, object]:
    return {"url": url}


@app.task
def take(*args: object, **kwargs: object) -> list[object]:
    return [args, kwargs]
