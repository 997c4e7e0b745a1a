"""Programs do with sources and schedules what operators do."""

import asyncio

import pytest

import outlive
from outlive import store
from outlive.model import Schedule
from tests.driving.making import Queue


def limits(queue: Queue) -> tuple[object, ...]:
    [row] = queue.run(store.list_sources())
    return row["rate_limit_per_minute"], row["breaker_pause_s"], row["enabled"]


def test_a_source_is_set_paused_and_resumed(app, queue):
    ware = app.source("ware", rate_limit_per_minute=60)
    assert not ware.pause()
    queue.run(store.register_sources([ware.limits]))
    assert ware.set(rate_limit_per_minute=30, breaker_pause="2m")
    assert ware.pause()
    assert limits(queue) == (30, 120, False)

    async def take_back() -> bool:
        return await ware.aset(rate_limit_per_minute=None) and await ware.aresume()

    assert asyncio.run(take_back())
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


def test_a_schedule_is_paused_resumed_run_and_removed(app, queue):
    queue.run(store.declare_schedules([Schedule(name="report", task="add", args=b"{}", cron="0 7 * * *")], "shop:app"))
    report = app.get_schedule("report")
    for done, paused in ((report.pause, True), (report.resume, False), (report.reset, False)):
        done()
        assert queue.values("select paused_at is not null from outlive.schedules") == [paused]
    assert app.get_job(report.run()).status() == app.get_job(asyncio.run(report.arun())).status() == "pending"
    report.remove()
    with pytest.raises(outlive.OutliveError, match="there is no schedule report"):
        report.pause()
