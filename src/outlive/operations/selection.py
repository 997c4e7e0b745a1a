"""The jobs that match a filter, in words, and how many there are."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple

import msgspec

from outlive import store, validation
from outlive.humanize import EXACT, duration, few, number
from outlive.operations import Steps
from outlive.store import Found, JobFilter
from outlive.store.finding import LOOK

FEW = 100
"""So many jobs a count that is in a hurry looks at first, if each has to be checked: some 20 to 40 ms."""
TEXTS = ("task", "queue", "source", "worker", "text")
"""The parts of a filter that are as people write them."""
_DIGITS = re.compile(r"[0-9a-f]{4,32}")
_LABELS = {"states": "state", "since_s": "since", "older_s": "older than", "text": "with the text", "ids": "jobs"}


def times(given: Mapping[str, str | None], zone: tzinfo | None = None) -> Steps[dict[str, Any]]:
    """The parts of a filter by time, from what people wrote: since when, and before when. `zone` is that in which they
    read times; None: this machine's.
    """
    if all(one is None for one in given.values()):
        return {}
    now = datetime.fromtimestamp((yield store.clock()), UTC).astimezone(zone)
    check = validation.optional(functools.partial(validation.moment, zone=zone, now=now))
    return store.times(*(check(name, one) for name, one in given.items()))


def fixed(wanted: JobFilter) -> Steps[JobFilter]:
    """The filter with moments, to the second, in place of durations: it means the same jobs at any later time.

    One that says only since when ends now.
    """
    if not wanted.by_time:
        return wanted
    now = datetime.fromtimestamp((yield store.clock()), UTC)

    def ago(time_s: float) -> datetime:
        return (now - timedelta(seconds=time_s)).replace(microsecond=0)

    since = wanted.since if wanted.since_s is None else ago(wanted.since_s)
    before = wanted.before if wanted.older_s is None else ago(wanted.older_s)
    end = before or ago(-1)
    return msgspec.structs.replace(wanted, since=since, before=end, since_s=None, older_s=None)


def in_words(key: str, value: object) -> tuple[str, str | datetime]:
    """A part of a filter, or another choice that the audit has, in words: what it is called, and its value."""
    if key in ("since", "before") and isinstance(value, str):
        return key, datetime.fromisoformat(value)
    if key.endswith("_s") and isinstance(value, int | float):
        value = f"{duration(value)}{' ago' if key == 'since_s' else ''}"
    elif isinstance(value, list | tuple):
        value = few(value, 3 if key == "ids" else len(value)) or "all"
    elif isinstance(value, dict):
        value = msgspec.json.encode(value).decode()
    return _LABELS.get(key, key.removesuffix("_s").replace("_", " ")), "not set" if value is None else str(value)


def prefix(text: str | None) -> str | None:
    """The digits of an id, if that is what was searched for."""
    digits = (text or "").replace("-", "").lower()
    return digits if _DIGITS.fullmatch(digits) else None


class Count(NamedTuple):
    """How many jobs match: exactly, or about that many (estimated), or more than that (more)."""

    jobs: int
    more: bool = False
    estimated: bool = False

    def __str__(self) -> str:
        about = number(self.jobs, estimated=self.estimated)
        return f"{'more than ' if self.more else ''}{about} {'job' if self.jobs == 1 else 'jobs'}"


def count(wanted: JobFilter, *, patience_s: float = math.inf) -> Steps[Count]:
    """How many jobs match. Jobs of a state, task, queue or source are counted as everywhere else; counting others ends
    after 10,000 jobs, or when the patience does.
    """
    if wanted.by_lane:
        return count_in((yield store.count_jobs()), wanted)
    jobs, past, began = 0, None, time.monotonic()
    look = None if wanted.indexed or patience_s == math.inf else FEW
    while True:
        limit = EXACT + 1 - jobs
        found: Found = yield store.find_jobs(wanted, past=past, limit=limit, counting=True, look=look)
        jobs, past, look = jobs + found.count, found.next, look and min(2 * look, LOOK)
        if jobs > EXACT:
            return Count(EXACT, more=True)
        if past is None or time.monotonic() - began > patience_s:
            return Count(jobs, more=past is not None)


def count_in(counts: Sequence[Mapping[str, Any]], wanted: JobFilter) -> Count:
    """How many jobs match a filter by lane, by the counts of all jobs."""
    parts = {key: value for key in ("task", "queue", "source") if (value := getattr(wanted, key)) is not None}
    rows = [
        row
        for row in counts
        if row["state"] in (wanted.states or (row["state"],)) and all(row[key] == parts[key] for key in parts)
    ]
    return Count(sum(row["jobs"] for row in rows), estimated=any(row["estimated"] for row in rows))
