"""Results as arguments, chains and groups in each other, on_failed, expires and deadline, as clients use them."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

import outlive
from outlive import State, result_of
from tests.client.example import aadd, add, app, fetch, take


@app.task
def tell(job: UUID, error: str) -> None: ...


@app.task(expires="10m", deadline="30d")
def hurry() -> None: ...


COLUMNS = ("args", "after", "fingerprint", "on_failed")
JOB = "select args, after, fingerprint, on_failed from outlive.jobs where id = %s"


def stored(query: Any, job: outlive.Job[Any], *columns: str) -> tuple[Any, ...]:
    row = dict(zip(COLUMNS, query(JOB, job.id)[0], strict=True))
    return tuple(row[name] for name in columns)


def test_a_job_waits_for_the_results_in_its_arguments(app, query):
    first, second = add.enqueue(1), add.enqueue(2)
    job = add.using(after=second).enqueue(result_of(first), b=result_of(second))
    assert job.status() is State.BLOCKED
    assert stored(query, job, "args", "after") == ({"$results": {"a": 1, "b": 0}}, [second.id, first.id])


def test_jobs_of_one_call_refer_to_each_other_also_to_one_that_was_not_made(app, query):
    there = add.using(dedupe_key="k").enqueue(0)
    first = add.using(dedupe_key="k").job(1)
    _, job = app.enqueue_many([first, take.job([result_of(first), {"x": result_of(first)}], 7)])
    args = {"$results": {"*": [[0, {"of": {"x": 0}}], {"is": 7}]}}
    assert stored(query, job, "args", "after") == (args, [there.id])


def test_the_results_of_a_group_are_a_list(app, query):
    group = outlive.group(add.job(n) for n in range(3))
    job = take.enqueue(numbers=result_of(group))
    assert stored(query, job, "args", "after") == ({"$results": {"numbers": [0, 1, 2]}}, [one.id for one in group])


def test_what_has_no_result_is_refused(app):
    wrong: Any = 7
    with pytest.raises(outlive.ConfigError, match="the job of result_of is 7: it must be a job"):
        result_of(wrong)
    with pytest.raises(outlive.BadArguments, match="can't wait for job"):
        add.enqueue(result_of(app.get_job(uuid4())))


def test_jobs_that_refer_to_different_results_have_different_fingerprints(app, query):
    jobs = [add.enqueue(result_of(add.enqueue(n))) for n in range(2)]
    assert len({stored(query, job, "fingerprint") for job in jobs} - {(None,)}) == 2


def test_chains_and_groups_nest_in_one_call_and_come_back_in_their_shape(app, query):
    start, end = add.job(0), add.job(9)
    a, b, c, d = (add.job(n) for n in range(1, 5))
    handles = outlive.chain(start, [(a, [b, c]), d], [], end, on_failure="cancel")
    first, [(ha, [hb, hc]), hd], nothing, last = handles
    assert nothing == []
    needed = {job.id: stored(query, job, "after")[0] for job in (first, ha, hb, hc, hd, last)}
    assert list(needed.values()) == [None, [first.id], [ha.id], [ha.id], [first.id], [hb.id, hc.id, hd.id]]
    assert query("select count(distinct xmin::text), count(*) from outlive.jobs") == [(1, 6)]
    assert query("select distinct on_failure from outlive.dependencies") == [("cancel",)]
    first.cancel()
    assert last.status() is State.CANCELLED


def test_a_group_of_chains_is_the_last_job_of_each(app, query):
    bound = [(one := add.job(n), fetch.job("u"), add.job(result_of(one))) for n in range(3)]
    group = outlive.group(bound)
    assert [job.id for job in group] == [chain[-1].request.id for chain in bound]
    last = group.then(take.job())
    assert stored(query, last, "after")[0] == [job.id for job in group]
    assert stored(query, group.jobs[0], "after")[0] == [bound[0][0].request.id, bound[0][1].request.id]


def test_the_async_twins_nest_too(app, query):
    async def main() -> None:
        first, [second, (third, fourth)] = await outlive.achain(add.job(1), [aadd.job(2), (add.job(3), add.job(4))])
        assert stored(query, fourth, "after")[0] == [third.id]
        assert stored(query, third, "after")[0] == stored(query, second, "after")[0] == [first.id]
        group = await outlive.agroup([(add.job(5), add.job(6))])
        assert len(group.jobs) == 1
        await app.connections.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [add, 7, "ab", None, ["ab"]])
def test_what_is_no_step_is_refused(app, wrong):
    with pytest.raises(outlive.ConfigError, match=r"a step is .*: it must be a task\.job\(…\), a tuple"):
        outlive.chain(add.job(1), wrong)


def test_on_failed_is_a_task_that_takes_an_id_and_an_error(app, query):
    job = add.using(on_failed=tell.using(queue="alerts", priority=1, delay="5s")).enqueue(1)
    [on_failed] = stored(query, job, "on_failed")
    expected = {"task": tell.name, "queue": "alerts", "source": "", "priority": 1, "delay_s": 5.0}
    assert on_failed == {**expected, "on_conflict": "skip"}
    other: Any = add
    with pytest.raises(outlive.BadArguments, match=r"and its error, as in `def tell\(job: UUID, error: str\)`:"):
        add.using(on_failed=other)
    for wrong in (tell.using(dedupe_key="k"), tell.using(after=job), tell.using(id=uuid4())):
        with pytest.raises(outlive.ConfigError, match="on_failed takes a task without"):
            add.using(on_failed=wrong)
    plain: Any = tell.function
    with pytest.raises(outlive.ConfigError, match="on_failed takes a task"):
        add.using(on_failed=plain)


def test_a_job_expires_and_has_its_deadline_as_it_says_or_else_as_its_task_does(app, query):
    jobs: list[outlive.Job[Any]] = [
        hurry.enqueue(),
        hurry.using(expires="1h").enqueue(),
        hurry.using(deadline="1h").enqueue(),
        hurry.using(expires=None).enqueue(),
        hurry.using(expires=None, deadline=None).enqueue(),
        add.enqueue(1),
    ]
    left = "select extract(epoch from e.expires_at - j.created_at)::int from outlive.jobs j"
    left += " join outlive.expiring e on e.job_id = j.id where j.id = %s order by e.whole"
    month = 30 * 86400
    times = [[one for (one,) in query(left, job.id)] for job in jobs]
    assert times == [[600, month], [3600, month], [600, 3600], [month], [], []]
    with pytest.raises(outlive.ConfigError, match="expires is"):
        add.using(expires=0)
    with pytest.raises(outlive.ConfigError, match="deadline is"):
        add.using(deadline=0)
