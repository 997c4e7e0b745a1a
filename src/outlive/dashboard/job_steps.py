"""The steps of a job on its page: when each was taken, for how long, in which attempt, and by whom it was supplied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from outlive.dashboard import charts
from outlive.dashboard.rendering import seconds
from outlive.model import Attempt
from outlive.states import State

SHOWN = 200
RERUN_FROM = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.QUARANTINED, State.RETRYABLE)
"""The states in which a job may begin again at a step (`outlive.rerun`)."""
_KINDS = {"sleep": "sleep", "receive": "signal", "gather": "jobs", "once": "once"}
"""What the steps are that outlive names itself. All others are functions."""
_DIED_IN = re.compile(r" in the step (.+?)(?:: |$)")
"""Behind the steps may stand what the job has said last."""


def kind_of(name: str) -> str:
    return _KINDS.get(re.split("[:#]", name, maxsplit=1)[0], "step")


def died_in(attempts: Sequence[Attempt], kept: Sequence[Mapping[str, Any]]) -> list[str]:
    """The steps in which the process of the last attempt died, without those that were supplied since."""
    found = _DIED_IN.search(attempts[-1].error or "") if attempts else None
    known = {one["name"] for one in kept}
    return [name for name in found[1].split(", ") if name not in known] if found else []


def rows(job: Mapping[str, Any], kept: Sequence[Mapping[str, Any]], under_way: str) -> list[dict[str, Any]]:
    """The kept steps, those under way and the wait of a suspended job, each with its bar. The scale goes from the first
    one to the end, to now, or to the end of the wait.
    """
    begins = [*_begins(kept)]
    last = max((one["at"] for one in kept), default=None)
    by_name = {one["name"]: one for one in kept}
    if job["waits_in"]:
        under_way, began, now = job["waits_in"], job["held_since"], job["waits_until"] or job["seen_at"]
    else:
        began, now = job["locked_at"], job["heartbeat_at"]
    # The step of `gather` is kept when it begins.
    names = [name for name in under_way.split(", ") if name not in by_name or kind_of(name) == "jobs"]
    spans = [(one, begin, one["at"]) for one, begin in zip(kept, begins, strict=True) if one["name"] not in names]
    if under_way and began:
        since = began if job["waits_in"] else max(began, last or began)
        until = max(now or since, since)
        new = {"attempt": job["attempt"], "state": job["state"]}
        spans += [({"name": name, **by_name.get(name, {}), **new}, since, until) for name in names]
    if not spans:
        return []
    first, end = min(begin for _, begin, _ in spans), max(end for _, _, end in spans)
    whole = max(end - first, timedelta(milliseconds=1))
    return [_row(one, (begin - first) / whole, (until - first) / whole) for one, begin, until in spans]


def _begins(kept: Sequence[Mapping[str, Any]]) -> Iterator[datetime]:
    """A wait does not say how long it took: it began when the step before it was kept."""
    before: datetime | None = None
    for one in kept:
        if one["took_s"] is not None:
            yield one["at"] - timedelta(seconds=one["took_s"])
        else:
            yield before if before and kind_of(one["name"]) in ("sleep", "signal", "jobs") else one["at"]
        before = one["at"]


def _signal(step: str) -> str:
    """The signal of a step such as `receive:packed#2`."""
    return re.sub(r"#\d+$", "", step.partition(":")[2])


def _row(one: Mapping[str, Any], begin: float, end: float) -> dict[str, Any]:
    kept = "at" in one
    state = one.get("state") or ("released" if one["supplied_by"] else "succeeded")
    return {
        "name": one["name"],
        "kind": kind_of(one["name"]),
        "attempt": one["attempt"],
        "took": seconds(one["took_s"]) if kept else "",
        "at": one["at"] if kept else None,
        "supplied_by": one["supplied_by"] if kept else None,
        "value_bytes": one["value_bytes"] if kept else None,
        "state": state,
        "ended": "state" not in one,
        "signal": None if kept or kind_of(one["name"]) != "signal" else _signal(one["name"]),
        "bar": charts.bar(state, begin, end),
    }
