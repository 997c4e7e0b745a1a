"""The log lines about jobs: one for each attempt at its end and, at the level debug, one at its start."""

from __future__ import annotations

import logging
import signal
import time
from functools import partial
from uuid import UUID

from outlive import logs
from outlive.model import Claimed, Ended
from outlive.states import Outcome

_log = logging.getLogger("outlive.worker")


def starting(job: Claimed) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        logs.write("DEBUG", f"Starting job {job.id} ({job.task})", lambda: _fields(job))


def ended(job: Claimed, end: Ended) -> None:
    if end.outcome is Outcome.SUCCEEDED:
        if _log.isEnabledFor(logging.INFO):
            logs.relay(partial(_success, time.time(), job.id, job.task, job.attempt, end.took_s))
        return
    if end.outcome in (Outcome.FAILED, Outcome.CRASHED, Outcome.OUT_OF_MEMORY):
        level, words = logging.WARNING, f"failed with code {_code(end)}: {end.error}"
    else:
        level, words = logging.INFO, f"{end.outcome}: {end.error}"
    if _log.isEnabledFor(level):
        logs.write(
            "INFO" if level == logging.INFO else "WARNING",
            f"Job {job.id} {words} ({job.task}{_took(end.took_s)})",
            lambda: _fields(job) | {"outcome": end.outcome, "duration_s": end.took_s},
        )


def _success(created: float, id: UUID, task: str, attempt: int, took_s: float | None) -> str:
    """The line of a success. It does not keep the result until it is written."""
    return logs.line(
        created,
        "INFO",
        f"Job {id} completed successfully ({task}{_took(took_s)})",
        lambda: {
            "job_id": id,
            "task": task,
            "attempt": attempt,
            "outcome": Outcome.SUCCEEDED,
            "duration_s": took_s,
        },
    )


def _took(took_s: float | None) -> str:
    return "" if took_s is None else f", {took_s:.3f} s"


def _code(end: Ended) -> int:
    """The exit code, minus the number of the signal that killed it, or 1 for an exception."""
    number = getattr(signal, end.signal or "", None)
    return -number if number is not None else 1 if end.exit_code is None else end.exit_code


def _fields(job: Claimed) -> dict[str, object]:
    return {"job_id": job.id, "task": job.task, "attempt": job.attempt}
