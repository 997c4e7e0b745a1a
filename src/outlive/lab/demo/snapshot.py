"""What the database holds of the demo at one moment."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from outlive import db, store
from outlive.states import Outcome, State

Row = dict[str, Any]

_ENDED_BADLY = """
select a.token, j.task, j.source, j.args -> 'intake' ->> 'title' as title, a.attempt, a.outcome, a.error, a.state
from outlive.attempts a join outlive.jobs j on j.id = a.job_id
where a.outcome not in ('succeeded', 'released', 'cancelled') order by a.ended_at, a.token
"""
_UNFINISHED = """
select (select count(*) from outlive.waiting) + (select count(*) from outlive.running)
  + (select count(*) from outlive.held where why <> 'quarantined')
"""


@dataclass(frozen=True, slots=True)
class BadEnd:
    """An attempt that did not succeed, and the state of its job after it."""

    token: int
    task: str
    source: str
    title: str | None
    attempt: int
    outcome: Outcome
    error: str | None
    state: State

    @property
    def name(self) -> str:
        """A name of the job for people."""
        return " ".join(part for part in (self.task.rpartition(".")[2], self.source, self.title) if part)


@dataclass(frozen=True, slots=True)
class Snapshot:
    counts: dict[str, Counter[str]]
    """How many jobs of each task are in each state."""
    workers: list[Row]
    sources: list[Row]
    bad_ends: list[BadEnd]
    unfinished: int

    def states(self) -> Counter[str]:
        return sum(self.counts.values(), Counter[str]())

    def finished(self) -> int:
        """How many jobs have succeeded, failed, or are in quarantine."""
        states = self.states()
        return states[State.SUCCEEDED] + states[State.QUARANTINED] + states[State.FAILED]

    def worker(self, pid: int) -> Row | None:
        """The worker of a process, if it has registered."""
        return next((row for row in self.workers if row["pid"] == pid), None)

    def source(self, name: str) -> Row | None:
        return next((row for row in self.sources if row["name"] == name), None)


def take(connection: db.Connection) -> Snapshot:
    counts: dict[str, Counter[str]] = {}
    for row in db.run(connection, store.stats()):
        counts.setdefault(row["task"].rpartition(".")[2], Counter())[row["state"]] += row["jobs"]
    workers = db.run(connection, store.list_workers())
    workers.sort(key=lambda row: row["started_at"])
    bad_ends = [
        BadEnd(token, task, source, title, attempt, Outcome(outcome), error, State(state))
        for token, task, source, title, attempt, outcome, error, state in connection.execute(_ENDED_BADLY).fetchall()
    ]
    sources = db.run(connection, store.list_sources())
    return Snapshot(counts, workers, sources, bad_ends, count(connection, _UNFINISHED))


def count(connection: db.Connection, query: str) -> int:
    [(number,)] = connection.execute(query.encode()).fetchall()
    return int(number)
