"""What the database holds of the demo at one moment."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from outlive import db, store
from outlive.states import State

Row = dict[str, Any]

_BAD_ENDS = """
select a.token, concat_ws(' ', substring(j.task from '[^.]+$'), nullif(j.source, ''), j.args -> 'intake' ->> 'title')
  as job, a.attempt, a.outcome, a.error, a.state
from outlive.attempts a join outlive.jobs j on j.id = a.job_id
where a.outcome not in ('succeeded', 'released', 'cancelled') order by a.ended_at, a.token
"""
_UNFINISHED = """
select (select count(*) from outlive.waiting) + (select count(*) from outlive.running)
  + (select count(*) from outlive.held where why <> 'quarantined')
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    counts: dict[str, Counter[str]]
    """How many jobs of each task are in each state."""
    workers: list[Row]
    sources: list[Row]
    bad_ends: list[Row]
    """The attempts that did not succeed, and the states of their jobs after them."""
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


def take(connection: db.Connection) -> Snapshot:
    counts: dict[str, Counter[str]] = {}
    for row in db.run(connection, store.stats()):
        counts.setdefault(row["task"].rpartition(".")[2], Counter())[row["state"]] += row["jobs"]
    workers = db.run(connection, store.list_workers())
    return Snapshot(
        counts,
        sorted(workers, key=lambda row: row["started_at"]),
        db.run(connection, store.list_sources()),
        connection.cursor(row_factory=dict_row).execute(_BAD_ENDS).fetchall(),
        count(connection, _UNFINISHED),
    )


def count(connection: db.Connection, query: str) -> int:
    [(number,)] = connection.execute(query.encode()).fetchall()
    return int(number)
