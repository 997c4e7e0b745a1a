"""A handle on a job: its state, its result, and what operators do with it; and the results of many jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload
from uuid import UUID

from outlive import store, validation, wire
from outlive.annotations import encode_alone
from outlive.client import results
from outlive.client.looking import JobInfo, job_info
from outlive.errors import BadArguments, ConfigError, OutliveError, no_job
from outlive.model import JobProgress
from outlive.statement import Statement
from outlive.states import State

if TYPE_CHECKING:
    from outlive.caller_connections import AsyncConnection, SyncConnection
    from outlive.client.app import App

R = TypeVar("R", covariant=True)  # the result
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job(Generic[R]):
    """A handle on a job. It holds only the job's id, and each call asks the database."""

    id: UUID
    """The job's id."""
    _app: App = field(repr=False, compare=False)

    if not TYPE_CHECKING:  # A type checker would take any name for an attribute.
        __getattr__ = validation.hinting("a job")

    def status(self) -> State:
        """The state of the job. JobNotFound if it was pruned."""
        return self._found(self._app.runner.run(store.statuses([self.id])))[self.id]

    async def astatus(self) -> State:
        """The async twin of `status`."""
        return self._found(await self._app.runner.arun(store.statuses([self.id])))[self.id]

    def info(self) -> JobInfo:
        """What the job is: its task, queue, arguments and state, its last attempt with its worker, times and error."""
        return job_info(self._found(self._app.runner.run(store.job_infos([self.id])))[0])

    async def ainfo(self) -> JobInfo:
        """The async twin of `info`."""
        return job_info(self._found(await self._app.runner.arun(store.job_infos([self.id])))[0])

    def progress(self) -> JobProgress:
        """The state of the job, and how far it is, as `outlive.current().progress(…)` has reported it."""
        return self._found(self._app.runner.run(store.job_progress(self.id)))

    async def aprogress(self) -> JobProgress:
        """The async twin of `progress`."""
        return self._found(await self._app.runner.arun(store.job_progress(self.id)))

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result. JobFailed if the job ended without one, TimeoutError if it is not finished in time."""
        return gather([self], timeout)[0]

    async def aresult(self, timeout: float | None = None) -> R:  # noqa: ASYNC109
        """The async twin of `result`."""
        return (await agather([self], timeout))[0]

    def cancel(self) -> bool:
        """Cancel the job; if it runs, its worker stops it. False if the job was already finished."""
        return self._found(self._app.runner.run(store.cancel([self.id])))[0].changed

    async def acancel(self) -> bool:
        """The async twin of `cancel`."""
        return self._found(await self._app.runner.arun(store.cancel([self.id])))[0].changed

    def retry(self) -> bool:
        """Run the job again now, with all counters at zero. False unless it has failed, was cancelled or waits for its
        next try."""
        return self._found(self._app.runner.run(store.retry([self.id])))[0].changed

    async def aretry(self) -> bool:
        """The async twin of `retry`."""
        return self._found(await self._app.runner.arun(store.retry([self.id])))[0].changed

    def release(self) -> bool:
        """Let the job out of quarantine, or let a blocked one run. False if it is neither."""
        return self._found(self._app.runner.run(store.release([self.id])))[0].changed

    async def arelease(self) -> bool:
        """The async twin of `release`."""
        return self._found(await self._app.runner.arun(store.release([self.id])))[0].changed

    def send(self, signal: str, value: object = None, *, connection: SyncConnection | None = None) -> None:
        """Send a signal to the job, which `receive` returns there, once. With `connection`: in its transaction.

        JobEnded if the job has ended.
        """
        self._app.runner.run(self._signal(signal, value), connection)

    async def asend(self, signal: str, value: object = None, *, connection: AsyncConnection | None = None) -> None:
        """The async twin of `send`."""
        await self._app.runner.arun(self._signal(signal, value), connection)

    def _signal(self, signal: str, value: object) -> Statement[str]:
        try:
            encoded = encode_alone(value, "the value")
        except wire.NotJson as error:
            raise BadArguments(f"the signal {signal} can't be sent: {error}") from None
        return store.send(self.id, validation.identifier("signal", signal), encoded)

    def _found(self, answer: T | None) -> T:
        """The answer of the database, which is empty if it has no such job."""
        if not answer:
            raise no_job(self.id)
        return answer


@overload
def gather(
    jobs: Iterable[Job[R]], timeout: float | None = None, *, return_exceptions: Literal[False] = False
) -> list[R]: ...
@overload
def gather(
    jobs: Iterable[Job[R]], timeout: float | None = None, *, return_exceptions: bool
) -> list[R | OutliveError]: ...
def gather(jobs: Iterable[Job[Any]], timeout: float | None = None, *, return_exceptions: bool = False) -> list[Any]:
    """Wait for the results of all these jobs, and return them in the order of the jobs.

    As soon as one has ended without a result, its JobFailed is raised, and the others go on; with `return_exceptions`
    it is one of the results instead. TimeoutError if some are not finished in time.
    """
    listed = list(jobs)
    return results.collect(*_wanted(listed), timeout, return_exceptions) if listed else []


@overload
async def agather(
    jobs: Iterable[Job[R]],
    timeout: float | None = None,  # noqa: ASYNC109  # the twin of gather
    *,
    return_exceptions: Literal[False] = False,
) -> list[R]: ...
@overload
async def agather(
    jobs: Iterable[Job[R]],
    timeout: float | None = None,  # noqa: ASYNC109
    *,
    return_exceptions: bool,
) -> list[R | OutliveError]: ...
async def agather(
    jobs: Iterable[Job[Any]],
    timeout: float | None = None,  # noqa: ASYNC109
    *,
    return_exceptions: bool = False,
) -> list[Any]:
    """The async twin of `gather`."""
    listed = list(jobs)
    return await results.acollect(*_wanted(listed), timeout, return_exceptions) if listed else []


def _wanted(jobs: list[Job[Any]]) -> tuple[App, list[UUID]]:
    app = jobs[0]._app
    if any(job._app is not app for job in jobs):
        raise ConfigError("these jobs are of different apps: gather the jobs of each app by themselves")
    return app, [job.id for job in jobs]
