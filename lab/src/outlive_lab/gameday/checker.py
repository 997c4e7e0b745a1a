"""Compares what the game saw with what the database holds. It is pure, so that tests can seed bugs.

Each rule yields its breaches. A rule without breaches proves only a bound: see `bound`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from uuid import UUID

from outlive_lab.gameday import batches, dependencies, durable, innocents, keys, quiet, replay, schedules, sharing
from outlive_lab.gameday.facts import FINAL, Broken, Facts
from outlive_lab.gameday.history import (
    TAKEN_OVER,
    Answer,
    Ask,
    AskedBatch,
    Attempt,
    Fault,
    Found,
    History,
    Kind,
)
from outlive_lab.gameday.options import Bounds

CRASH_S = 60.0
"""How late a kill may be recorded: its supervisor may be frozen, or the database away."""
RECONNECT_S = 10.0
ENOUGH = 5
"""If so many workers were frozen past their leases, at least one late write must have reached the fence."""
SLACK_S = 0.01
"""How exactly the game knows the database's clock."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken rule, the job or worker that breaks it, and how."""

    rule: str
    subject: str
    words: str


Lives = dict[UUID, list[Attempt]]


def check(history: History, found: Found, bounds: Bounds) -> list[Breach]:
    """All breaches."""
    facts = Facts(history, found)
    lives = facts.lives
    broken = chain(
        _lost(facts),
        _unexpected(facts),
        _refused(history),
        _finished_twice(found, lives),
        _ended_badly(facts),
        _effects(found, lives),
        _begun_twice(facts),
        _counted(facts),
        _blamed(history, lives),
        _given_up(history, found),
        _crashed(facts),
        _untried(history, found),
        _processes(history, bounds),
        innocents.broken(facts),
        dependencies.broken(facts),
        batches.broken(facts),
        keys.broken(facts),
        schedules.broken(facts, bounds),
        durable.broken(facts),
        sharing.broken(facts),
        quiet.broken(facts, bounds),
        _illegal(found),
        ((f"verify: {what}", id, "`outlive verify` says so") for id, what in found.verified),
    )
    return [Breach(rule, str(subject), words) for rule, subject, words in broken]


def bound(kills: int) -> str:
    """The bound that a game without a breach proves: the rule of three."""
    return f"none in {kills:,} kills: less than {3 / kills:.2%} of kills, at 95 %" if kills else "no kill, no bound"


def _lost(facts: Facts) -> Broken:
    """Each job that was acknowledged, to a client or to another job, exists, and in the end it is finished, or is where
    its task or the jobs that it waits for have put it."""
    history, found = facts.history, facts.found
    acknowledged = {ask.id for ask in history.asks if ask.answer is Answer.OK}
    acknowledged |= {effect.spawned for effect in found.effects if effect.spawned is not None}
    for id in acknowledged - found.jobs.keys():
        yield "lost", id, "it was acknowledged and does not exist"
    places = dict(found.places)
    for id, task in found.jobs.items():
        if any(attempt.state in FINAL for attempt in facts.lives.get(id, ())):
            continue
        if id not in places:
            yield "lost", id, "it is neither finished nor waiting, running or held"
        elif places[id] == "dependent" or places[id] == found.fates.get(task):
            continue
        elif places[id] in ("blocked", "quarantined"):
            yield "held", id, f"it is {places[id]}, and no fault of its own explains that"
        elif not history.cut_short:
            yield "unfinished", id, f"it is still {places[id]} {history.drain_s:.0f} s after the last fault"


def _unexpected(facts: Facts) -> Broken:
    """Each job was enqueued by a client or a job."""
    history, found = facts.history, facts.found
    asked = {ask.id for ask in history.asks if ask.answer is not Answer.REFUSED}
    spawned = {effect.spawned for effect in found.effects}
    known = {batch.id for batch in history.batches}
    spawned |= {child for children in facts.gathered().values() for child in children}
    spawned |= {one.job for one in found.callbacks if one.batch in known} | {tick.job for tick in found.ticks}
    # A job that is killed just after it enqueued another one does not record it.
    breeders = any(task == "breed" for task in found.jobs.values())
    for id, task in found.jobs.items():
        if id not in asked and id not in spawned and not (breeders and task == "note" and id.version == 5):
            yield "unexpected", id, "no client enqueued it, or its client was refused"


def _refused(history: History) -> Broken:
    """A client is refused only while the database takes no writes."""
    asks: list[Ask | AskedBatch] = [*history.asks, *history.batches]
    for ask in asks:
        if ask.answer is Answer.REFUSED and not history.away(ask.at_s, ask.at_s, margin_s=RECONNECT_S):
            yield "refused", ask.id, "its client was refused although the database accepted writes"


def _finished_twice(found: Found, lives: Lives) -> Broken:
    """Each job ends once, and no attempt follows."""
    places = Counter(id for id, _ in found.places)
    for id, attempts in lives.items():
        ends = [attempt for attempt in attempts if attempt.state in FINAL]
        if len(ends) > 1:
            yield "finished twice", id, f"attempts {', '.join(str(one.number) for one in ends)} ended it"
        elif ends and (ends[0] is not attempts[-1] or places[id]):
            yield "finished twice", id, f"it goes on after attempt {ends[0].number} ended it"
    for id, count in places.items():
        if count > 1:
            yield "finished twice", id, f"it is in {count} places at once"


def _ended_badly(facts: Facts) -> Broken:
    """Each job ends as its task does, unless its batch or the jobs that it waits for have cancelled it."""
    for id in facts.lives:
        end = facts.end(id)
        if end is not None and not facts.ends_right(id, end.state):
            yield "ended badly", id, f"it is {end.state} after attempt {end.number}"


def _effects(found: Found, lives: Lives) -> Broken:
    """An effect in the transaction that completes the job happens once, by the attempt that completed it."""
    done: dict[UUID, list[int]] = defaultdict(list)
    for effect in found.effects:
        done[effect.job].append(effect.token)
    for id, task in found.jobs.items():
        right = {attempt.token for attempt in lives.get(id, ()) if attempt.outcome == "succeeded"}
        tokens = done[id]
        for token in right.difference(tokens):
            yield "effect missing", id, f"attempt with token {token} succeeded without its effect"
        if task in found.completing:
            if len(tokens) > 1:
                yield "effect doubled", id, f"it happened {len(tokens)} times, under tokens {tokens}"
            for token in set(tokens) - right:
                yield "stale effect", id, f"token {token} did not end the job"


def _begun_twice(facts: Facts) -> Broken:
    """An attempt runs once. If it shares its process, it may begin again in another one: see `sharing`."""
    starts = facts.found.starts
    for (token, _), count in Counter((one.token, one.pid if facts.shares(one.job) else 0) for one in starts).items():
        if count > 1:
            yield "begun twice", f"token {token}", f"the attempt ran {count} times"


def _counted(facts: Facts) -> Broken:
    """Each end counts once, under its outcome. A worker that was declared dead by mistake takes losses back, so there
    may be fewer losses, but never more. A new step of a durable job takes all back, and its waits are attempts too."""
    durable = {one.job for one in facts.found.kept}
    for id, attempts in facts.lives.items():
        failures = crashes = losses = 0
        for n, one in enumerate(attempts, start=1):
            failures += one.outcome in ("failed", "timed_out")
            crashes += one.outcome == "crashed"
            losses += one.outcome == "lost"
            if id in durable:
                failures, crashes = min(failures, one.failures), min(crashes, one.crashes)
            elif one.number != n:
                yield "miscounted", id, f"attempt {n} is missing"
                break
            if (one.failures, one.crashes) != (failures, crashes) or one.losses > losses:
                seen = f"{one.failures} failures, {one.crashes} crashes and {one.losses} losses"
                yield "miscounted", id, f"{seen} after attempt {n} instead of {failures}, {crashes}, {losses}"
                break
            losses = one.losses
        tokens = [one.token for one in attempts]
        if tokens != sorted(tokens):
            yield "miscounted", id, f"its tokens do not grow: {tokens}"


def _blamed(history: History, lives: Lives) -> Broken:
    """A loss counts only if its worker died before it was told to stop. `_given_up` finds losses after other faults:
    deaths of zygotes, freezes, reloads, locks and outages must cause none."""
    for id, attempts in lives.items():
        before = 0
        for one in attempts:
            told = history.told(one.worker, one.ended_s)
            if one.outcome == "lost" and one.losses > before and told:
                words = f"the loss of attempt {one.number} counts, although its worker {one.worker} was told to stop"
                yield "blamed", id, words
            before = one.losses


def _untried(history: History, found: Found) -> Broken:
    """If no late write reached the fence, the game proves nothing about it."""
    pauses = sum(fault.kind is Kind.PAUSE for fault in history.faults)
    taken = history.taken()
    if pauses >= ENOUGH and taken.isdisjoint(found.fenced):
        frozen = f"{pauses} trees were frozen past their leases"
        yield "fence untried", "the game", f"{frozen}, {len(taken)} of their jobs began again, no write was fenced"


def _given_up(history: History, found: Found) -> Broken:
    """No living worker is declared dead: a fault explains each loss. A short lease may also run out in an outage, or
    while all workers are frozen."""
    faults = _by_worker(history.faults)
    for one in found.attempts:
        if one.outcome != "lost" or any(_explains(fault, one) for fault in faults[one.worker]):
            continue
        span = (one.started_s or 0.0, one.ended_s)
        out_of_reach = history.away(*span, margin_s=RECONNECT_S) or history.frozen(*span, margin_s=RECONNECT_S)
        if one.worker not in history.short_leases or not out_of_reach:
            words = f"attempt {one.number} was declared lost without a fault of its worker {one.worker}"
            yield "given up wrongly", one.job, words
    ended = {
        one.worker for one in history.exits
    }  # By itself, for example because it began while the database was away.
    for name, state in found.workers.items():
        if state == "dead" and name not in ended and not any(fault.kind in TAKEN_OVER for fault in faults[name]):
            yield "given up wrongly", name, "it was declared dead while it lived"


def _explains(fault: Fault, attempt: Attempt) -> bool:
    return fault.kind in TAKEN_OVER and fault.at_s <= attempt.ended_s + SLACK_S


def _crashed(facts: Facts) -> Broken:
    """A kill of the same process explains each crash, and no kill explains two. Some jobs kill their own process, and
    those that share one are judged in `sharing`."""
    history, found = facts.history, facts.found
    kills = _by_worker(fault for fault in history.faults if fault.kind in (Kind.CHILD, Kind.SPARE))
    pids = {start.token: start.pid for start in found.starts}
    killers = {id for id, task in found.jobs.items() if found.fates.get(task) == "quarantined" or facts.shares(id)}
    crashes = [one for one in found.attempts if one.outcome == "crashed" and one.job not in killers]
    # Attempts killed before they wrote their pid come last: any kill that is left explains one of them.
    for one in sorted(crashes, key=lambda one: (one.token not in pids, one.token)):
        pid = pids.get(one.token)
        behind = [
            fault
            for fault in kills[one.worker]
            if -SLACK_S <= one.ended_s - fault.at_s < CRASH_S and pid in (None, fault.pid)
        ]
        if behind and one.signal == "SIGKILL":
            kills[one.worker].remove(behind[0])
        else:
            words = f"attempt {one.number} on {one.worker} crashed without a kill: {one.error}"
            yield "crashed by itself", one.job, words


def _illegal(found: Found) -> Broken:
    """No step of the history breaks a rule of the models."""
    for one in replay.Replay(found.lines).run():
        yield f"step: {one.rule}", one.subject, f"step {one.n}: {one.words}"


def _by_worker(faults: Iterable[Fault]) -> dict[str, list[Fault]]:
    found: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        found[fault.worker].append(fault)
    return found


def _processes(history: History, bounds: Bounds) -> Broken:
    """No process survives its worker, and no worker ends by itself while the database is there."""
    for process in history.left_behind:
        yield "left behind", process, "this process was still there when all workers were gone"
    for fault in history.faults:
        if fault.kind is Kind.SUPERVISOR and (fault.orphans_gone_s or 0.0) > bounds.orphans_s:
            yield "left behind", fault.worker, f"a child survived its supervisor by {fault.orphans_gone_s:.1f} s"
    for one in history.exits:
        if not history.away(one.at_s - RECONNECT_S, one.at_s):
            yield "worker ended", one.worker, f"it ended by itself with exit code {one.code}"
    if history.drain_s > bounds.drain_s:
        yield "drained late", "all jobs", f"it took {history.drain_s:.0f} s, and {bounds.drain_s:g} s are allowed"
