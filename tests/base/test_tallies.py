"""What is measured: times and counts, the course of memory, running time, and the tail of an output."""

import time
from datetime import UTC, datetime, timedelta
from time import monotonic

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive import output
from outlive.metrics.catalogue import BUCKETS_S, CRASHES, JOB_RUN, JOB_WAIT, JOBS_ENDED
from outlive.metrics.exposition import text
from outlive.metrics.tallies import MAX_SERIES, Tallies, Times
from outlive.model import Claimed, Ended, MemoryCourse, new_job_id
from outlive.output import Record
from outlive.states import Outcome
from outlive.worker.limits.memory import LONG_S, MOST_POINTS, MemorySeries
from outlive.worker.limits.running_time import GAP_S, RunningTime
from tests.driving.scraping import Scraped

NOW = datetime(2100, 1, 1, 12, tzinfo=UTC)


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
    tallies = Tallies(lambda: NOW.timestamp() - monotonic())
    tallies.claimed([*(5 * [claimed(waited_s=7.0)]), claimed("other work")], monotonic())
    for _ in range(8):
        tallies.ended(claimed(), Ended(1, took_s=0.002))
    tallies.ended(claimed(), Ended(1, Outcome.CRASHED, signal="SIGSEGV", took_s=70.0))
    tallies.ended(claimed(), Ended(1, Outcome.RELEASED))
    seen = Scraped(text(tallies.figures(), "shop").decode())
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
    tallies = Tallies(lambda: NOW.timestamp() - monotonic())
    for n in range(MAX_SERIES + 50):
        tallies.claimed([claimed(f"task-{n}")], monotonic())
        tallies.ended(claimed(f"task-{n}"), Ended(1, Outcome.CRASHED, took_s=1.0))
    figures = tallies.figures()
    for metric in (JOB_RUN, JOB_WAIT, CRASHES):
        assert len(figures[metric]) == MAX_SERIES + 1
    seen = Scraped(text(figures, "shop").decode())
    assert seen("outlive_jobs_ended_total", task="other", queue="other", outcome="crashed") == 50
    assert seen("outlive_crashes_total", task="other", signal="none") == 50


def course(series: MemorySeries, outcome: Outcome = Outcome.CRASHED, took_s: float = 1.0) -> MemoryCourse | None:
    kept = series.kept(outcome, took_s, 100)
    return None if kept is None else msgspec.json.decode(kept, type=MemoryCourse)


def test_a_series_stays_small_and_keeps_the_peak():
    series = MemorySeries(0.05)
    for n in range(10_000):
        series.note(n / 20, 9_000 if n == 7_777 else n)
    found = course(series)
    assert found is not None
    assert MOST_POINTS / 2 <= len(found.at_s) == len(found.used_bytes) <= MOST_POINTS
    assert (found.limit_bytes, max(found.used_bytes), found.at_s[0]) == (100, 9_999, 0)
    assert found.at_s == sorted(found.at_s)
    near = [used for at_s, used in zip(found.at_s, found.used_bytes, strict=True) if at_s <= 7_777 / 20]
    assert near[-1] == 9_000


def test_what_short_successes_and_single_points_show_is_not_kept():
    series = MemorySeries(0.05)
    series.note(0.1, 5)
    assert course(series) is None
    series.note(0.2, 7)
    assert course(series, Outcome.SUCCEEDED, LONG_S / 2) is None
    assert course(series, Outcome.SUCCEEDED, LONG_S) == course(series) == MemoryCourse(100, [0.1, 0.2], [5, 7])


def test_a_moment_after_a_busy_stretch_does_not_lie_before_it():
    """A job that begins then is not charged for the stretch."""
    clock = RunningTime()
    busy_from = clock.tick()
    used_s = time.thread_time()
    while time.thread_time() - used_s < 4 * GAP_S:
        pass
    assert clock.now() - busy_from > 4 * GAP_S
    assert clock.now() <= clock.tick()


@pytest.mark.parametrize(
    "record",
    [
        Record("INFO", "shop", "hello"),
        Record("ERROR", "shop.parser", "failed\nTraceback (most recent call last):\n  …\nValueError: x"),
        Record("Level 15", "root", ""),
        Record("WARNING", "a", "with \x1f a separator"),
        Record("INFO", "shop", "sold\ntwice", '{"order":7}'),
        Record("ERROR", "shop", "sold\ntwice", "", "Traceback (most recent call last):\n  …\nValueError: x"),
    ],
)
def test_a_record_comes_out_as_it_went_in(record):
    line = output.encode_record(*record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert output.read_record(line[:-1]) == record
    assert output.count_in(line) == record.text.count("\n") + 1


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"\x1eforged", b"\x1eforged\x1ftwice", b"\x1eand\x1ffour\x1f\x1ftimes", b"\xff\xfe"]
)
def test_other_lines_are_no_records(line):
    assert output.read_record(line) is None


def test_the_middle_of_a_huge_record_is_left_out():
    record = output.read_record(output.encode_record("INFO", "x" * 1000, "a" * 50_000 + "the end")[:-1])
    assert record is not None
    assert len(record.logger) == output.MAX_NAME_CHARS
    assert len(record.message) == output.MAX_RECORD_CHARS + 3
    assert record.message.endswith("athe end")


def test_a_lone_surrogate_and_a_nul_are_kept_as_text_that_postgres_takes():
    line = output.encode_record("INFO", "shop", "\ud800 and \0")
    assert output.kept(line, 1) == "INFO shop: \\ud800 and \n"


@pytest.mark.parametrize(
    ("tail", "lines", "kept", "split"),
    [
        (b"", 0, "", (0, [])),
        (b"one\ntwo\n", 2, "one\ntwo\n", (0, ["one", "two"])),
        (b"one\nlast", 2, "one\nlast", (0, ["one", "last"])),
        (b"two\n", 2, "[1 earlier line is not kept]\ntwo\n", (1, ["two"])),
        (b"last\n", 2310, "[2,309 earlier lines are not kept]\nlast\n", (2309, ["last"])),
        (b"a\n\x1eINFO\x1fshop\x1f\x1f\x1fb\x1ec\n", 3, "a\nINFO shop: b\nc\n", (0, ["a", "INFO shop: b", "c"])),
    ],
)
def test_an_output_says_how_many_lines_are_not_kept(tail, lines, kept, split):
    assert output.kept(tail, lines) == kept
    assert output.split(kept) == split
