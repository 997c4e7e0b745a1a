"""The way out of a process that runs a job: through its supervisor instead of over a connection.

A child sets `gateway`, and `Inside` sets `context` and `account` while a job runs. Outside of jobs these stay None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outlive.errors import OutliveError, Retry
from outlive.policy import Policy


class Gateway(Protocol):
    """Asks the supervisor to do something and waits for the answer."""

    def call(self, verb: str, body: bytes) -> bytes: ...


@dataclass(slots=True)
class SourceAccount:
    """How one attempt uses sources, and what its end says about its own source."""

    source: str
    token: int
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
context: object = None
account: SourceAccount | None = None
"""Those of the job that runs now. They belong to the process, not to a thread: a job may start threads."""


class Inside:
    """A block in which a job runs. A test's job that waits for others may run these inside of its own block."""

    __slots__ = ("_before", "_job")

    def __init__(self, context: object, account: SourceAccount) -> None:
        self._job = context, account

    def __enter__(self) -> None:
        global context, account
        self._before = context, account
        context, account = self._job

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        global context, account
        context, account = self._before
