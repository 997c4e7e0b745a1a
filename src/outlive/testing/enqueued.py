"""What was enqueued, how it compares with what a test expects, and a message about the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import psycopg

from outlive import wire
from outlive.humanize import counted, duration
from outlive.states import State

if TYPE_CHECKING:
    from outlive.client.task import Task

UNCOMMITTED = (
    "jobs wait in Django's test database, in a transaction of this test, which no worker sees: "
    "run them after its block has committed"
)
SHOWN = 10
"""How many jobs a message names."""
_QUERY = """
select j.id, j.task, j.args::text, j.options::text, s.status, j.queue, j.priority, j.source, j.created_at, j.ready_at,
  j.dedupe_key, j.concurrency_key, j.concurrency, j.after,
  (select min(d.on_failure) from outlive.dependencies d where d.job_id = j.id), j.batch
from outlive.jobs j join outlive.job_states s on s.id = j.id
order by j.created_at, j.id
"""
_SAME = frozenset({"id", "queue", "priority", "source", "dedupe_key", "concurrency_key", "concurrency"})
"""Options that a job has as they are given."""


class _LeftOut:
    def __repr__(self) -> str:
        return "left out"


LEFT_OUT = _LeftOut()


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that was enqueued, whatever has become of it."""

    id: UUID
    """Its id."""
    task: str
    """The name of its task."""
    args: Any
    """The arguments by name, as JSON has them."""
    options: Mapping[str, Any]
    """The limits that were given for this job, and its schedule and trace context."""
    state: State
    """What has become of it."""
    queue: str
    """Its queue."""
    priority: int
    """From 0, the most urgent, to 9."""
    source: str
    """The service that it calls; empty without one."""
    created_at: datetime
    """When it was enqueued."""
    ready_at: datetime
    """When it could run first."""
    dedupe_key: str | None
    """Its dedupe key."""
    concurrency_key: str | None
    """Its concurrency key."""
    concurrency: int | None
    """How many jobs with its key may run when it starts."""
    after: Sequence[UUID] | None
    """The jobs that it waits for."""
    on_failure: str | None
    """What becomes of it if one of them ends without success; None if it waits for none, or has finished."""
    batch: UUID | None
    """The batch that it belongs to."""

    @property
    def delay(self) -> timedelta:
        """How long it had to wait at least, as it was enqueued."""
        return self.ready_at - self.created_at

    def __str__(self) -> str:
        return f"{call(self.task, self.args)}, {self.state}"


def read(connection: psycopg.Connection[Any]) -> list[Enqueued]:
    """The jobs of this database, in the order in which they were enqueued."""
    rows = connection.execute(_QUERY.encode()).fetchall()
    return [
        Enqueued(id, name, wire.decode(args), _object(options), State(state), *more)
        for id, name, args, options, state, *more in rows
    ]


def _object(data: bytes | str | None) -> dict[str, Any]:
    return msgspec.json.decode(data, type=dict[str, Any]) if data else {}


def call(task: str, args: object) -> str:
    """A job's task and arguments, as one writes a call."""
    match args:
        case dict():
            words = [f"{name}={value!r}" for name, value in args.items()]
        case list():
            words = list(map(repr, args))
        case _:
            words = [repr(args)]
    return f"{task}({', '.join(words)})"


class Expected:
    """A job as a test expects it: its arguments, and those options that the test gives with `using`."""

    def __init__(self, task: Task[..., Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._request = task.job(*args, **kwargs).request
        self._args = wire.decode(self._request.args)
        self._given = {name: value for name, value in task._options.items() if name != "on_conflict"}
        self._limits, self._links = _object(self._request.options), _object(self._request.links)

    def differences(self, job: Enqueued) -> list[str]:
        """What is different in this job, in words."""
        return [
            f"{name} is {found!r}, not {wanted!r}" for name, wanted, found in self._compared(job) if found != wanted
        ]

    def _compared(self, job: Enqueued) -> Iterator[tuple[str, object, object]]:
        """The name of each thing that is compared, what is expected, and what the job has."""
        if isinstance(self._args, dict) and isinstance(job.args, dict):
            for name in sorted(self._args.keys() | job.args.keys()):
                yield name, self._args.get(name, LEFT_OUT), job.args.get(name, LEFT_OUT)
        else:
            yield "args", self._args, job.args
        if "after" in self._links:  # Also those to whose results the arguments refer.
            yield "after", [*map(UUID, self._links["after"])], list(job.after or ())
        for name, wanted in self._limits.items():
            yield name, wanted, job.options.get(name, LEFT_OUT)
        for name in self._given:
            match name:
                case "delay":
                    yield name, duration(self._request.delay_s or 0), duration(job.delay.total_seconds())
                case "run_at":
                    yield name, self._request.run_at, job.ready_at.astimezone(UTC)  # Django's may have no time zone.
                case "on_failure" if job.on_failure is not None:
                    yield name, self._given[name], job.on_failure
                case "source":
                    yield name, self._request.source, job.source
                case "batch":
                    yield name, getattr(self._given[name], "id", self._given[name]), job.batch
                case _ if name in _SAME:
                    yield name, self._given[name], getattr(job, name)

    def message(self, jobs: Sequence[Enqueued]) -> str:
        """Which job is missing, and how those that are there differ from it."""
        options = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        lines = [f"no such job was enqueued: {call(self._request.task, self._args)}{options and f' with {options}'}"]
        same = [job for job in jobs if job.task == self._request.task]
        others = [job for job in jobs if job.task != self._request.task]
        if same:
            lines.append(f"{counted(len(same), 'job')} of this task:")
            nearest = sorted(same, key=lambda job: len(self.differences(job)))
            lines += [f"    {job.id}: {'; '.join(self.differences(job))}" for job in nearest[:SHOWN]]
        if others:
            lines.append(f"{counted(len(others), 'job')} of other tasks:")
            lines += [f"    {job.id}: {job}" for job in others[:SHOWN]]
        if not jobs:
            lines.append(
                "no job was enqueued at all in the test's database (outlive_db); one that is enqueued in a session or "
                "transaction counts when that is committed"
            )
        return "\n".join(lines)


def expect(
    jobs: Sequence[Enqueued], task: Task[..., Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Enqueued:
    """The first of these jobs that is as expected. AssertionError, which says how the others differ, if none is."""
    __tracebackhide__ = True
    expected = Expected(task, args, kwargs)
    for job in jobs:
        if job.task == task.name and not expected.differences(job):
            return job
    raise AssertionError(expected.message(jobs))


def expect_none(jobs: Sequence[Enqueued]) -> None:
    __tracebackhide__ = True
    if jobs:
        found = counted(len(jobs), "job was", "jobs were")
        lines = [f"    {job.id}: {job}" for job in jobs[:SHOWN]]
        raise AssertionError("\n".join([f"{found} enqueued, and none was expected:", *lines]))
