"""The memory of a job over time, in few points."""

import msgspec

from outlive.model import MemoryCourse
from outlive.states import Outcome
from outlive.worker.limits.memory import LONG_S, MOST_POINTS, MemorySeries


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
