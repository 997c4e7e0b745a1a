"""Calls that mypy must refuse. Each ends with the code of the first error."""

from __future__ import annotations

from decimal import Decimal

import psycopg

import outlive
from tests.typing.example import add, afetch, app, asum, fetch, invoice

add.enqueue("1")  # error: arg-type
add.enqueue()  # error: call-arg
add.enqueue(1, 2, 3)  # error: call-arg
add.enqueue(1, c=2)  # error: call-arg
add.enqueue(1, label=2)  # error: arg-type
add("1")  # error: arg-type
add.job("1")  # error: arg-type
add.using(queue="slow").enqueue("1")  # error: arg-type
text: str = add.enqueue(1).result()  # error: assignment
more: list[str] = fetch.enqueue("u").result()  # error: assignment
invoice.enqueue(1.5)  # error: arg-type
invoice.enqueue("1.5")  # error: arg-type
total: float = invoice.enqueue(Decimal(1)).result()  # error: assignment
add.using(qeue="slow")  # error: call-arg
add.using(priority="high")  # error: arg-type
add.using(on_conflict="ignore")  # error: arg-type
add.enqueue(1).result(timeout="soon")  # error: arg-type
outlive.gather([add.job(1)])  # error: arg-type
numbers: list[int] = outlive.gather([add.enqueue(1)], return_exceptions=True)  # error: assignment
app.get_job(7)  # error: arg-type
app.enqueue_many([1])  # error: arg-type
app.enqueue_many([add])  # error: arg-type
app.enqueue_many([add.job(1)], connection="postgresql://")  # error: arg-type
outlive.App(max_atempts=3)  # error: call-arg
outlive.App(max_attempts="3")  # error: arg-type
outlive.App(otel="collector:4318")  # error: arg-type
outlive.App(sentry="https://key@sentry.example.com/7")  # error: arg-type
add.using(after="no-uuid")  # error: arg-type
add.using(after=add)  # error: arg-type
add.using(on_failure="panic")  # error: arg-type
outlive.chain(add.job(1), add)  # error: call-overload
outlive.group([add])  # error: arg-type
fetch.enqueue(outlive.result_of(add.enqueue(1)))  # error: arg-type
add.enqueue(outlive.result_of([add.enqueue(1)]))  # error: arg-type
add.enqueue(1, label=outlive.result_of(add.job(1)))  # error: arg-type
outlive.result_of(1)  # error: call-overload
outlive.chain(add.job(1), [add])  # error: list-item
add.using(on_failed=add)  # error: arg-type
add.using(on_failed=afetch)  # error: arg-type
add.using(expires=[1])  # error: arg-type
add.using(deadline=[1])  # error: arg-type
wrong: outlive.Job[str] = outlive.group([add.job(1)]).then(add.job(2))  # error: arg-type


@app.task(max_attempt=3)  # error: call-overload
def misspelt() -> None: ...


@app.task(timeout=[1])  # error: call-overload
def mistyped() -> None: ...


@app.schedule("* * * * *", evry="5s")  # error: call-arg
@app.schedule(every="5s", missed="some")  # error: arg-type
def mistimed() -> None: ...


@app.schedule(every="5s")
def scheduled(n: int = 0) -> int:
    return n


scheduled.enqueue("1")  # error: arg-type


async def main(connection: psycopg.AsyncConnection[object]) -> None:
    app.enqueue_many([add.job(1)], connection=connection)  # error: arg-type
    await asum.aenqueue(1, "2")  # error: arg-type
    await afetch.aenqueue()  # error: call-arg
    number: int = afetch("u")  # error: assignment
    number = await afetch("u")  # error: assignment
    number = await (await afetch.aenqueue("u")).aresult()  # error: assignment
    number = asum.aenqueue(1)  # error: assignment
    print(number)
