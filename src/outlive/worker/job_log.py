"""The log lines about jobs: one for each attempt at its end and, at the level debug, one at its start."""

from __future__ import annotations

import logging
import signal

from outlive import logs
from outlive.model import Claimed, Ended
from outlive.states import Outcome

_log = logging.getLogger("outlive.worker")


def starting(job: Claimed) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        logs.write("DEBUG", f"Starting job {job.id} ({job.task})", lambda: _fields(job))


def ended(job: Claimed, end: Ended) -> None:
    if end.outcome is Outcome.SUCCEEDED:
        level, words = logging.INFO, "completed successfully"
    elif end.outcome in (Outcome.FAILED, Outcome.CRASHED, Outcome.OUT_OF_MEMORY):
        level, words = logging.WARNING, f"failed with code {_code(end)}: {end.error}"
    else:
        level, words = logging.INFO, f"{end.outcome}: {end.error}"
    if _log.isEnabledFor(level):
        took = "" if end.took_s is None else f", {end.took_s:.3f} s"
        logs.write(
            "INFO" if level == logging.INFO else "WARNING",
            f"Job {job.id} {words} ({job.task}{took})",
            lambda: _fields(job) | {"outcome": end.outcome, "duration_s": end.took_s},
        )


def _code(end: Ended) -> int:
    """The exit code, minus the number of the signal that killed it, or 1 for an exception."""
    number = getattr(signal, end.signal or "", None)
    return -number if number is not None else 1 if end.exit_code is None else end.exit_code


def _fields(job: Claimed) -> dict[str, object]:
    return {"job_id": job.id, "task": job.task, "attempt": job.attempt}
