"""`after`, `on_failure`, chains and groups, as clients use them."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import outlive
from outlive import State
from outlive.client.options import BoundJob, ids_of
from tests.client.example import aadd, add

Query = Callable[..., list[tuple[Any, ...]]]


def needs_of(query: Query, job: outlive.Job[Any]) -> list[Any]:
    return [row[0] for row in query("select needs from outlive.dependencies where job_id = %s order by needs", job.id)]


def test_after_takes_jobs_of_every_form(app, query):
    enqueued, bound = add.enqueue(1), add.job(2)
    app.enqueue_many([bound])
    forms: list[Any] = [enqueued, bound, enqueued.id, [enqueued, bound, enqueued.id], outlive.group([add.job(3)])]
    for after in forms:
        job = add.using(after=after).enqueue(3)
        assert job.status() is State.BLOCKED
        assert needs_of(query, job) == sorted(set(ids_of("after", after)))


def test_a_task_with_after_can_be_used_again_and_changed(app, query):
    first, second = add.enqueue(1), add.enqueue(2)
    waiting = add.using(after=(one for one in [first, second])).using(priority=1, on_failure="proceed")
    for job in (waiting.enqueue(1), waiting.enqueue(2)):
        assert needs_of(query, job) == [first.id, second.id]
    assert needs_of(query, waiting.using(after=first).enqueue(1)) == [first.id]
    assert waiting.using(after=[]).enqueue(1).status() is State.PENDING


@pytest.mark.parametrize("after", ["no", 1, None, [1], [None], ["a"], {"a": 1}])
def test_after_refuses_what_is_no_job(app, after):
    with pytest.raises(outlive.ConfigError, match=r"after is .*: it must be a job, a task.job\(…\) or a uuid.UUID"):
        add.using(after=after)


def test_on_failure_refuses_what_it_does_not_know(app):
    wrong: Any = "panic"
    for refused in (
        lambda: add.using(on_failure=wrong),
        lambda: outlive.chain(add.job(1), add.job(2), on_failure=wrong),
    ):
        with pytest.raises(outlive.ConfigError, match="on_failure is 'panic': it must be block, proceed or cancel"):
            refused()


def test_jobs_of_one_call_may_wait_for_each_other_across_its_batches(app, query):
    first = add.job(0)
    jobs = [first, *(add.using(after=first).job(n) for n in range(4500))]
    enqueued = app.enqueue_many(jobs)
    assert query("select count(*) from outlive.held")[0][0] == 4500
    assert needs_of(query, enqueued[-1]) == [first.request.id]
    second = add.job(0)
    assert app.enqueue_stream([second, *(add.using(after=second).job(n) for n in range(4500))]) == 4501
    assert query("select count(*) from outlive.held")[0][0] == 9000


def test_jobs_that_wait_in_a_circle_are_refused(app, query):
    first, second = uuid4(), uuid4()
    circle = [add.using(id=first, after=second).job(1), add.using(id=second, after=first).job(2)]
    with pytest.raises(outlive.BadArguments, match="come before it in the same call"):
        app.enqueue_many(circle)
    assert query("select count(*) from outlive.jobs") == [(0,)]


def test_a_chain_is_enqueued_in_one_transaction(app, query, queue):
    other = add.enqueue(0)
    first, second, third = outlive.chain(
        add.job(1), aadd.using(on_failure="proceed").job(2), add.using(after=other).job(3), on_failure=None
    )
    assert [job.status() for job in (first, second, third)] == [State.PENDING, State.BLOCKED, State.BLOCKED]
    assert needs_of(query, second) == [first.id]
    assert query("select after from outlive.jobs where id = %s", third.id) == [([other.id, second.id],)]
    assert query("select on_failure from outlive.dependencies where job_id = %s", second.id) == [("proceed",)]
    with pytest.raises(outlive.BadArguments):
        outlive.chain(add.job(1), add.using(after=uuid4()).job(2))
    assert queue.value("select count(*) from outlive.jobs") == 4


def test_a_group_has_its_jobs_and_a_job_after_them(app, query, queue):
    group = outlive.group(add.job(n) for n in range(3))
    last = group.then(add.job(9), on_failure="cancel")
    assert needs_of(query, last) == [job.id for job in group]
    queue.run_job(group.jobs[0].id)
    group.jobs[1].cancel()
    assert last.status() is State.CANCELLED


def test_chains_and_groups_join_the_callers_transaction(app, query, database_url):
    with psycopg.connect(database_url) as mine:
        group = outlive.group([add.job(1)], connection=mine)
        last = group.then(add.job(2))
        outlive.chain(add.job(1), add.using(after=last).job(2), connection=mine)
        assert query("select count(*) from outlive.jobs") == [(0,)]
        mine.commit()
    assert query("select count(*) from outlive.jobs") == [(4,)]
    assert query("select count(*) from outlive.held") == [(2,)]


def test_the_async_twins_do_the_same(app, query, database_url):
    async def main() -> None:
        first, second = await outlive.achain(add.job(1), aadd.job(2))
        assert await second.astatus() is State.BLOCKED
        group = await outlive.agroup([add.using(after=first).job(3), add.job(4)])
        assert needs_of(query, await group.athen(add.job(5))) == [job.id for job in group]
        async with await psycopg.AsyncConnection.connect(database_url) as mine:
            within = await outlive.agroup([add.job(6)], connection=mine)
            await within.athen(add.job(7))
            await mine.commit()
        await app.connections.aclose()

    asyncio.run(main())
    assert query("select count(*) from outlive.jobs") == [(7,)]


def test_chains_and_groups_need_jobs_of_one_app(app):
    other = outlive.App().task(add.function)
    with pytest.raises(outlive.ConfigError, match="different apps"):
        outlive.chain(add.job(1), other.job(2))
    with pytest.raises(outlive.ConfigError, match="a chain has at least one job"):
        outlive.chain()


def test_nothing_holds_up_the_job_after_an_empty_group(app):
    nothing: list[BoundJob[int]] = []
    assert outlive.group(nothing).then(add.job(1)).status() is State.PENDING
