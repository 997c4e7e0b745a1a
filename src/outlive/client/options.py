"""The options of a job: their types, their checks, and how they become a `JobRequest`.

`Task.using` takes them. The one that is checked in task.py is `on_failed`, because it is a task.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from outlive import wire
from outlive.client.batch import Batch, batch_id
from outlive.client.job import Job, gather
from outlive.client.source import Source, source_name
from outlive.errors import ConfigError
from outlive.model import JobRequest
from outlive.policy import Checks, LimitOptions, parse_priority
from outlive.validation import Duration, choice, count, identifier, optional, positive, refused, seconds

if TYPE_CHECKING:
    from outlive.caller_connections import AnyConnection
    from outlive.client.app import App

R = TypeVar("R", covariant=True)  # the result
OnConflict = Literal["skip", "raise", "replace"]
OnFailure = Literal["block", "proceed", "cancel"]


class JobOptions(LimitOptions, total=False):
    """The options of one job. Its limits (policy.py), queue and source override those of its task."""

    id: UUID
    """The job's own id. Enqueuing the same id again makes no second job."""
    queue: str
    """The queue of this job, in place of its task's."""
    source: Source | str
    """The service that the job calls: it waits until the source's limits admit it."""
    priority: int
    """From 0, the most urgent, to 9; 5 if it is not given."""
    delay: Duration
    """How long the job waits at least, in seconds or as text ("10m")."""
    run_at: datetime
    """When the job may run, with a time zone. Only one of `delay` and `run_at` can be given."""
    dedupe_key: str
    """While a job of this task with this key is not finished, `on_conflict` says what becomes of another one."""
    concurrency_key: str | None
    """At most `concurrency` jobs with this key run at a time, whatever their task and queue."""
    concurrency: int
    """How many jobs with the `concurrency_key` may run when this one starts, itself included; 1 if it is not given."""
    on_conflict: OnConflict
    """skip, the default: `enqueue` returns the job that is there. raise: it raises. replace: the new one takes over."""
    after: Needed | Iterable[Needed]
    """The jobs that must succeed before this one starts. Their results are its `outlive.current().inputs`. A job waits
    for those to whose results its arguments refer (`outlive.result_of`) without this."""
    on_failure: OnFailure
    """If one of them ends without success: block, the default: this one waits until that one is retried and succeeds,
    or an operator releases this one. proceed: this one no longer waits for it. cancel: this one is cancelled too."""
    on_failed: OnFailed
    """A task whose job is enqueued with the id of this one and its error, if this one fails for good or is quarantined.
    That happens in the same transaction, and once."""
    expires: Duration | None
    """How long after it was enqueued the job may start. Then it is cancelled, and so is its next retry. None: for ever,
    whatever its task says."""
    deadline: Duration | None
    """How long after it was enqueued the job must have ended. Then it is cancelled, whether it waits, runs or is
    suspended. None: never, whatever its task says."""
    batch: Batch | UUID | None
    """The batch that the job belongs to."""
    connection: AnyConnection
    """Enqueue in this connection's transaction: the job exists if that commits."""


class BoundJob(msgspec.Struct, Generic[R], frozen=True):
    """A job that is not enqueued yet: `app.enqueue_many` and `ctx.spawn` take it."""

    app: App
    request: JobRequest

    def results(self, ids: list[UUID]) -> list[R]:
        """The results of jobs of its task that have ended. TimeoutError if one of them is unfinished."""
        return gather([Job(id, self.app) for id in ids], timeout=0.0)


class OnFailed(Protocol):
    """A task that takes the id of a failed job, and its error."""

    def job(self, job: UUID, error: str, /) -> BoundJob[Any]: ...


Needed: TypeAlias = "Job[Any] | BoundJob[Any] | UUID"
"""A job that another one can wait for."""


def ids_of(name: str, value: Needed | Iterable[Needed]) -> list[UUID]:
    """The ids of one job or of several."""
    ids = []
    for one in value if isinstance(value, Iterable) else [value]:
        job = one.request if isinstance(one, BoundJob) else one
        id = job if isinstance(job, UUID) else getattr(job, "id", None)
        if not isinstance(id, UUID):
            raise refused(name, one, "a job, a task.job(…) or a uuid.UUID, or a list of these")
        ids.append(id)
    return ids


def waiting_for(ids: Iterable[UUID], job: BoundJob[R], on_failure: OnFailure | None = None) -> BoundJob[R]:
    """The job, which waits for these too, after those that it already waits for."""
    links = cast("dict[str, Any]", wire.decode(job.request.links or b"{}"))
    links["after"] = [*links.get("after", ()), *map(str, ids)]
    if on_failure is not None:
        links["on_failure"] = choice("on_failure", on_failure, "block", "proceed", "cancel")
    return BoundJob(job.app, replace(job.request, links=wire.encode(links)))


def callback(event: str, job: BoundJob[Any]) -> JobRequest:
    """The job of a batch that is enqueued at this event."""
    if job.request.dedupe_key is not None or job.request.links is not None:
        raise ConfigError(f"{event} can have neither a dedupe key nor a batch, a concurrency key or jobs to wait for")
    job.app.check(job.request)
    return job.request


def moment(name: str, value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise refused(name, value, "a datetime with a time zone")
    return value


def _key(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode(errors="surrogatepass")) <= 1000:
        raise refused(name, value, "text of 1 to 1000 bytes")
    try:
        wire.encode(value, name)  # It refuses what Postgres can't store.
    except wire.NotJson as error:
        raise ConfigError(str(error)) from None
    return value


FIELDS: Checks = {
    "queue": ("queue", identifier),
    "source": ("source", lambda _, value: source_name(value)),
    "priority": ("priority", parse_priority),
    "delay": ("delay_s", seconds),
    "run_at": ("run_at", moment),
    "dedupe_key": ("dedupe_key", optional(_key)),
    "on_conflict": ("on_conflict", lambda name, value: choice(name, value, "skip", "raise", "replace")),
}
"""For each option of a job, its name in `JobRequest` and its check."""
LINKS: Checks = {
    "after": ("after", lambda name, value: [str(one) for one in ids_of(name, value)]),
    "on_failure": ("on_failure", lambda name, value: choice(name, value, "block", "proceed", "cancel")),
    "batch": ("batch", optional(batch_id)),
    "concurrency_key": ("key", optional(_key)),
    "concurrency": ("concurrency", lambda name, value: count(name, value, most=1000)),
    "expires": ("expires_s", lambda name, value: 0 if value is None else positive(name, seconds(name, value))),
    "deadline": ("deadline_s", lambda name, value: 0 if value is None else positive(name, seconds(name, value))),
}
"""The same for `JobRequest.links`: the options that connect a job with others."""
