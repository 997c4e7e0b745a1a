"""Programs do with sources and schedules what operators do."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import outlive
from outlive import store
from outlive.model import Schedule
from tests.driving.making import Queue


def limits(queue: Queue) -> tuple[object, ...]:
    [row] = queue.run(store.list_sources())
    return row["rate_limit_per_minute"], row["breaker_pause_s"], row["enabled"]


@pytest.fixture(params=["", "a"], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a method of a handle, or its async twin."""

    def call(handle: object, verb: str, **given: Any) -> Any:
        returned = getattr(handle, request.param + verb)(**given)
        return asyncio.run(returned) if inspect.iscoroutine(returned) else returned

    return call


def test_a_source_is_set_paused_and_resumed(app, queue, call):
    ware = app.source("ware", rate_limit_per_minute=60)
    assert [call(ware, "pause"), call(ware, "resume"), call(ware, "set", burst=3)] == [False] * 3, "nothing declares it"
    queue.run(store.register_sources([ware.limits]))
    assert call(ware, "set", rate_limit_per_minute=30, breaker_pause="2m")
    assert call(ware, "pause")
    assert limits(queue) == (30, 120, False)
    assert call(ware, "set", rate_limit_per_minute=None)
    assert call(ware, "resume")
    assert limits(queue) == (60, 120, True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "source.set needs a limit"),
        ({"rate_limit": 3}, "source.set has the unknown option rate_limit"),
        ({"burst": 0}, "burst is 0: it must be a whole number from 1"),
        ({"breaker_pause": "soon"}, "breaker_pause is 'soon': it must be a duration"),
    ],
)
def test_a_limit_that_no_source_has_is_refused(app, given, reason):
    with pytest.raises(outlive.ConfigError, match=reason):
        app.source("mill").set(**given)


def test_a_schedule_is_paused_resumed_run_reset_and_removed(app, queue, call):
    queue.run(store.declare_schedules([Schedule(name="report", task="add", args=b"{}", cron="0 7 * * *")], "shop:app"))
    queue.run(store.set_schedule("report", {"cron": "0 8 * * *"}))
    report = app.get_schedule("report")
    in_force = "select array[cron, (paused_at is not null)::text] from outlive.schedules"
    for verb, cron, paused in (("pause", 8, "true"), ("resume", 8, "false"), ("reset", 7, "false")):
        call(report, verb)
        assert queue.values(in_force) == [[f"0 {cron} * * *", paused]], verb
    assert app.get_job(call(report, "run")).status() == "pending"
    call(report, "remove")
    assert queue.values(in_force) == []
    for verb in ("pause", "resume", "run", "reset", "remove"):
        with pytest.raises(outlive.BadArguments, match="there is no schedule report"):
            call(report, verb)
