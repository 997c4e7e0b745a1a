"""Jobs carry texts, such as the id of a request: they know them, their log lines have them, and they pass them on."""

import asyncio
import json
from datetime import date
from functools import partial

import pytest

import outlive
from outlive import State, luggage
from tests.driving.jobs import finished
from tests.processes import looking
from tests.waiting import eventually

DAY = date(2026, 11, 19)
TARGET = "tests.processes.looking:app"


def test_a_job_knows_its_baggage_and_passes_it_on_with_what_it_adds(start):
    start(target=TARGET)
    with outlive.baggage(request="r-7", tenant="acme"), outlive.baggage(tenant="other"):
        first = looking.pass_on.enqueue(2)
        beside = [looking.pass_on_beside_others.enqueue(1), looking.pass_on.enqueue(0)]
    alone = looking.pass_on_beside_others.enqueue(0)
    assert first.result(timeout=30) == {"request": "r-7", "tenant": "other"}
    assert [job.result(timeout=30) for job in (*beside, alone)] == [{"request": "r-7", "tenant": "other"}] * 2 + [{}]
    late = partial(looking.app.jobs, task=looking.pass_on.name, state="succeeded")
    eventually(lambda: len(late()) == 5, within_s=20)
    carried = [looking.app.get_job(one.id).result() for one in late() if one.args == {"left": 0}]
    base = {"request": "r-7", "tenant": "other"}
    assert sorted(carried, key=len) == [base, base, base | {"left": "1"}]


def test_each_json_line_of_a_job_has_its_baggage(start):
    worker = start(target=TARGET, log_format="json", log_level="debug")
    with outlive.baggage(request="r-7"):
        job = looking.pass_on.enqueue(0)
        failed = looking.fail.enqueue(7, DAY)
    assert (finished(job), finished(failed)) == (State.SUCCEEDED, State.FAILED)
    worker.says("completed successfully")
    worker.says("failed with code")
    lines = [json.loads(line) for line in worker.log().splitlines()]
    about = [line for line in lines if line.get("job_id") in (str(job.id), str(failed.id))]
    assert len(about) == 5
    assert {line["baggage"]["request"] for line in about} == {"r-7"}


def test_tasks_of_asyncio_have_the_baggage_of_the_block_in_which_they_begin():
    async def enqueue(request: str) -> bytes | None:
        with outlive.baggage(request=request):
            await asyncio.to_thread(str)  # The other one begins meanwhile.
            return looking.app.traced(looking.pass_on.job(0).request).options

    async def both() -> list[bytes | None]:
        return [*await asyncio.gather(enqueue("a"), enqueue("b"))]

    assert asyncio.run(both()) == [b'{"baggage":{"request":"a"}}', b'{"baggage":{"request":"b"}}']


def test_a_job_that_follows_a_failure_carries_the_baggage_of_the_one_that_failed(start):
    start(target=TARGET)
    with outlive.baggage(request="r-7"):
        failed = looking.pass_on.using(on_failed=looking.note_baggage.using(timeout="1m")).enqueue(-1)
    assert finished(failed) is State.FAILED
    (told,) = eventually(lambda: looking.app.jobs(task=looking.note_baggage.name, state="succeeded"), within_s=20)
    assert looking.app.get_job(told.id).result() == {"request": "r-7"}


def test_baggage_that_is_no_text_or_too_large_is_refused():
    for odd in ("a\0b", "\ud800"):
        with pytest.raises(outlive.ConfigError, match="the baggage"), outlive.baggage(request=odd):
            pass
    with pytest.raises(outlive.ConfigError, match="request is of type int, not text"), outlive.baggage(request=7):  # type: ignore[arg-type]
        pass
    with (
        pytest.raises(outlive.ConfigError, match=r"over the limit of 4,096: it is for ids"),
        outlive.baggage(a="x" * 4096),
    ):
        pass


def test_a_job_has_no_baggage_if_its_options_hold_too_much_or_something_else():
    assert luggage.of(b'{"baggage":{"a":"x"},"other":1}') == {"a": "x"}
    for options in (b'{"baggage":{"a":"%s"}}' % (b"x" * 4096), b'{"baggage":{"a":7}}', b'{"baggage":', None):
        assert luggage.of(options) == {}
