"""The rules of durable jobs: no step runs again once it is kept, no signal and no effect of `once` is lost or doubled.

`wakes` tells how long jobs slept on when their waits were over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from outlive_lab.gameday.facts import Broken, Facts
from outlive_lab.gameday.history import Mark

RECEIVE = "receive:"
KEPT_S = 0.1
"""How long after its time a step is committed at the latest, if nothing has held it up."""


@dataclass(frozen=True, slots=True)
class Wake:
    """A wait that was over, and when its job began again."""

    job: UUID
    over_s: float
    begun_s: float


def broken(facts: Facts) -> Broken:
    yield from _taken(facts)
    yield from _changed(facts)
    yield from _once(facts)
    yield from _signals(facts)


def _taken(facts: Facts) -> Broken:
    """No attempt that begins when a step is kept runs its code. One that began earlier may be in the middle of it."""
    known = {(one.job, one.step): one.at_s + KEPT_S for one in facts.found.kept}
    for one in _marks(facts, "passed"):  # It was kept before.
        known[one.job, one.step] = min(one.at_s, known.get((one.job, one.step), one.at_s))
    begun = facts.stretches()
    again = {(one.token, one.pid): one.at_s for one in facts.found.starts if facts.shares(one.job)}
    times = Counter((one.job, one.step, one.token, one.pid) for one in _marks(facts, "taken"))
    for (job, step, token, pid), count in times.items():
        if again.get((token, pid), begun.get(token, 0.0)) > known.get((job, step), float("inf")):
            yield "step taken again", job, f"{step} ran under token {token}, which began when it was kept"
        elif count > 1:
            yield "step taken again", job, f"{step} ran {count} times under token {token}"


def _changed(facts: Facts) -> Broken:
    """All attempts go on from the same value. A gather returns what its jobs return."""
    right = {(one.job, one.step): one.value for one in facts.found.kept}
    right |= {(one.job, one.step): one.value for one in _marks(facts, "waits") if one.step == "gather"}
    for one in _marks(facts, "passed"):
        if (one.job, one.step) not in right:
            yield "step lost", one.job, f"it went on after {one.step}, which is not kept"
        elif one.value != right[one.job, one.step]:
            yield "step changed", one.job, f"{one.step} was {one.value}, and is {right[one.job, one.step]}"
    for job, children in facts.gathered().items():
        ends = [facts.end(child) for child in children]
        passed = [one.at_s for one in _marks(facts, "passed") if (one.job, one.step) == (job, "gather")]
        if passed and any(end is None or end.ended_s > min(passed) for end in ends):
            yield "begun too early", job, "it went on before all jobs that it gathers had ended"


def _once(facts: Facts) -> Broken:
    made = Counter(facts.found.ledger)
    for job, task in facts.found.jobs.items():
        end = facts.end(job)
        if made[job] > 1:
            yield "once doubled", job, f"its effect under once was made {made[job]} times"
        elif task == "endure" and end is not None and end.state == "succeeded" and not made[job]:
            yield "once lost", job, "it succeeded without its effect under once"


def _signals(facts: Facts) -> Broken:
    """Each signal whose transaction has committed is received once, and no other one is."""
    received: dict[UUID, list[object]] = defaultdict(list)
    for one in facts.found.kept:
        if one.step.startswith(RECEIVE):
            received[one.job].append(one.value)
    sent: dict[UUID, list[object]] = defaultdict(list)
    for signal in facts.found.sent:
        sent[signal.job].append(signal.value)
    for job in received.keys() | sent.keys():
        for value, count in Counter(received[job]).items():
            if value not in sent[job]:
                yield "signal from nowhere", job, f"it received {value}, and no such signal was committed"
            elif count > 1:
                yield "signal doubled", job, f"it received {value} {count} times"
        if facts.end(job) is not None:
            for value in set(sent[job]).difference(received[job]):
                yield "signal lost", job, f"it has ended, and did not receive {value}"


def wakes(facts: Facts) -> Iterator[Wake]:
    """The waits in which a job was suspended, and then begun again.

    A stretch of a job that neither has an end in the database nor went on was suspended.
    """
    ended = {one.token for one in facts.found.attempts}
    went_on = {(one.token, one.step) for one in _marks(facts, "passed")}
    begun: dict[UUID, list[tuple[int, float]]] = defaultdict(list)
    jobs = {one.token: one.job for one in facts.found.starts}
    jobs |= {one.token: one.job for one in facts.found.attempts}
    for token, at_s in sorted(facts.stretches().items()):
        begun[jobs[token]].append((token, at_s))
    kept = {(one.job, one.step): one for one in facts.found.kept}
    sent = {one.value: one.at_s for one in facts.found.sent}
    children = facts.gathered()
    waits = {(one.token, one.step): one for one in _marks(facts, "waits")}  # The last one, if it began again meanwhile.
    for mark in waits.values():
        later = [at_s for token, at_s in begun[mark.job] if token > mark.token]
        if mark.token in ended or (mark.token, mark.step) in went_on or not later:
            continue
        over_s = mark.at_s
        if mark.step == "sleep" and isinstance(mark.value, float):
            over_s += mark.value
        elif mark.step == "gather":
            ends = [facts.end(child) for child in children.get(mark.job, ())]
            over_s = max([over_s, *(end.ended_s for end in ends if end is not None)])
        elif received := kept.get((mark.job, mark.step)):
            over_s = max(over_s, sent.get(str(received.value), over_s))
        yield Wake(mark.job, over_s, later[0])


def _marks(facts: Facts, kind: str) -> Iterator[Mark]:
    return (one for one in facts.found.marks if one.kind == kind)
