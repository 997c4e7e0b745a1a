"""The exceptions of outlive, one small class per cause. Each message says what is wrong and what to do next.

How an attempt ended is data, never an exception. Here are only the exceptions that a job itself raises (`Retry`,
`Fail`, `Cancel`) and those that reach a caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from outlive import program

if TYPE_CHECKING:
    from outlive.model import Attempt
    from outlive.states import State


class OutliveError(Exception):
    """The base of all errors that outlive raises."""


class ConfigError(OutliveError):
    """A setting is unknown, malformed or contradicts another."""


class WrongConnection(ConfigError, TypeError):
    """`connection` is not one whose transaction this call can use. Nothing was written."""


class AppNotFound(OutliveError):
    """The module or the app in it can't be imported; `traceback` is that of the user's code, if it ran."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class TaskNotFound(OutliveError):
    """The app has no task of that name."""


class BadArguments(OutliveError, ValueError):
    """The arguments of a job don't fit its task, or can't be stored. Nothing was written."""


class DatabaseUnreachable(OutliveError):
    """The database can't be reached, or stopped answering."""


class DatabaseBusy(DatabaseUnreachable):
    """A lock of another transaction, a time limit or a read-only database stopped the statement. It wrote nothing."""


class MissingRight(OutliveError):
    """The role with which this program has logged in may not do that."""


class SchemaMismatch(OutliveError):
    """The database's schema is not the one that this version works with."""

    def __init__(self, what: str, *, cure: str | None = None) -> None:
        """`cure` is the command that brings the right schema, if one does."""
        super().__init__(what if cure is None else f"{what}: run `{cure}`")
        self.what, self.cure = what, cure


class EmbeddedError(OutliveError):
    """The embedded Postgres can't be found, started or used."""


class DuplicateJob(OutliveError):
    """An unfinished job of the same task has the dedupe key, and on_conflict is "raise". `existing` is its id."""

    def __init__(self, message: str, existing: UUID | None = None) -> None:
        super().__init__(message)
        self.existing = existing


class StaleAttempt(OutliveError):
    """The attempt no longer belongs to this worker. Nothing was written."""


class JobNotFound(OutliveError):
    """The job does not exist: it was pruned, it is in another database, or its transaction is not committed yet."""


class JobEnded(OutliveError):
    """The job has ended, and takes no signal."""


class BatchNotFound(OutliveError):
    """The batch does not exist: it was pruned, it is in another database, or its transaction is not committed yet."""


class WorkerNotFound(OutliveError):
    """No worker of that name is alive."""


class JobFailed(OutliveError):
    """A job ended without a result; `state` says how, `attempt` is its last one with the evidence.

    That of a job which was cancelled before it began has no start.
    """

    def __init__(self, job_id: UUID, state: State, attempt: Attempt | None) -> None:
        self.job_id, self.state, self.attempt = job_id, state, attempt
        why = f": {attempt.error or attempt.outcome}" if attempt else ""
        show = program.command(f"show {job_id}")
        super().__init__(f"job {job_id} is {state}{why}; `{show}` prints all its attempts")


class Retry(OutliveError):
    """Raised by a job that should be retried, after this delay (by default the task's backoff).

    With a cause (`from error`) the attempt keeps the traceback.
    """

    def __init__(self, message: str = "", *, after: float | str | None = None) -> None:
        super().__init__(message or "the job asked for a retry")
        self.after = after


class Snooze(OutliveError):
    """Raised by a job that should run again after this delay, at no cost: it counts as no failure."""

    def __init__(self, after: float | str, message: str = "") -> None:
        super().__init__(message or "the job asked to run again later")
        self.after = after


class NotReceived(OutliveError, TimeoutError):
    """Raised by `job.receive(…)` if its signal does not come in time."""


class Fail(OutliveError):
    """Raised by a job that should fail without a retry. With a cause (`from error`) the attempt keeps the traceback."""


class Cancel(OutliveError):
    """Raised by a job that is no longer needed."""


class SourcePaused(OutliveError):
    """A source's breaker is open, or an operator has paused it. A job that does not catch this runs again later."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class SourceBusy(OutliveError):
    """A source had no free token within the caller's timeout."""


class Stopped(BaseException):
    """Raised inside a job that is told to stop: its time is over, it is cancelled, or its worker stops.

    `finally` runs, and the job has five seconds to keep a checkpoint or a step, until it is killed. What it returns
    after a time-out or a cancellation is not kept. Not an Exception: if you catch it, raise it again. An `async def`
    that waits gets `asyncio.CancelledError` instead.
    """


class Restarted(BaseException):
    """Raised by `job.restart(…)`, so that the job's function ends. Not an Exception: don't catch it."""

    def __init__(self, args: bytes) -> None:
        super().__init__("the job begins again with new arguments")
        self.arguments = args


def no_job(id: UUID) -> JobNotFound:
    return JobNotFound(f"there is no job {id}: {GONE}")


def no_batch(id: UUID) -> BatchNotFound:
    return BatchNotFound(f"there is no batch {id}: {GONE}")


GONE = "it was pruned, it is in another database, or its transaction is not committed yet"


def not_installed(setting: str, library: str, *, extra: str) -> ConfigError:
    """The error about a setting that needs a library of an extra."""
    advice = f"run pip install 'outlive[{extra}]', or unset {setting}"
    return ConfigError(f"{setting} is set, but {library} is not installed: {advice}")


def of_sqlstate(code: str, text: str, detail: str | None) -> OutliveError | None:
    """The error about a job that the database reports by this code; None: it is about something else."""
    if code == "OL001":
        return DuplicateJob(text, UUID(detail) if detail else None)
    if code in _OURS:
        return _OURS[code](text)
    if code in _MISSING_SCHEMA:
        what = f"the database does not have the schema of this version ({text})"
        return SchemaMismatch(what, cure=program.migrate())
    return None


_OURS = {"OL002": StaleAttempt, "OL003": BadArguments, "OL007": JobEnded, "OL008": JobNotFound}
_MISSING_SCHEMA = frozenset({"3F000", "42P01", "42883", "42703"})
