"""Chains and groups: thin functions over `after`, which lets one job wait for others.

outlive.chain(fetch.job(url), parse.job(), store.job())   # each after the one before
outlive.group(fetch.job(url) for url in urls).then(merge.job())
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from outlive import wire
from outlive.client.job import Job
from outlive.client.task import BoundJob, OnFailure, ids_of
from outlive.errors import ConfigError
from outlive.validation import choice

if TYPE_CHECKING:
    from outlive.caller_connections import AnyConnection, AsyncConnection, SyncConnection
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
    linked = _chained(jobs, on_failure)
    return tuple(_app_of(linked).enqueue_many(linked, connection=connection))


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
    linked = _chained(jobs, on_failure)
    return tuple(await _app_of(linked).aenqueue_many(linked, connection=connection))


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
        connection = cast("SyncConnection | None", self._connection)
        return job.app.enqueue_many([_after(self, job, on_failure)], connection=connection)[0]

    async def athen(self, job: BoundJob[A], *, on_failure: OnFailure | None = None) -> Job[A]:
        """The async twin of `then`, for a group of `agroup`."""
        connection = cast("AsyncConnection | None", self._connection)
        return (await job.app.aenqueue_many([_after(self, job, on_failure)], connection=connection))[0]


def group(jobs: Iterable[BoundJob[R]], *, connection: SyncConnection | None = None) -> Group[R]:
    """Enqueue these jobs in one transaction."""
    found = list(jobs)
    return Group(_app_of(found).enqueue_many(found, connection=connection) if found else [], connection)


async def agroup(jobs: Iterable[BoundJob[R]], *, connection: AsyncConnection | None = None) -> Group[R]:
    """The async twin of `group`."""
    found = list(jobs)
    return Group(await _app_of(found).aenqueue_many(found, connection=connection) if found else [], connection)


def _chained(jobs: Sequence[BoundJob[Any]], on_failure: OnFailure | None) -> list[BoundJob[Any]]:
    if not jobs:
        raise ConfigError("a chain has at least one job: give it one")
    return [jobs[0], *(_after([before], job, on_failure) for before, job in pairwise(jobs))]


def _after(needed: Iterable[Job[Any] | BoundJob[Any]], job: BoundJob[R], on_failure: OnFailure | None) -> BoundJob[R]:
    """The job, which waits for these too, after those that it already waits for."""
    links = cast("dict[str, Any]", wire.decode(job.request.links or b"{}"))
    links["after"] = [*links.get("after", ()), *map(str, ids_of("after", needed))]
    if on_failure is not None:
        links["on_failure"] = choice("on_failure", on_failure, "block", "proceed", "cancel")
    return BoundJob(job.app, replace(job.request, links=wire.encode(links)))


def _app_of(jobs: Sequence[BoundJob[Any]]) -> App:
    if any(job.app is not jobs[0].app for job in jobs):
        raise ConfigError("these jobs are of different apps: enqueue the jobs of each app by themselves")
    return jobs[0].app
