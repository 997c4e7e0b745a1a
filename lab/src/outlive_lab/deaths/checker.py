"""Compares what workers and clients have seen with what the tables hold. It shares no code with outlive.

Each rule yields its breaches: the name of the rule, the job or worker that breaks it, and how.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import psycopg

from outlive_lab.deaths.history import History, Life
from outlive_lab.deaths.plan import CONFIG, MAX_CRASHES, MAX_LOSSES, SILENT, Kind

Broken = Iterator[tuple[str, object, str]]
FINAL = {"succeeded", "failed", "cancelled"}
CONVICTS = {Kind.CRASHER, Kind.SLAYER, Kind.KILLER}
SLACK_S = 0.05
IN_TIME_S = {"by its lock": 30.0, "by its silence": 35.0, "around a crash of the server": 60.0}
"""How long each death may take to be noticed, apart from the time in which the machine had no time for this."""
PROOF_S = 0.5
"""For how long a lock must be missing."""

EMPTY = (
    *("waiting", "running", "keyed_jobs", "key_turns", "end_checks", "liveness", "watchers", "sleepers", "expiring"),
    *("requests", "signals", "awaited"),
)
LEFT = {
    **{name: f"select count(*) from outlive.{name}" for name in EMPTY},  # noqa: S608
    "held": "select count(*) from outlive.held where why <> 'quarantined'",
    "dedupe_keys": "select count(*) from outlive.dedupe_keys where id not in (select id from outlive.held)",
    "workers that seem alive": "select count(*) from outlive.workers where state not in ('dead', 'stopped')",
    "advisory locks": """select count(*) from pg_locks where locktype = 'advisory'
        and database = (select oid from pg_database where datname = current_database())""",
    "open transactions": """select count(*) from pg_stat_activity where datname = current_database()
        and pid <> pg_backend_pid() and backend_type = 'client backend' and state <> 'idle'""",
}


class Attempt(NamedTuple):
    job: UUID
    number: int
    token: int
    worker: UUID | None
    outcome: str
    state: str
    loss: str | None
    losses: int
    began_s: float
    ended_s: float


class Tables:
    """What is in the database after a round."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        def rows(text: str) -> list[Any]:
            return connection.execute(text.encode()).fetchall()

        self.jobs = {id: Kind(task) for id, task in rows("select id, task from outlive.jobs")}
        self.attempts: dict[UUID, list[Attempt]] = defaultdict(list)
        for row in rows(
            """select job_id, attempt, token, worker, outcome, state, loss, losses,
                 coalesce(extract(epoch from started_at), 0)::float8, extract(epoch from ended_at)::float8
               from outlive.attempts order by job_id, attempt"""
        ):
            self.attempts[row[0]].append(Attempt(*row))
        self.quarantined = {
            id: (losses, since, details)
            for id, losses, since, details in rows(
                """select id, losses, extract(epoch from since)::float8, details from outlive.held
                   where why = 'quarantined'"""
            )
        }
        self.workers = {
            id: (state, at, told)
            for id, state, at, told in rows(
                """select id, state, extract(epoch from died_at)::float8, stop_requested_at is not null
                   from outlive.workers"""
            )
        }
        self.effects = Counter(job for (job,) in rows("select job from outlive_deaths.effects"))
        self.done = {id for (id,) in rows("select id from outlive.batches where done_at is not null")}
        self.left = {name: rows(text)[0][0] for name, text in LEFT.items()}
        self.charged_deaths = sorted(
            (at, id) for id, (state, at, told) in self.workers.items() if state == "dead" and not told
        )

    def deaths_elsewhere(self, since_s: float, until_s: float, except_of: set[UUID | None]) -> int:
        found = self.charged_deaths
        some = found[bisect_left(found, since_s, key=lambda one: one[0]) :]
        return sum(id not in except_of for _, id in some[: bisect_right(some, until_s, key=lambda one: one[0])])


def check(history: History, tables: Tables) -> list[tuple[str, str, str]]:
    rules = (_lost, _twice, _ends, _blame, _convictions, _early, _deaths, _left)
    broken = [one for rule in rules for one in rule(history, tables)]
    return [*history.wrong, *((rule, str(subject), words) for rule, subject, words in broken)]


def _lost(history: History, tables: Tables) -> Broken:
    """What was acknowledged exists and ends; what was rolled back does not; and nothing else exists."""
    spawned = {uuid5(id, "spawned") for id, ask in history.asks.items() if ask.kind is Kind.SPAWNER}
    for id, ask in history.asks.items():
        if ask.must and id not in tables.jobs:
            yield "lost", id, "it was acknowledged and does not exist"
        if ask.must is False and id in tables.jobs:
            yield "made in vain", id, "its transaction failed, or another job has its key, and it exists"
        first = tables.attempts.get(ask.instead_of) if ask.instead_of else None
        if first and id in tables.jobs and not (first[-1].state in FINAL and first[-1].ended_s <= ask.answered_s):
            yield "made twice", id, f"it has the dedupe key of {ask.instead_of}, which had not ended"
    for id in tables.jobs.keys() - history.asks.keys() - spawned:
        yield "made in vain", id, "no client asked for it"
    for id, kind in tables.jobs.items():
        last = tables.attempts[id][-1] if tables.attempts.get(id) else None
        if id in tables.quarantined:
            continue
        if last is None or last.state not in FINAL:
            yield "lost", id, f"it did not end: {last}"
        elif last.state != ("failed" if kind is Kind.FATAL else "succeeded") or kind in CONVICTS:
            yield "ended badly", id, f"{kind}: {last.state}"
    for batch, called in history.batches.items():
        if batch not in tables.done or called not in tables.jobs:
            yield "lost", batch, "the batch is not done, or its callback was not enqueued"


def _twice(history: History, tables: Tables) -> Broken:
    """Each job ends once, and has its effect once."""
    for id, attempts in tables.attempts.items():
        ends = [one for one in attempts if one.state in FINAL]
        if len(ends) > 1 or (ends and (ends[0] is not attempts[-1] or id in tables.quarantined)):
            yield "ended twice", id, f"{attempts}"
        effects = tables.effects.pop(id, 0)
        if effects > 1 or (effects and not (ends and ends[0].state == "succeeded")):
            yield "ended twice", id, f"{effects} effects: {attempts}"
        if not effects and ends and tables.jobs[id] is Kind.EFFECT:
            yield "ended badly", id, "it has succeeded, and its effect is missing"
    for id in tables.effects:
        yield "ended twice", id, "it has an effect and no attempt"


def _ends(history: History, tables: Tables) -> Broken:
    """Each attempt ended as its own worker said, or was taken from it. What the worker was told is there."""
    accepted = {token: one.accepted for token, one in history.tries.items() if one.accepted is not None}
    for one in (one for attempts in tables.attempts.values() for one in attempts):
        seen = history.tries.get(one.token)
        if (was := accepted.pop(one.token, None)) is not None and was != one.outcome:
            yield "stale write accepted", one.job, f"its worker was told that it {was}: {one}"
        if seen is not None and (seen.job, seen.worker) != (one.job, one.worker):
            yield "ended by another", one.job, f"{one}, and not {seen}"
        if one.outcome in ("lost", "released"):
            continue
        if seen is None or one.outcome not in seen.sent:
            yield "ended by another", one.job, f"its worker never said so: {one}"
    for token in accepted:
        yield "lost", history.tries[token].job, f"the end of attempt {token} was acknowledged and is missing"


def _blame(history: History, tables: Tables) -> Broken:
    """A loss is charged for the death of a worker under the job's code, and for nothing else."""
    for id, attempts in tables.attempts.items():
        charged = sum(one.outcome == "lost" and one.loss != "taken back" for one in attempts)
        if attempts[-1].losses > charged:
            yield "wrong blame", id, f"{attempts[-1].losses} losses for {charged} deaths"
        for one in attempts:
            seen, life = history.tries.get(one.token), history.lives[one.worker] if one.worker else None
            if seen is None or life is None or one.outcome in seen.sent:
                continue
            free = life.told or not seen.begun
            if one.outcome == "lost" and life.told:
                yield "wrong blame", id, f"its worker had told that it stops: {one}"
            if one.outcome == "lost" and not seen.begun and one.number == 1 and not life.unsure:
                yield "wrong blame", id, f"its code had not begun: {one}"
            if one.outcome == "released" and not free and not life.unsure and tables.workers[life.id][0] == "dead":
                yield "wrong blame", id, f"a death under its code is not counted: {one}"
            if one.loss == "taken back" and life.died_s is not None and not life.declared:
                yield "wrong blame", id, f"its worker was dead, and the loss is taken back: {one}"


def _convictions(history: History, tables: Tables) -> Broken:
    """A job is quarantined only for its own crashes, for being a slayer, or by the rules about losses; in the calm only
    the killer, with proof."""
    for id, (losses, since_s, details) in tables.quarantined.items():
        kind, attempts = tables.jobs[id], tables.attempts[id]
        crashes = sum(one.outcome == "crashed" for one in attempts)
        lost = [one for one in attempts if one.outcome == "lost" and one.loss != "taken back"][-losses:]
        if (kind is Kind.CRASHER and crashes == MAX_CRASHES) or (kind is Kind.SLAYER and lost):
            continue
        alone = sum(one.loss == "alone" for one in lost)
        since = min((one.began_s for one in lost), default=0.0)
        others = tables.deaths_elsewhere(since, since_s, {one.worker for one in attempts if one.outcome == "lost"})
        proven = alone >= 2 and alone > 2 * others
        guessed = losses >= 4 * MAX_LOSSES or (losses >= 2 * MAX_LOSSES and others == 0)
        if kind is Kind.KILLER:
            right = alone == max(2, 2 * others + 1) and ": proven" in details
        else:
            right = (proven or guessed) and since_s < history.calm_s
        if not right:
            yield "wrong blame", id, f"{kind}: quarantined after {losses} losses, {alone} alone, {others} elsewhere"


def _early(history: History, tables: Tables) -> Broken:
    """No attempt is taken from a worker that lives and shows it, before its lease ends."""
    for one in (one for attempts in tables.attempts.values() for one in attempts if one.outcome == "lost"):
        life, seen = history.lives.get(one.worker) if one.worker else None, history.tries.get(one.token)
        leased_s = max(one.began_s, seen.renewed_s if seen else 0.0)
        expired = one.ended_s >= leased_s + CONFIG.lease_s - SLACK_S
        if life is None or not (expired or _may_be_dead(life, one.ended_s)):
            yield "freed too early", one.job, f"{one}: {life}"


def _may_be_dead(life: Life, at_s: float) -> bool:
    """Whether others may take this worker for dead at this time."""
    silent = at_s >= life.signed_s + CONFIG.dead_s - SLACK_S
    killed = life.died_s is not None and life.fate not in SILENT and at_s >= life.died_s - SLACK_S
    return silent or killed or any(start + PROOF_S <= at_s <= end + 1 + SLACK_S for start, end in life.cuts)


def _deaths(history: History, tables: Tables) -> Broken:
    """Each death is noticed in time, and only the dead are declared dead."""
    for life in history.lives.values():
        state, died_at, _ = tables.workers.get(life.id, ("missing", None, False))
        if died_at is not None and not _may_be_dead(life, died_at):
            yield "declared dead while it lived", life.id, f"{life}, declared at {died_at}"
        if life.died_s is not None and died_at is None:
            yield "not declared dead", life.id, f"it is {state}: {life}"
    for how, took_s in noticed(history, tables).items():
        if took_s and took_s[-1] > IN_TIME_S[how] + history.stood_s:
            yield "declared dead too late", how, f"{took_s[-1]:.1f} s"


def noticed(history: History, tables: Tables) -> dict[str, list[float]]:
    """How long each death took to be noticed, by how it can be, sorted."""
    found: dict[str, list[float]] = {how: [] for how in IN_TIME_S}
    for life in history.lives.values():
        _, died_at, _ = tables.workers.get(life.id, ("", None, False))
        if life.died_s is None or died_at is None:
            continue
        if history.hit_by_outage(life.died_s, died_at):
            how = "around a crash of the server"
        else:
            how = "by its silence" if life.fate in SILENT else "by its lock"
        found[how].append(max(0.0, died_at - life.died_s))
    return {how: sorted(some) for how, some in found.items()}


def _left(_: History, tables: Tables) -> Broken:
    for name, count in tables.left.items():
        if count:
            yield "left over", name, f"{count}"
