"""What apps see of jobs, workers, queues and schedules, such as `job.info()` and `app.jobs(…)`, and of records."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

import msgspec

from outlive import store, validation, wire
from outlive.model import Record
from outlive.statement import Row, Statement
from outlive.states import State

MOST = 10_000
PORTION = 100
"""How many jobs a statement reads at most: it measures the arguments of each."""


class JobFilters(TypedDict, total=False):
    """Which jobs `app.jobs` lists: those that match all of these."""

    state: State | str | Iterable[State | str]
    """Only jobs in this state, or in one of these."""
    task: str | None
    """Only jobs of the task of this name."""
    queue: str | None
    """Only jobs of this queue."""
    source: str | None
    """Only jobs of this source."""
    worker: str | None
    """Only jobs that the worker of this name or id runs, or has run."""
    batch: UUID | None
    """Only jobs of this batch."""
    since: validation.Moment | None
    """Only jobs that came into their state within this time, or since this moment, which has a time zone."""
    older_than: validation.Moment | None
    """Only jobs that have been in their state for this long, or since before this moment."""
    text: str | None
    """Only jobs with this text in the task, the arguments or an error, whatever its case."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as it was when the database was asked. A field is `None` if it does not apply yet."""

    id: UUID
    """The job's id."""
    task: str
    """The name of its task."""
    queue: str
    """Its queue."""
    args: Any
    """Its arguments as JSON, by name where possible."""
    state: State
    """Its state."""
    attempt: int
    """The number of its last attempt, or of the one under way; 0 before the first."""
    worker: str | None
    """The name of the worker that runs it, or of the one that ran its last attempt."""
    created_at: datetime
    """When it was enqueued."""
    ready_at: datetime
    """From when on it may run, or might have run."""
    started_at: datetime | None
    """When its last attempt was claimed."""
    ended_at: datetime | None
    """When the job ended. None: it is unfinished, or is in quarantine."""
    error: str | None
    """Why its last attempt that has ended did not succeed: `ValueError: no price`."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it was when the database was asked."""

    id: UUID
    """Its id: a worker that is started again has another one."""
    name: str
    """Its name."""
    state: str
    """`active`, `stale` without a heartbeat, `draining`, `stopped` or `dead`."""
    hostname: str
    """Its machine."""
    pid: int
    """Its process."""
    version: str
    """The version of outlive that it runs."""
    queues: Sequence[str] | None
    """The queues that it serves; None if all."""
    labels: Sequence[str] | None
    """Its labels."""
    tasks: Sequence[str] | None
    """The tasks that it has."""
    slots: int
    """How many jobs it runs at once; those that share a process count as one."""
    running: int
    """How many jobs it runs."""
    memory_bytes: int | None
    """The memory of all its processes."""
    started_at: datetime
    """When it was started."""
    last_seen: datetime
    """When it last sent a heartbeat."""
    trouble: str | None
    """Why it can't start jobs at present."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as it was when the database was asked. More than 10,000 jobs of a task are estimated."""

    name: str
    """Its name."""
    paused: bool = False
    """Whether no worker claims its jobs."""
    paused_at: datetime | None = None
    """Since when."""
    waiting: int = 0
    """How many jobs wait for their time, their next try or a worker."""
    ready: int = 0
    """How many of these could run now."""
    running: int = 0
    """How many jobs run."""
    blocked: int = 0
    """How many wait for other jobs, or for an operator."""
    suspended: int = 0
    """How many wait as their code says."""
    quarantined: int = 0
    """How many are in quarantine."""
    oldest_ready_at: datetime | None = None
    """Since when the first of the ready jobs could run. None: no job is ready."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it was when the database was asked. A field is `None` if it is not set, or does not apply."""

    name: str
    """Its name."""
    task: str
    """The name of its task."""
    args: Any
    """The arguments of each job, as JSON."""
    queue: str | None
    """The queue of its jobs, if it is not the task's."""
    priority: int | None
    """The priority of its jobs."""
    cron: str | None
    """Its cron expression."""
    every_s: float | None
    """Its interval, if it has no cron expression."""
    timezone: str
    """The zone of the cron expression."""
    missed: str
    """What becomes of late firings: `skip`, `once` or `all`."""
    overlap: str
    """What becomes of a firing while the job of the one before is unfinished: `skip`, `queue` or `cancel`."""
    jitter_s: float
    """Each firing is delayed by a part of this."""
    starts_at: datetime | None
    """There are no firings before this."""
    ends_at: datetime | None
    """There are no firings after this."""
    paused: bool
    """Whether it is paused."""
    declared_by: str | None
    """The app that declares it. None: an operator or a program has made it."""
    withdrawn_at: datetime | None
    """Since when its app declares it no longer: it fires nothing."""
    changed: bool
    """Whether it differs from what its app declares."""
    next_at: datetime | None
    """Its next firing, once a worker has planned it."""
    last_job: UUID | None
    """The id of the job that was made last."""
    last_state: State | None
    """The state of that job. None: no job was made yet, or it was pruned."""
    trouble: str | None
    """Why it can't fire."""
    next: Sequence[datetime] = ()
    """Its next five firings without jitter, whether it is paused or not."""


def first_jobs(given: JobFilters, limit: int) -> Generator[Statement[Any], Any, list[JobInfo]]:
    """Yields statements, and returns the newest jobs that match."""
    wanted = _parsed(given)
    found: store.Found = yield from store.find_page(wanted, limit=validation.count("limit", limit, most=MOST))
    infos: list[JobInfo] = []
    for first in range(0, len(found.ids), PORTION):
        left = found.ids[first : first + PORTION]
        while left and (rows := (yield store.job_infos(left, wanted.states))):
            infos += map(job_info, rows)
            left = left[left.index(rows[-1][0]) + 1 :]  # Those whose arguments were too much at once.
    return infos


def _parsed(given: JobFilters) -> store.JobFilter:
    validation.known("app.jobs", "option", given, JobFilters.__annotations__)
    state, batch = given.get("state") or (), given.get("batch")
    name, moment = validation.optional(validation.identifier), validation.optional(validation.moment)
    return store.JobFilter(
        states=tuple(
            State(validation.choice("state", one, *State)) for one in ([state] if isinstance(state, str) else state)
        ),
        task=name("task", given.get("task")),
        queue=name("queue", given.get("queue")),
        source=name("source", given.get("source")),
        worker=name("worker", given.get("worker")),
        batch=None if batch is None else validation.uuid("batch", batch),
        text=validation.optional(validation.text)("text", given.get("text")),
        **store.times(moment("since", given.get("since")), moment("older_than", given.get("older_than"))),
    )


def job_info(row: Row) -> JobInfo:
    id, task, queue, args, state, *rest = row
    return JobInfo(id, task, queue, wire.decode_or_text(args.encode()), State(state), *rest)


def worker_info(row: dict[str, Any]) -> WorkerInfo:
    return WorkerInfo(**{one.name: row[one.name] for one in fields(WorkerInfo)})


def queue_info(name: str, rows: Sequence[Row]) -> QueueInfo:
    """A queue that nothing names yet is empty."""
    return QueueInfo(*rows[0]) if rows else QueueInfo(name)


def schedule_info(row: Row) -> ScheduleInfo:
    from outlive import timetable  # Not at the top: job processes would pay for its libraries.

    info = msgspec.json.decode(row[0], type=ScheduleInfo)
    return replace(info, next=timetable.next_firings(asdict(info), row[1], timetable.SHOWN))


def records(
    scope: str | None, source: str | None, key: str | None, after: Record | None, limit: int
) -> Statement[list[Record]]:
    place = ("", "", "") if after is None else (after.scope, after.source, after.dedupe_key)
    return store.list_records(scope=scope, source=source, key=key, after=place, limit=limit)
