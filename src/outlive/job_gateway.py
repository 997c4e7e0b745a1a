"""The way out of a process that runs a job: through its supervisor instead of over a connection.

A child sets `gateway`. `Inside` says which job runs, with its `context` and its `account`; outside of jobs these are
None.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from outlive.errors import OutliveError, Retry
from outlive.policy import Policy


class Gateway(Protocol):
    """Asks the supervisor to do something and waits for the answer."""

    def call(self, verb: str, body: bytes) -> bytes: ...
    async def acall(self, verb: str, body: bytes) -> bytes: ...


@dataclass(slots=True)
class SourceAccount:
    """How one attempt uses sources, and what its end says about its own source."""

    source: str
    token: int | None
    policy: Policy
    spent: bool = False
    """The token that the job was claimed with has paid for a request."""
    looked_up: bool = False
    """The job has asked the cache for an answer of its own source."""
    called: bool = False
    """The cache did not have the answer, so the job has called its source."""
    failed: bool = False
    """The job's last request of its own source has failed, by the source's fault."""
    counted: BaseException | None = None
    """The last error of a request. The request has counted it, if it is the source's fault."""

    def spend(self, source: str) -> bool:
        """Pay for a request with the token that the job was claimed with. It pays once, and only for its own source."""
        if source != self.source or self.spent:
            return False
        self.spent = True
        return True

    def blames(self, error: BaseException) -> bool:
        """Whether an error is the source's fault: one that the task retries is, one that it fails on is not."""
        if not isinstance(error, Exception) or isinstance(error, (OutliveError, MemoryError)):
            return isinstance(error, Retry)
        return not self.policy.is_final(error)

    def source_ok(self, error: BaseException | None) -> bool | None:
        """What the end of the attempt says about its source: True, it works; False, it is at fault; None, nothing.

        Requests are counted when they end, and a cached answer says nothing about the source as it is now.
        """
        only_cached = self.looked_up and not self.called
        if error is None:
            return None if self.spent or only_cached else True
        causes = (error, error.__cause__, error.__context__)
        counted = self.counted is not None and any(self.counted is one for one in causes)
        if counted or (only_cached and not self.spent) or not self.blames(error):
            return None
        return False


gateway: Gateway | None = None
database_url: str | None = None
"""The address that the worker's app has in code. An app with another one has its own connections, inside jobs too."""
_Job = tuple[object, SourceAccount | None]
_of_process: _Job = (None, None)
"""The job that runs alone in this process. It does not belong to a thread: a job may start threads."""
_of_task: ContextVar[_Job | None] = ContextVar("_of_task", default=None)
"""One of the jobs that share this process. Tasks of asyncio inherit it, and threads under `asyncio.to_thread`."""

baggage: ContextVar[Mapping[str, str] | None] = ContextVar("baggage", default=None)
"""What jobs that are enqueued here carry, within a block of `outlive.baggage`."""


def is_elsewhere(url: object) -> bool:
    """Whether an app with this address in code has another database than the worker's app."""
    return bool(url and database_url and url != database_url)


def context() -> object:
    """The context of the job whose code this is."""
    return (_of_task.get() or _of_process)[0]


def account() -> SourceAccount | None:
    return (_of_task.get() or _of_process)[1]


def carried() -> Mapping[str, str]:
    """What a job carries that is enqueued here: what the block around it says, otherwise what the job here carries."""
    given = baggage.get()
    return getattr((_of_task.get() or _of_process)[0], "baggage", {}) if given is None else given


def share(context: object, account: SourceAccount) -> None:
    """From now on, this task of asyncio runs a job that shares its process."""
    _of_task.set((context, account))


class Inside:
    """A block in which a job runs. A test's job that waits for others may run these inside of its own block."""

    __slots__ = ("_before", "_job")

    def __init__(self, context: object, account: SourceAccount) -> None:
        self._job = context, account

    def __enter__(self) -> None:
        global _of_process
        self._before, _of_process = _of_process, self._job

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        global _of_process
        _of_process = self._before
