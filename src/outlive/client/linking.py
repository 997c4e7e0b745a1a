"""Chains and groups: thin functions over `after`, which lets one job wait for others.

outlive.chain(fetch.job(url), parse.job(), store.job())   # each after the one before
outlive.group(fetch.job(url) for url in urls).then(merge.job())
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from outlive import wire
from outlive.client.job import Job
from outlive.client.task import BoundJob, OnFailure, ids_of
from outlive.errors import ConfigError
from outlive.model import JobRequest
from outlive.validation import choice

if TYPE_CHECKING:
    from outlive.callers import AnyConnection, AsyncConnection, SyncConnection
    from outlive.client.app import App

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")


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
def chain(
    *jobs: BoundJob[Any], on_failure: OnFailure | None = None, connection: SyncConnection | None = None
) -> tuple[Job[Any], ...]:
    """Enqueue these jobs in one transaction, each after the one before."""
    app, requests = _requests(_chained(jobs, on_failure))
    return tuple(app.enqueue_requests(requests, connection))


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
async def achain(
    *jobs: BoundJob[Any], on_failure: OnFailure | None = None, connection: AsyncConnection | None = None
) -> tuple[Job[Any], ...]:
    """The async twin of `chain`."""
    app, requests = _requests(_chained(jobs, on_failure))
    return tuple(await app.aenqueue_requests(requests, connection))


@dataclass(frozen=True, slots=True)
class Group(Generic[R]):
    """Jobs that were enqueued together. `after` takes a group too."""

    jobs: list[Job[R]]
    """The jobs, in the order in which they were given."""
    _connection: AnyConnection | None = field(repr=False, compare=False, default=None)

    def __iter__(self) -> Iterator[Job[R]]:
        return iter(self.jobs)

    def then(self, job: BoundJob[A], *, on_failure: OnFailure | None = None) -> Job[A]:
        """Enqueue a job after all of the group, in the transaction of the group's connection, if there is one."""
        app, requests = _requests([_after(self, job, on_failure)])
        return app.enqueue_requests(requests, cast("SyncConnection | None", self._connection))[0]

    async def athen(self, job: BoundJob[A], *, on_failure: OnFailure | None = None) -> Job[A]:
        """The async twin of `then`, for a group of `agroup`."""
        app, requests = _requests([_after(self, job, on_failure)])
        return (await app.aenqueue_requests(requests, cast("AsyncConnection | None", self._connection)))[0]


def group(jobs: Iterable[BoundJob[R]], *, connection: SyncConnection | None = None) -> Group[R]:
    """Enqueue these jobs in one transaction."""
    if not (found := list(jobs)):
        return Group([], connection)
    app, requests = _requests(found)
    return Group(app.enqueue_requests(requests, connection), connection)


async def agroup(jobs: Iterable[BoundJob[R]], *, connection: AsyncConnection | None = None) -> Group[R]:
    """The async twin of `group`."""
    if not (found := list(jobs)):
        return Group([], connection)
    app, requests = _requests(found)
    return Group(await app.aenqueue_requests(requests, connection), connection)


def _chained(jobs: Iterable[BoundJob[Any]], on_failure: OnFailure | None) -> Iterator[BoundJob[Any]]:
    before: list[BoundJob[Any]] = []
    for job in jobs:
        yield _after(before, job, on_failure) if before else job
        before = [job]


def _after(needed: Iterable[Job[Any] | BoundJob[Any]], job: BoundJob[R], on_failure: OnFailure | None) -> BoundJob[R]:
    """The job, which waits for these too, after those that it already waits for."""
    links = cast("dict[str, Any]", wire.decode(job.request.links or b"{}"))
    links["after"] = [*links.get("after", ()), *map(str, ids_of("after", needed))]
    if on_failure is not None:
        links["on_failure"] = choice("on_failure", on_failure, "block", "proceed", "cancel")
    return BoundJob(job.app, replace(job.request, links=wire.encode(links)))


def _requests(jobs: Iterable[BoundJob[Any]]) -> tuple[App, list[JobRequest]]:
    """The requests of these jobs, and their app."""
    found = list(jobs)
    if not found:
        raise ConfigError("a chain has at least one job: give it one")
    if any(job.app is not found[0].app for job in found):
        raise ConfigError("these jobs are of different apps: enqueue the jobs of each app by themselves")
    return found[0].app, [job.request for job in found]
