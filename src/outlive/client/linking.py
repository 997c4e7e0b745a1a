"""Results as arguments, chains and groups: thin functions over `after`, which lets one job wait for others.

page = fetch.enqueue(url)
parse.enqueue(outlive.result_of(page))                                  # when the page is there, with its result

outlive.chain(fetch.job(url), [parse.job(), scan.job()], store.job())   # one after the other, a list side by side
outlive.group(fetch.job(url) for url in urls).then(merge.job())
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from outlive.client.job import Job
from outlive.client.options import BoundJob, OnFailure, ids_of, waiting_for
from outlive.errors import ConfigError
from outlive.references import Reference
from outlive.validation import refused

if TYPE_CHECKING:
    from outlive.caller_connections import AsyncConnection, SyncConnection
    from outlive.client.app import App

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")
Step: TypeAlias = "BoundJob[Any] | Sequence[Step]"
"""A job; a tuple of steps, one after the other; or a list of steps, side by side."""


@overload
def result_of(job: Job[R] | BoundJob[R], /) -> R: ...
@overload
def result_of(job: Iterable[Job[R] | BoundJob[R]], /) -> list[R]: ...
def result_of(job: Any, /) -> Any:
    """What stands for the result of this job in the arguments of another, which waits for it and gets the result.

    `parse.enqueue(result_of(page))` calls `parse` with what `fetch` returned. The result of a group, or of several
    jobs, is the list of their results. Type checkers take it for the result itself.
    """
    found = [Reference(id) for id in ids_of("the job of result_of", job)]
    return found if isinstance(job, Iterable) else found[0]


class ChainOptions(TypedDict, total=False):
    on_failure: OnFailure | None
    connection: SyncConnection | None


class AsyncChainOptions(TypedDict, total=False):
    on_failure: OnFailure | None
    connection: AsyncConnection | None


@overload
def chain(a: BoundJob[A], b: BoundJob[B], /, **options: Unpack[ChainOptions]) -> tuple[Job[A], Job[B]]: ...
@overload
def chain(
    a: BoundJob[A], b: BoundJob[B], c: BoundJob[C], /, **options: Unpack[ChainOptions]
) -> tuple[Job[A], Job[B], Job[C]]: ...
@overload
def chain(
    a: BoundJob[A], b: BoundJob[B], c: BoundJob[C], d: BoundJob[D], /, **options: Unpack[ChainOptions]
) -> tuple[Job[A], Job[B], Job[C], Job[D]]: ...
@overload
def chain(*jobs: BoundJob[R], **options: Unpack[ChainOptions]) -> tuple[Job[R], ...]: ...
@overload
def chain(*steps: Step, **options: Unpack[ChainOptions]) -> tuple[Any, ...]: ...
def chain(
    *steps: Step, on_failure: OnFailure | None = None, connection: SyncConnection | None = None
) -> tuple[Any, ...]:
    """Enqueue these jobs in one transaction, each after the one before.

    In place of a job there may be a list of jobs, which run side by side, or of tuples, which are chains themselves,
    and so on. The handles are returned in the same shape.
    """
    linked, _ = _linked(steps, [], on_failure)
    return cast("tuple[Any, ...]", _shaped(steps, iter(_app_of(linked).enqueue_many(linked, connection=connection))))


@overload
async def achain(a: BoundJob[A], b: BoundJob[B], /, **options: Unpack[AsyncChainOptions]) -> tuple[Job[A], Job[B]]: ...
@overload
async def achain(
    a: BoundJob[A], b: BoundJob[B], c: BoundJob[C], /, **options: Unpack[AsyncChainOptions]
) -> tuple[Job[A], Job[B], Job[C]]: ...
@overload
async def achain(
    a: BoundJob[A], b: BoundJob[B], c: BoundJob[C], d: BoundJob[D], /, **options: Unpack[AsyncChainOptions]
) -> tuple[Job[A], Job[B], Job[C], Job[D]]: ...
@overload
async def achain(*jobs: BoundJob[R], **options: Unpack[AsyncChainOptions]) -> tuple[Job[R], ...]: ...
@overload
async def achain(*steps: Step, **options: Unpack[AsyncChainOptions]) -> tuple[Any, ...]: ...
async def achain(
    *steps: Step, on_failure: OnFailure | None = None, connection: AsyncConnection | None = None
) -> tuple[Any, ...]:
    """The async twin of `chain`."""
    linked, _ = _linked(steps, [], on_failure)
    handles = await _app_of(linked).aenqueue_many(linked, connection=connection)
    return cast("tuple[Any, ...]", _shaped(steps, iter(handles)))


@dataclass(frozen=True, slots=True)
class Group(Generic[R]):
    """Jobs that were enqueued together. `after` and `result_of` take a group too."""

    jobs: list[Job[R]]
    """The jobs, in the order in which they were given; of a chain, the last one."""
    _connection: Any = field(repr=False, compare=False, default=None)

    def __iter__(self) -> Iterator[Job[R]]:
        return iter(self.jobs)

    def then(self, job: BoundJob[A], *, on_failure: OnFailure | None = None) -> Job[A]:
        """Enqueue a job after all of the group, in the transaction of the group's connection, if there is one."""
        return job.app.enqueue_many(self._linked(job, on_failure), connection=self._connection)[0]

    async def athen(self, job: BoundJob[A], *, on_failure: OnFailure | None = None) -> Job[A]:
        """The async twin of `then`, for a group of `agroup`."""
        return (await job.app.aenqueue_many(self._linked(job, on_failure), connection=self._connection))[0]

    def _linked(self, job: BoundJob[A], on_failure: OnFailure | None) -> list[BoundJob[A]]:
        return _linked(job, [one.id for one in self.jobs], on_failure)[0]


@overload
def group(jobs: Iterable[BoundJob[R]], *, connection: SyncConnection | None = None) -> Group[R]: ...
@overload
def group(
    jobs: Iterable[tuple[*tuple[Step, ...], BoundJob[R]]], *, connection: SyncConnection | None = None
) -> Group[R]: ...
@overload
def group(jobs: Iterable[Step], *, connection: SyncConnection | None = None) -> Group[Any]: ...
def group(jobs: Iterable[Step], *, connection: SyncConnection | None = None) -> Group[Any]:
    """Enqueue these jobs in one transaction. A tuple of jobs is a chain: each of them is after the one before."""
    linked, last = _linked([*jobs], [], None)
    handles = _app_of(linked).enqueue_many(linked, connection=connection) if linked else []
    return Group(_picked(linked, handles, last), connection)


@overload
async def agroup(jobs: Iterable[BoundJob[R]], *, connection: AsyncConnection | None = None) -> Group[R]: ...
@overload
async def agroup(
    jobs: Iterable[tuple[*tuple[Step, ...], BoundJob[R]]], *, connection: AsyncConnection | None = None
) -> Group[R]: ...
@overload
async def agroup(jobs: Iterable[Step], *, connection: AsyncConnection | None = None) -> Group[Any]: ...
async def agroup(jobs: Iterable[Step], *, connection: AsyncConnection | None = None) -> Group[Any]:
    """The async twin of `group`."""
    linked, last = _linked([*jobs], [], None)
    handles = await _app_of(linked).aenqueue_many(linked, connection=connection) if linked else []
    return Group(_picked(linked, handles, last), connection)


def _linked(step: Step, after: list[UUID], on_failure: OnFailure | None) -> tuple[list[BoundJob[Any]], list[UUID]]:
    """The jobs of a step, linked, in an order in which they can be enqueued; and those for which the next step waits.

    A step without jobs holds up nothing.
    """
    match step:
        case BoundJob():
            return [waiting_for(after, step, on_failure) if after else step], [step.request.id]
        case tuple():
            jobs: list[BoundJob[Any]] = []
            for one in step:
                more, after = _linked(one, after, on_failure)
                jobs += more
            return jobs, after
        case Sequence() if not isinstance(step, str | bytes):
            sides = [_linked(one, after, on_failure) for one in step]
            return [job for jobs, _ in sides for job in jobs], [id for _, last in sides for id in last] or after
    must_be = "a task.job(…), a tuple of steps in their order, or a list of steps side by side"
    raise refused("a step", step, f"{must_be}. f.job(1) is a job for later, and f(1) calls the function here and now")


def _shaped(step: Step, handles: Iterator[Job[Any]]) -> object:
    """The handles in the shape of the steps."""
    if isinstance(step, BoundJob):
        return next(handles)
    shaped = [_shaped(one, handles) for one in step]
    return tuple(shaped) if isinstance(step, tuple) else shaped


def _picked(jobs: list[BoundJob[Any]], handles: list[Job[Any]], wanted: list[UUID]) -> list[Job[Any]]:
    """The handles of some of these jobs. A job may have another id than it asked for: that of its dedupe key."""
    found = {job.request.id: handle for job, handle in zip(jobs, handles, strict=True)}
    return [found[id] for id in wanted]


def _app_of(jobs: Sequence[BoundJob[Any]]) -> App:
    if not jobs:
        raise ConfigError("a chain has at least one job: give it one")
    if any(job.app is not jobs[0].app for job in jobs):
        raise ConfigError("these jobs are of different apps: enqueue the jobs of each app by themselves")
    return jobs[0].app
