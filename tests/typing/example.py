"""The tasks of the examples beside it."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal

import outlive

app = outlive.App()
shop = app.source("shop", rate_limit_per_minute=60)


@app.task
def add(a: int, b: int = 0, *, label: str = "") -> int:
    return a + b


@app.task(max_attempts=5, timeout="10m", memory="512MB", source=shop, backoff=[1, "2m"], retry_on=OSError)
def fetch(url: str) -> dict[str, str]:
    return {"url": url}


@app.task(queue="slow", timeout=None, max_losses=None, backoff=lambda n: n * 10)
async def afetch(url: str) -> bytes | None:
    return None


@app.task
async def asum(*numbers: int) -> int:
    return sum(numbers)


@app.task()
def nothing() -> None: ...


@app.task
def invoice(total: Decimal, due: datetime.date | None = None) -> tuple[Decimal, datetime.date]:
    return total, due or datetime.date.max


@app.task(expires="10m")
def tell(job: uuid.UUID, error: str) -> None: ...
