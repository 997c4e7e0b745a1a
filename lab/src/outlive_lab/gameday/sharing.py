"""The rules of jobs that share a process: none pays for its neighbour, and what is one's own stays so.

When a shared process dies, its jobs begin again in the same attempt, and nothing is charged. So an attempt may have
begun in several processes, one after the other, and the game must know why each of them died.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from outlive_lab.gameday.facts import Broken, Facts
from outlive_lab.gameday.history import Attempt, Kind, Start

RECONNECT_S = 10.0
LATE_S = 60.0
"""How long after a death its supervisor, which may be frozen, does something about it."""
SLACK_S = 0.01


def broken(facts: Facts) -> Broken:
    yield from _charged(facts)
    yield from _begun_again(facts)
    for id in dict.fromkeys(facts.found.mixed):
        yield "mixed up", id, "its result or its output is another job's"


def _charged(facts: Facts) -> Broken:
    """No innocent job crashes. It fails only while the database, which it writes to, is away, or after the machine was
    frozen for longer than it waits for an answer."""
    for id, attempts in facts.lives.items():
        if not facts.shares(id) or facts.harms(id):
            continue
        for one in attempts:
            span = (one.started_s or one.ended_s, one.ended_s)
            if one.outcome == "crashed" and not _killed_alone(facts, one):
                yield "innocent charged", id, f"attempt {one.number} crashed ({one.signal}), and it did nothing"
            excused = any(ask(*span, margin_s=RECONNECT_S) for ask in (facts.history.away, facts.history.frozen))
            if one.outcome == "failed" and not excused:
                yield "innocent charged", id, f"attempt {one.number} failed while the database was there"


def _killed_alone(facts: Facts, crash: Attempt) -> bool:
    """Whether the game took the process that it had for itself for a spare one, before it had begun there."""
    begun = {one.pid for one in facts.found.starts if crash.ended_s - LATE_S < one.at_s < crash.ended_s}
    return any(
        fault.kind is Kind.SPARE
        and fault.worker == crash.worker
        and -SLACK_S <= crash.ended_s - fault.at_s < LATE_S
        and fault.pid not in begun
        for fault in facts.history.faults
    )


def again(facts: Facts) -> Iterator[tuple[Start, Start]]:
    """Each begin of an attempt in another process, and the one before it."""
    starts: dict[int, list[Start]] = defaultdict(list)
    for one in sorted(facts.found.starts, key=lambda one: one.at_s):
        if facts.shares(one.job):
            starts[one.token].append(one)
    for found in starts.values():
        yield from pairwise(found)


def _begun_again(facts: Facts) -> Broken:
    """An attempt begins again only if its process was killed: by the game, by a neighbour, by itself, or by its worker,
    because another job in it may run elsewhere.

    A stranger that eats the memory of a zygote's group names no process: the kernel may choose a child.
    """
    faults, given_up = facts.history.faults, facts.history.given_up
    workers = {one.token: one.worker for one in facts.found.attempts}
    harmful = [one for one in facts.found.starts if facts.harms(one.job)]
    for before, later in again(facts):
        killed = any(
            fault.at_s <= later.at_s + SLACK_S
            and (
                (fault.kind in (Kind.STOP, Kind.OOM) and fault.worker == workers.get(before.token, fault.worker))
                or (fault.kind in (Kind.SHARED, Kind.SPARE) and fault.pid == before.pid)
            )
            for fault in faults
            if fault.at_s >= before.at_s - SLACK_S
        )
        harmed = any(one.pid == before.pid and abs(one.at_s - before.at_s) < LATE_S for one in harmful)
        if not killed and not harmed and before.pid not in given_up:
            words = f"its attempt with token {later.token} began in process {before.pid}, which was not killed, and in"
            yield "begun twice", before.job, f"{words} {later.pid}"
