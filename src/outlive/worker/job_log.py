"""The log lines about jobs: one for each attempt at its end and, at the level debug, one at its start."""

from __future__ import annotations

import logging
import signal
import time
from uuid import UUID

from outlive import logs
from outlive.model import Claimed, Ended
from outlive.states import Outcome

_log = logging.getLogger("outlive.worker")


def starting(job: Claimed) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        logs.write("DEBUG", f"Starting job {job.id} ({job.task})", lambda: _fields(job.id, job.task, job.attempt))


def ended(job: Claimed, end: Ended) -> None:
    if end.outcome is Outcome.SUCCEEDED:
        if _log.isEnabledFor(logging.INFO):
            logs.gather(_successes, (time.time(), job.id, job.task, job.attempt, end.took_s))
        return
    if end.outcome in (Outcome.FAILED, Outcome.CRASHED, Outcome.OUT_OF_MEMORY):
        level, words = logging.WARNING, f"failed with code {_code(end)}: {end.error}"
    else:
        level, words = logging.INFO, f"{end.outcome}: {end.error}"
    if _log.isEnabledFor(level):
        logs.write(
            "INFO" if level == logging.INFO else "WARNING",
            f"Job {job.id} {words} ({job.task}{_took(end.took_s)})",
            lambda: _fields(job.id, job.task, job.attempt) | {"outcome": end.outcome, "duration_s": end.took_s},
        )


def _successes(ended: list[tuple[float, UUID, str, int, float | None]]) -> list[str]:
    """The lines of successes. What waits for them has no results."""

    def fields(n: int) -> dict[str, object]:
        _, id, task, attempt, took_s = ended[n]
        return _fields(id, task, attempt) | {"outcome": Outcome.SUCCEEDED, "duration_s": took_s}

    words = [f"Job {id} completed successfully ({task}{_took(took_s)})" for _, id, task, _, took_s in ended]
    return logs.lines([one[0] for one in ended], "INFO", words, fields)


def _took(took_s: float | None) -> str:
    return "" if took_s is None else f", {took_s:.3f} s"


def _code(end: Ended) -> int:
    """The exit code, minus the number of the signal that killed it, or 1 for an exception."""
    number = getattr(signal, end.signal or "", None)
    return -number if number is not None else 1 if end.exit_code is None else end.exit_code


def _fields(id: UUID, task: str, attempt: int) -> dict[str, object]:
    return {"job_id": id, "task": task, "attempt": attempt}
