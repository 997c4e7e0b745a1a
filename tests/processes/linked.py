"""An app whose jobs wait for each other, which workers import."""

from dataclasses import dataclass
from datetime import date
from uuid import UUID

import outlive

app = outlive.App()


@app.task(recycle_after=10000, max_losses=None)
def number(n: int) -> int:
    return n


@app.task(recycle_after=10000, max_losses=None)
def total() -> int:
    return sum(one for one in outlive.current().inputs if one is not None)


@app.task
def inputs() -> list[object]:
    assert outlive.current().inputs is outlive.current().inputs
    return outlive.current().inputs


@app.task
def text(megabytes: float) -> str:
    return "é" * int(megabytes * 500_000)


@app.task
def lengths() -> list[int]:
    return [len(one) for one in outlive.current().inputs]


@dataclass
class Page:
    text: str
    day: date


@app.task
def fetch(size: int, day: date) -> Page:
    return Page("é" * size, day)


@app.task
def parse(page: Page, *, twice: bool = False) -> tuple[int, date]:
    return len(page.text) * (1 + twice), page.day


@app.task
def parse_any(page: Page | None) -> str:
    return "nothing" if page is None else page.text


@app.task
def add_up(numbers: list[int], start: int) -> int:
    return sum(numbers, start)


@app.task
def tell(job: UUID, error: str) -> str:
    return f"{job}: {error}"


@app.task(max_attempts=1)
def fail() -> int:
    raise ValueError("no")


@app.task
def spawn_a_chain(n: int) -> None:
    first, second = number.job(n), number.job(n + 1)
    last = total.using(after=[first, second]).job()
    outlive.current().spawn(first, second, last)


@app.task
def spawn_in_the_wrong_order() -> None:
    first = number.job(1)
    outlive.current().spawn(total.using(after=first).job(), first)


@app.task
def enqueue_a_chain(n: int) -> str:
    _, last = outlive.chain(number.job(n), total.job())
    return str(last.id)


@app.task
def complete_in_own_transaction(url: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        outlive.current().complete(connection, sum(outlive.current().inputs))
