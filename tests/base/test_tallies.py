"""The counters of a worker."""

from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.metrics.catalogue import BUCKETS_S, CRASHES, JOB_RUN, JOB_WAIT, JOBS_ENDED
from outlive.metrics.exposition import text
from outlive.metrics.tallies import MAX_SERIES, Tallies, Times
from outlive.model import Claimed, Ended, new_job_id
from outlive.states import Outcome
from tests.driving.scraping import Scraped

NOW = datetime(2100, 1, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.clock_offset_s = NOW.timestamp() - monotonic()


def claimed(task: str = "work", queue: str = "default", *, waited_s: float = 0.0) -> Claimed:
    ready_at = NOW - timedelta(seconds=waited_s)
    return Claimed(1, new_job_id(), 1, queue, "", task, 5, ready_at, 0, 0, 0, b"{}", None)


@given(st.lists(st.floats(0, 1e5), max_size=50))
def test_a_histogram_counts_each_time_in_its_bucket(times_s):
    times = Times()
    for one in times_s:
        times.add(one)
    assert sum(times.buckets) == len(times_s)
    assert times.sum_s == pytest.approx(sum(times_s), abs=1e-3)
    for n, bound_s in enumerate(BUCKETS_S):
        assert sum(times.buckets[: n + 1]) == sum(one <= bound_s for one in times_s)


def test_ends_are_counted_by_outcome_and_by_how_long_they_waited_and_ran():
    tallies = Tallies(Clock())
    tallies.claimed([*(5 * [claimed(waited_s=7.0)]), claimed("other work")], monotonic())
    for _ in range(8):
        tallies.ended(claimed(), Ended(1, took_s=0.002))
    tallies.ended(claimed(), Ended(1, Outcome.CRASHED, signal="SIGSEGV", took_s=70.0))
    tallies.ended(claimed(), Ended(1, Outcome.RELEASED))
    seen = Scraped(text(tallies.figures()).decode())
    ended = {
        labels["outcome"]: seen("outlive_jobs_ended_total", **labels) for labels in seen.labels_of(JOBS_ENDED.name)
    }
    assert ended == {**{str(one): 0 for one in Outcome}, "succeeded": 8, "crashed": 1, "released": 1}
    assert seen("outlive_job_run_seconds_bucket", task="work", le="0.0025") == 8
    assert seen("outlive_job_run_seconds_bucket", task="work", le="60.0") == 8
    assert seen("outlive_job_run_seconds_bucket", task="work", le="300.0") == 9
    assert seen("outlive_job_run_seconds_sum", task="work") == pytest.approx(8 * 0.002 + 70)
    assert seen("outlive_job_wait_seconds_bucket", task="work", le="5.0") == 0
    assert seen("outlive_job_wait_seconds_bucket", task="work", le="10.0") == 5
    assert seen("outlive_job_wait_seconds_sum", task="work") == pytest.approx(7.0 * 5, rel=0.01)
    assert seen("outlive_job_wait_seconds_bucket", task="other work", le="1.0") == 1
    assert seen("outlive_crashes_total", task="work", signal="SIGSEGV") == 1


def test_tasks_beyond_the_bound_are_counted_as_other():
    tallies = Tallies(Clock())
    for n in range(MAX_SERIES + 50):
        tallies.claimed([claimed(f"task-{n}")], monotonic())
        tallies.ended(claimed(f"task-{n}"), Ended(1, Outcome.CRASHED, took_s=1.0))
    figures = tallies.figures()
    for metric in (JOB_RUN, JOB_WAIT, CRASHES):
        assert len(figures[metric]) == MAX_SERIES + 1
    seen = Scraped(text(figures).decode())
    assert seen("outlive_jobs_ended_total", task="other", queue="other", outcome="crashed") == 50
    assert seen("outlive_crashes_total", task="other", signal="none") == 50
