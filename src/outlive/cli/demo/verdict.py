"""What the database holds of the demo, and whether that is as it must be, given what the sites offered."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from coins import catalog, expected, site, tasks
from outlive import db, store
from outlive.humanize import duration
from outlive.states import Outcome, State

Row = dict[str, Any]
EVIDENCE = (
    *("id", "task", "source", "details", "outcome", "signal", "peak_memory_bytes", "cpu_s", "error_message"),
    *("stack", "output"),
)
"""What the summary has of a quarantined job."""
_ATTEMPTS = """
select a.token, concat_ws(' ', substring(j.task from '[^.]+$'), nullif(j.source, ''), j.args -> 'intake' ->> 'title')
  as job, a.job_id, a.attempt, a.outcome, a.error, a.state, (a.result ->> 'found')::int as found
from outlive.attempts a join outlive.jobs j on j.id = a.job_id order by a.ended_at, a.token
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the database holds at one moment."""

    states: Counter[str]
    workers: list[Row]
    sources: list[Row]
    attempts: list[Row]
    """The attempts that have ended, and the states of their jobs after them."""

    def finished(self) -> int:
        """How many jobs have succeeded, failed, or are in quarantine."""
        return sum(self.states[one] for one in (State.SUCCEEDED, State.QUARANTINED, State.FAILED))

    def bad_ends(self) -> list[Row]:
        good = (Outcome.SUCCEEDED, Outcome.RELEASED, Outcome.CANCELLED)
        return [row for row in self.attempts if row["outcome"] not in good]

    def worker(self, pid: int) -> Row | None:
        """The worker of a process, if it has registered."""
        return next((row for row in self.workers if row["pid"] == pid), None)


def look(connection: db.Connection) -> Snapshot:
    states: Counter[str] = Counter()
    for row in db.run(connection, store.count_jobs()):
        states[row["state"]] += row["jobs"]
    return Snapshot(
        states,
        db.run(connection, store.list_workers()),
        db.run(connection, store.list_sources()),
        connection.cursor(row_factory=dict_row).execute(_ATTEMPTS).fetchall(),
    )


@dataclass(slots=True)
class Loss:
    """The killed worker, and how long its death took to be noticed and made good, by the database's clock."""

    pid: int
    killed_at: datetime
    jobs: int
    successor: int
    noticed_s: float | None = None
    replaced_s: float | None = None

    def update(self, seen: Snapshot, say: Callable[[str], None]) -> None:
        dead, new = seen.worker(self.pid), seen.worker(self.successor)
        if self.noticed_s is None and dead is not None and dead["state"] == "dead":
            self.noticed_s = self._took_s(dead["died_at"])
            say(f"the dead worker was noticed after {duration(self.noticed_s)}, and its jobs are free again")
        if self.replaced_s is None and new is not None:
            self.replaced_s = self._took_s(new["started_at"])
            say(f"another worker took its place after {duration(self.replaced_s)}")

    def _took_s(self, until: datetime) -> float:
        return round((until - self.killed_at).total_seconds(), 2)


@dataclass(slots=True)
class Played:
    """What the demo did."""

    intakes: Sequence[catalog.Intake]
    sites: Mapping[str, site.Site]
    weak: str
    """The site that is down for a while."""
    acknowledged: list[UUID] = field(default_factory=list)
    loss: Loss | None = None
    opened: int = 0
    closed: int = 0
    """How often the breaker of the weak site opened and closed."""


def summary(connection: db.Connection, played: Played) -> dict[str, Any]:
    """The figures of the demo, and the list of what is wrong."""
    seen, loss = look(connection), played.loss
    records = db.run(connection, store.list_records(limit=1_000_000))
    written = sum(one.scope.startswith(tasks.PRICES) for one in records)
    succeeded = Counter(row["job_id"] for row in seen.attempts if row["outcome"] == Outcome.SUCCEEDED)
    again = [row for row in seen.bad_ends() if row["state"] in (State.PENDING, State.RETRYABLE)]
    figures: dict[str, Any] = {
        "coins": len(played.intakes),
        "acknowledged": len(played.acknowledged),
        "spawned": seen.states.total() - len(played.acknowledged),
        "finished": seen.states[State.SUCCEEDED],
        "failed": seen.states[State.FAILED],
        "retried": len(again),
        "quarantined": [{key: row[key] for key in EVIDENCE} for row in db.run(connection, store.list_killers())],
        "workers_lost": [{name: getattr(loss, name) for name in ("pid", "jobs", "noticed_s", "replaced_s")}]
        if loss
        else [],
        "breaker": {"source": played.weak, "opened": played.opened, "closed": played.closed},
        "requests": sum(one.requests for one in played.sites.values()),
        "records_written": written,
        "duplicates_refused": sum(row["found"] or 0 for row in seen.attempts) - written,
        "valuations": sum(one.scope == tasks.VALUATIONS for one in records),
        "finished_twice": sum(ends > 1 for ends in succeeded.values()),
    }
    wrong = [
        *_wrong_jobs(connection, played, seen, figures),
        *expected.wrong_records(played.intakes, played.sites, records),
        *_wrong_troubles(played, seen),
    ]
    return {**figures, "wrong": wrong, "right": not wrong}


def _wrong_jobs(connection: db.Connection, played: Played, seen: Snapshot, figures: dict[str, Any]) -> Iterator[str]:
    found = db.run(connection, store.statuses(list(played.acknowledged)))
    if missing := [id for id in played.acknowledged if found.get(id) is not State.SUCCEEDED]:
        yield f"{len(missing)} acknowledged jobs did not succeed, {missing[0]} among them"
    if seen.states != (due := expected.jobs(played.intakes)):
        yield f"jobs are {_words(seen.states)} instead of {_words(due)}"
    if (refused := figures["duplicates_refused"]) != (due_refused := expected.duplicates(played.intakes, played.sites)):
        yield f"{refused} duplicates were refused instead of {due_refused}"
    if figures["finished_twice"]:
        yield f"{figures['finished_twice']} jobs were finished twice"
    causes = sorted((str(one["outcome"]), str(one["signal"])) for one in figures["quarantined"])
    if causes != [("crashed", "SIGSEGV"), ("out_of_memory", "SIGKILL")]:
        yield f"in quarantine are {causes} instead of one job that segfaults and one that eats memory"


def _wrong_troubles(played: Played, seen: Snapshot) -> Iterator[str]:
    """Everything that must go wrong did."""
    loss = played.loss
    if loss is None or loss.noticed_s is None or loss.replaced_s is None:
        yield "no worker was killed, noticed and replaced"
    for outcome in (Outcome.LOST, Outcome.TIMED_OUT, Outcome.FAILED):
        if not any(row["outcome"] == outcome for row in seen.bad_ends()):
            yield f"no attempt ended as {outcome}"
    if not played.opened or played.opened != played.closed:
        yield f"the breaker of {played.weak} opened {played.opened} times and closed {played.closed} times"


def _words(states: Mapping[Any, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items()) if number)
