"""Holds what was seen against what was found. Pure: it takes data and gives data, so that seeded bugs can prove it.

Each rule gives its breaches. A rule that nothing breaks is no proof that nothing can: see `bound`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from outlive.lab.gameday.history import (
    LATE,
    WORKER_KILLS,
    ZYGOTE_KILLS,
    Answer,
    Attempt,
    Fault,
    Found,
    History,
    Kind,
)
from outlive.lab.gameday.options import Bounds

FINAL = frozenset({"succeeded", "failed", "cancelled"})
BY_OTHERS = frozenset({"timed_out", "out_of_memory", "cancelled"})
"""Outcomes that nothing in a game leads to."""

ZYGOTE_S = 30.0
CRASH_S = 60.0
"""How much later a kill may be recorded: its supervisor may be frozen, or the database away."""

RECONNECT_S = 10.0
ENOUGH = 5
"""So many workers that slept past their leases must have brought something to the fence."""

SLACK_S = 0.01
"""How exactly the database's clock is known."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that was broken, by whom, and how."""

    rule: str
    subject: str
    words: str


def check(history: History, found: Found, bounds: Bounds) -> list[Breach]:
    """Everything that is wrong."""
    lives = _lives(found)
    return [
        *_lost(history, found, lives),
        *_unexpected(history, found),
        *_refused(history),
        *_finished_twice(found, lives),
        *_effects(found, lives),
        *_begun_twice(found),
        *_counted(lives),
        *_blamed(history, found, lives),
        *_given_up(history, found),
        *_crashed(history, found),
        *_outcomes(found),
        *_untried(history, found),
        *_processes(history, bounds),
    ]


def bound(kills: int) -> str:
    """What it means that something never happened in so many kills: the rule of three."""
    return f"none in {kills:,} kills: less than {3 / kills:.2%} of kills, at 95 %" if kills else "no kill, no bound"


Lives = dict[UUID, list[Attempt]]


def _lives(found: Found) -> Lives:
    """Each job's attempts, in order."""
    lives: Lives = defaultdict(list)
    for attempt in sorted(found.attempts, key=lambda one: one.number):
        lives[attempt.job].append(attempt)
    return lives


def _acknowledged(history: History, found: Found) -> set[UUID]:
    """What clients were told is there, and what jobs wrote that they were told."""
    asked = {ask.id for ask in history.asks if ask.answer is Answer.OK}
    return asked | {effect.spawned for effect in found.effects if effect.spawned is not None}


def _lost(history: History, found: Found, lives: Lives) -> Iterator[Breach]:
    """V1 and V13: what was acknowledged is there, and in the end it is finished."""
    places: dict[UUID, str] = dict(found.places)
    for id in _acknowledged(history, found) - found.jobs.keys():
        yield Breach("lost", str(id), "it was acknowledged and is not there")
    for id in found.jobs:
        if any(attempt.state in FINAL for attempt in lives.get(id, ())):
            continue
        if id not in places:
            yield Breach("lost", str(id), "it is neither finished nor waiting, running or held")
        elif places[id] == "held":
            yield Breach("held", str(id), "it was put aside, and was not to blame")
        elif not history.cut_short:
            yield Breach(
                "unfinished", str(id), f"it is still {places[id]} {history.drain_s:.0f} s after the last fault"
            )


def _unexpected(history: History, found: Found) -> Iterator[Breach]:
    """Nobody runs what nobody asked for."""
    asked = {ask.id for ask in history.asks if ask.answer is not Answer.REFUSED}
    spawned = {effect.spawned for effect in found.effects}
    # A job that was killed after it asked for another one had no time to write that down.
    breeders = any(task == "breed" for task in found.jobs.values())
    for id, task in found.jobs.items():
        if id not in asked and id not in spawned and not (breeders and task == "note" and id.version == 5):
            yield Breach("unexpected", str(id), "nobody asked for it, or was told that it was refused")


def _refused(history: History) -> Iterator[Breach]:
    """A client is refused only while the database takes no writes."""
    for ask in history.asks:
        if ask.answer is Answer.REFUSED and not history.away(ask.at_s, ask.at_s, margin_s=RECONNECT_S):
            yield Breach("refused", str(ask.id), "its client was refused though the database could be written to")


def _finished_twice(found: Found, lives: Lives) -> Iterator[Breach]:
    """V2: one end, and it is the last of all."""
    places = Counter(id for id, _ in found.places)
    for id, attempts in lives.items():
        ends = [attempt for attempt in attempts if attempt.state in FINAL]
        if len(ends) > 1:
            yield Breach("finished twice", str(id), f"attempts {', '.join(str(one.number) for one in ends)} ended it")
        elif ends and (ends[0] is not attempts[-1] or places[id]):
            yield Breach("finished twice", str(id), f"it goes on after attempt {ends[0].number} has ended it")
        if ends and ends[0].state != "succeeded":
            yield Breach("ended badly", str(id), f"it is {ends[0].state} after attempt {ends[0].number}")
    for id, count in places.items():
        if count > 1:
            yield Breach("finished twice", str(id), f"it is in {count} places at once")


def _effects(found: Found, lives: Lives) -> Iterator[Breach]:
    """V3: what is done in the transaction that completes the job is done once, by the attempt that completed it."""
    done: dict[UUID, list[int]] = defaultdict(list)
    for effect in found.effects:
        done[effect.job].append(effect.token)
    for id, task in found.jobs.items():
        right = [attempt.token for attempt in lives.get(id, ()) if attempt.outcome == "succeeded"]
        tokens = done.get(id, [])
        for token in right:
            if token not in tokens:
                yield Breach("effect missing", str(id), f"attempt with token {token} succeeded and did nothing")
        if task in found.completing:
            if len(tokens) > 1:
                yield Breach("effect doubled", str(id), f"it was done {len(tokens)} times, under tokens {tokens}")
            for token in set(tokens) - set(right):
                yield Breach("stale effect", str(id), f"token {token} was not the one that ended it")


def _begun_twice(found: Found) -> Iterator[Breach]:
    for token, count in Counter(start.token for start in found.starts).items():
        if count > 1:
            yield Breach("begun twice", f"token {token}", f"the attempt was run {count} times")


def _counted(lives: Lives) -> Iterator[Breach]:
    """Each end counts once, and as what it was. A worker that was wrongly given up takes losses back, so those may
    be fewer; they are never more."""
    for id, attempts in lives.items():
        failures = crashes = losses = 0
        for n, one in enumerate(attempts, start=1):
            failures += one.outcome == "failed"
            crashes += one.outcome == "crashed"
            losses += one.outcome == "lost"
            if one.number != n:
                yield Breach("miscounted", str(id), f"attempt {n} is missing")
                break
            if (one.failures, one.crashes) != (failures, crashes) or one.losses > losses:
                seen = f"{one.failures} failures, {one.crashes} crashes and {one.losses} losses"
                yield Breach(
                    "miscounted", str(id), f"{seen} after attempt {n}, and not {failures}, {crashes}, {losses}"
                )
                break
            losses = one.losses
        tokens = [one.token for one in attempts]
        if tokens != sorted(tokens):
            yield Breach("miscounted", str(id), f"tokens that do not grow: {tokens}")


def _blamed(history: History, found: Found, lives: Lives) -> Iterator[Breach]:
    """A loss counts only if its worker, or the zygote, vanished without having been told to stop. (What else may not
    lead to a loss at all, as freezes, reloads, locks and the database's troubles, `_given_up` finds.)"""
    names = {worker.id: worker.name for worker in found.workers}
    for id, attempts in lives.items():
        before = 0
        for one in attempts:
            name = names.get(one.worker, "?") if one.worker else "?"
            if one.outcome == "lost" and one.losses > before and history.told(name, one.ended_s):
                words = f"the loss of attempt {one.number} counts, and its worker {name} had been told to stop"
                yield Breach("blamed", str(id), words)
            before = one.losses


def _untried(history: History, found: Found) -> Iterator[Breach]:
    """A game that never brought a late write to the fence proves nothing about it."""
    pauses = sum(fault.kind is Kind.PAUSE for fault in history.faults)
    taken = history.taken()
    if pauses >= ENOUGH and taken.isdisjoint(found.fenced):
        words = (
            f"{pauses} trees slept past their leases, others began {len(taken)} of their jobs again, none was fenced"
        )
        yield Breach("fence untried", "the game", words)


def _given_up(history: History, found: Found) -> Iterator[Breach]:
    """W4: nobody is given up who lives. Behind every loss there is a fault that explains it."""
    names = {worker.id: worker.name for worker in found.workers}
    faults = _by_worker(history.faults)
    for attempt in found.attempts:
        if attempt.outcome == "lost":
            name = names.get(attempt.worker, "?") if attempt.worker else "?"
            if not any(_explains(history, fault, attempt) for fault in faults[name]) and not (
                name in history.short_leases
                and history.away(attempt.started_s or 0.0, attempt.ended_s, margin_s=RECONNECT_S)
            ):
                words = f"attempt {attempt.number} was given up, and nothing was done to its worker {name}"
                yield Breach("given up wrongly", str(attempt.job), words)
    for worker in found.workers:
        if worker.state == "dead" and not any(
            fault.kind in WORKER_KILLS or fault.kind in LATE or history.unheard(fault) for fault in faults[worker.name]
        ):
            yield Breach("given up wrongly", worker.name, "it was declared dead and was not")


def _explains(history: History, fault: Fault, attempt: Attempt) -> bool:
    if fault.at_s > attempt.ended_s + SLACK_S:
        return False
    if fault.kind in ZYGOTE_KILLS:
        return attempt.ended_s - fault.at_s < ZYGOTE_S
    return fault.kind in WORKER_KILLS or fault.kind in LATE or history.unheard(fault)


def _crashed(history: History, found: Found) -> Iterator[Breach]:
    """Behind every crash there is a kill of just that process, and no kill is behind two crashes."""
    names = {worker.id: worker.name for worker in found.workers}
    kills = _by_worker(fault for fault in history.faults if fault.kind in (Kind.CHILD, Kind.SPARE))
    pids = {start.token: start.pid for start in found.starts}
    # Those that were killed before they could write down who runs them come last: any kill that is left explains one.
    crashes = sorted(
        (one for one in found.attempts if one.outcome == "crashed"), key=lambda one: (one.token not in pids, one.token)
    )
    for attempt in crashes:
        name = names.get(attempt.worker, "?") if attempt.worker else "?"
        pid = pids.get(attempt.token)
        behind = [
            fault
            for fault in kills[name]
            if -SLACK_S <= attempt.ended_s - fault.at_s < CRASH_S and (pid is None or fault.pid == pid)
        ]
        if behind and attempt.signal == "SIGKILL":
            kills[name].remove(behind[0])
        else:
            words = f"attempt {attempt.number} on {name} crashed ({attempt.signal}), and nobody killed it"
            yield Breach("crashed by itself", str(attempt.job), words)


def _by_worker(faults: Iterable[Fault]) -> dict[str, list[Fault]]:
    found: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        found[fault.worker].append(fault)
    return found


def _outcomes(found: Found) -> Iterator[Breach]:
    for attempt in found.attempts:
        if attempt.outcome in BY_OTHERS:
            yield Breach("ended badly", str(attempt.job), f"attempt {attempt.number} was {attempt.outcome}")


def _processes(history: History, bounds: Bounds) -> Iterator[Breach]:
    """V8, and workers that end by themselves though the database is there."""
    for words in history.left_behind:
        yield Breach("left behind", words, "this process was still there when all workers had gone")
    for fault in history.faults:
        if fault.kind is Kind.SUPERVISOR and (fault.orphans_gone_s or 0.0) > bounds.orphans_s:
            words = f"a child survived its supervisor by {fault.orphans_gone_s:.1f} s"
            yield Breach("left behind", fault.worker, words)
    for one in history.exits:
        if not history.away(one.at_s - RECONNECT_S, one.at_s):
            yield Breach("worker ended", one.worker, f"it ended by itself with exit code {one.code}")
    if history.drain_s > bounds.drain_s:
        words = f"it took {history.drain_s:.0f} s, and {bounds.drain_s:g} were allowed"
        yield Breach("drained late", "all jobs", words)
