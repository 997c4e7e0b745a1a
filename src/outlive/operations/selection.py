"""The jobs that match a filter: how many there are, and a page of them."""

from __future__ import annotations

import math
import time
from typing import NamedTuple
from uuid import UUID

from outlive import store
from outlive.humanize import counted, duration, few
from outlive.operations import Steps
from outlive.store import Found, JobFilter

TEXTS = ("task", "queue", "source", "worker", "text")
"""The parts of a filter that are as people write them."""
MOST_SEEN, MOST_SEEN_FOR_TEXT = 4000, 1500
"""How many jobs one statement looks at where time is short: some milliseconds."""
_LABELS = {"states": "state", "since_s": "since", "older_s": "older than", "text": "with the text", "ids": "jobs"}


def in_words(key: str, value: object) -> tuple[str, str]:
    """A part of a filter, or another choice that the audit has, in words: what it is called, and its value."""
    if key in ("since_s", "older_s") and isinstance(value, int | float):
        value = f"{duration(value)}{' ago' if key == 'since_s' else ''}"
    elif isinstance(value, list | tuple):
        value = few(value, 3 if key == "ids" else len(value))
    return _LABELS.get(key, key.replace("_", " ")), str(value)


class Count(NamedTuple):
    jobs: int
    more: bool
    """There are more: counting has ended early."""

    def __str__(self) -> str:
        return f"{'more than ' if self.more else ''}{counted(self.jobs, 'job')}"


def count(wanted: JobFilter, *, patience_s: float = math.inf) -> Steps[Count]:
    """How many jobs match. Counting ends after 10,000 jobs, or when the patience does."""
    jobs, past, began = 0, None, time.monotonic()
    while True:
        limit = store.MOST_COUNTED + 1 - jobs
        found: Found = yield store.find_jobs(wanted, past=past, limit=limit, counting=True)
        jobs, past = jobs + found.count, found.next
        if jobs > store.MOST_COUNTED:
            return Count(store.MOST_COUNTED, more=True)
        if past is None or time.monotonic() - began > patience_s:
            return Count(jobs, more=past is not None)


def page(wanted: JobFilter, *, limit: int, past: str | None = None, patience_s: float = math.inf) -> Steps[Found]:
    """The next jobs that match. Where few do, these are what is found when the patience ends."""
    ids: list[UUID] = []
    seen, began = 0, time.monotonic()
    most = MOST_SEEN if wanted.text is None else MOST_SEEN_FOR_TEXT
    while True:
        look = None if patience_s == math.inf else min(4 * max(limit, seen), most)
        found: Found = yield store.find_jobs(wanted, past=past, limit=limit - len(ids), look=look)
        ids += found.ids
        past, seen = found.next, found.seen
        if past is None or len(ids) >= limit or time.monotonic() - began > patience_s:
            return Found(ids, len(ids), seen, past, found.cut)
