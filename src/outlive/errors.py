"""What can go wrong, one small class per cause: each says whose fault it is and what to do next.

How an attempt ended is data, never an exception; only the names that a job itself raises
(`Retry`, `Fail`, `Cancel`) and those that reach a caller live here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from outlive.model import Attempt
    from outlive.states import State


class OutliveError(Exception):
    """Anything that outlive itself raises."""


class ConfigError(OutliveError):
    """A setting is unknown, malformed or contradicts another."""


class AppNotFound(OutliveError):
    """The module or the app in it can't be imported; `traceback` is that of the user's code, if it got so far."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class TaskNotFound(OutliveError):
    """The app has no task of that name."""


class BadArguments(OutliveError, ValueError):
    """The arguments of a job can't be enqueued: nothing was written."""


class DatabaseUnreachable(OutliveError):
    """The database can't be reached or answers no more."""


class DatabaseBusy(DatabaseUnreachable):
    """The database answers, but not this: another transaction's lock, or too little time. Nothing was written."""


class SchemaMismatch(OutliveError):
    """The database's schema is not the one that this version works with."""


class EmbeddedError(OutliveError):
    """The embedded Postgres can't be found, started or used."""


class DuplicateJob(OutliveError):
    """An unfinished job of the same task has the dedupe key, and on_conflict is "raise"."""

    def __init__(self, message: str, existing: UUID | None = None) -> None:
        super().__init__(message)
        self.existing = existing


class StaleAttempt(OutliveError):
    """The attempt is no longer this worker's: whatever it wanted to write was not written."""


class JobNotFound(OutliveError):
    """There is no such job: it was pruned, or its id is of another database."""


class JobFailed(OutliveError):
    """A job ended without a result; `state` says how, `attempt` is its last one with the evidence."""

    def __init__(self, job_id: UUID, state: State, attempt: Attempt | None) -> None:
        self.job_id, self.state, self.attempt = job_id, state, attempt
        why = f": {attempt.error or attempt.outcome}" if attempt else ""
        super().__init__(f"job {job_id} is {state}{why}; `outlive show {job_id}` tells its whole life")


class Retry(OutliveError):
    """Raised by a job: try me again, after so long (by default the task's backoff)."""

    def __init__(self, message: str = "", *, after: float | str | None = None) -> None:
        super().__init__(message or "the job asked to be tried again")
        self.after = after


class Fail(OutliveError):
    """Raised by a job: don't try me again."""


class Cancel(OutliveError):
    """Raised by a job: I am not needed any more."""


class SourcePaused(OutliveError):
    """A source's breaker is open, or somebody has paused it. A job that lets this pass goes back, until then."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class SourceBusy(OutliveError):
    """A source had no token within the time that the caller wanted to wait."""


class Stopped(BaseException):
    """Raised inside a job when its worker tells it to stop, so that `finally` runs. Not an Exception: let it pass."""
