"""The log lines about jobs: one at the end of each attempt, with debug one at its start, and what jobs print.

A job that fails for good is an error, with its traceback; a failure that is retried is a warning of one line. Text has
short ids. JSON has the whole ones, in fields.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import msgspec

from outlive import json_lines, logs, luggage, output, wire
from outlive.humanize import counted, one_line, short_id
from outlive.model import Claimed, Ended
from outlive.states import FAULTS, Outcome, State
from outlive.worker import log

_SIGN, _SEPARATOR = output.SIGN.encode(), output.SEPARATOR.encode()
MAY_NAME_LEVEL = (_SIGN, json_lines.FIRST)
"""How a line of a job begins that may not be at info, as all others are."""
MAX_ERROR_CHARS = 80
"""How much of an error its line has. JSON has all of it."""
_of_jobs = logging.getLogger(logs.JOB)
"""What jobs say has a level of its own: `log_level` may name one for it."""
_LEVELS = {name.encode(): getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}

Success = tuple[UUID, str, int, float | None, bytes | None]
"""An attempt: the job's id, its task, the number of the attempt, how long it took, and the options of the job."""


def starting(job: Claimed) -> None:
    if log.isEnabledFor(logging.DEBUG):
        logs.write("DEBUG", f"Starting job {short_id(job.id)} ({job.task})", lambda: fields(job))


def note(level: str, words: str, *values: object) -> None:
    """A line about the job that is among the values."""
    (job,) = (one for one in values if isinstance(one, Claimed))
    named = [short_id(job.id) if one is job else one for one in values]
    log.log(_LEVELS[level.encode()], words, *named, extra=fields(job))


def shows_info() -> bool:
    """Whether the log has the lines of successes."""
    return log.isEnabledFor(logging.INFO)


def shows_prints() -> bool:
    return _of_jobs.isEnabledFor(logging.INFO)


def succeeded(ended: list[Success], *, worker: UUID) -> None:
    """The lines of successes. What waits for them has no results."""
    logs.later(partial(_success_lines, ended, time.time(), worker), lines=len(ended))


def _success_lines(ended: list[Success], at: float, worker: UUID) -> list[str]:
    ids = msgspec.to_builtins([one[0] for one in ended])  # This takes a tenth of the time of str(id).
    each = zip(ids, ended, strict=True)
    words = [
        f"Job {short_id(id)} completed successfully ({task}{_took(took_s)})" for id, (_, task, _, took_s, _) in each
    ]
    return logs.lines(
        at, "INFO", words, lambda n: _end_fields(ended[n], Outcome.SUCCEEDED, worker, State.SUCCEEDED, None)
    )


def not_succeeded(job: Claimed, end: Ended, *, worker: UUID, state: str | None, next_try: datetime | None) -> None:
    """The line of another end. `state` is the job's since then; None: the database did not answer in time.

    The traceback of a fault whose state is not known is logged too: the job may have failed for good.
    """
    for_good = state in (State.FAILED, State.QUARANTINED)
    level = "INFO" if end.outcome not in FAULTS else "ERROR" if for_good else "WARNING"
    if not log.isEnabledFor(_LEVELS[level.encode()]):
        return
    coded = end.outcome in (Outcome.FAILED, Outcome.CRASHED, Outcome.OUT_OF_MEMORY)
    words = f"failed with code {_code(end)}" if coded else end.outcome
    again = "" if next_try is None else f", retry at {_moment(next_try)}"
    stack = end.stack if for_good or (level == "WARNING" and state is None) else None
    one = (job.id, job.task, job.attempt, end.took_s, job.options)
    logs.write(
        level,
        f"Job {short_id(job.id)} {words}: {_brief(end.error)} ({job.task}{_took(end.took_s)}){again}",
        lambda: _end_fields(one, end.outcome, worker, state, next_try) | {"error": logs.redacted(end.error or "")},
        stack=stack,
    )


def _moment(at: datetime) -> str:
    """A time as a line has it: the date only if it is another than that of the line."""
    at = at.astimezone(UTC)
    return f"{at:%H:%M:%SZ}" if at.date() == datetime.now(UTC).date() else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _brief(error: str | None) -> str:
    """An error without what the line has said before it, and no more of it than fits. A password that is cut would not
    be found any more."""
    line = one_line(logs.redacted(error or "")).removeprefix("Hard timeout exceeded: ").removeprefix("the process was ")
    return line if len(line) <= MAX_ERROR_CHARS else line[: MAX_ERROR_CHARS - 1] + "…"


def printed(job: Claimed, line: bytes) -> bool:
    """Log a line that a job has printed, or one of its log records. False: the log does not have its level."""
    return _say(line, partial(_whose, job.id, job.task, job.attempt, job.options))


def printed_by_shared(pid: int, task: str | None, line: bytes) -> bool:
    """The same for a line that is no job's, of a child that many jobs share."""
    return _say(line, lambda: (f"child {pid}, shared by jobs of {task}", {"task": task, "pid": pid}))


def shows(line: bytes) -> bool:
    """Whether the log has the level of this line. Prints are info, unless they are JSON that says something else."""
    level = logging.INFO
    if line.startswith(_SIGN):
        level = _LEVELS.get(line[1 : line.find(_SEPARATOR)], logging.INFO)
    elif line.startswith(json_lines.FIRST):
        level = _LEVELS.get(json_lines.level_of(line).encode(), logging.INFO)
    return _of_jobs.isEnabledFor(level)


def _say(line: bytes, whose: Callable[[], tuple[str, dict[str, object]]]) -> bool:
    if not shows(line):
        return False
    logs.later(partial(_said, time.time(), whose, line), size=len(line))
    return True


def _whose(id: UUID, task: str, attempt: int, options: bytes | None) -> tuple[str, dict[str, object]]:
    return f"{task} {short_id(id)} #{attempt}", _fields(id, task, attempt, options)


def _said(created: float, whose: Callable[[], tuple[str, dict[str, object]]], line: bytes) -> list[str]:
    """A line of a job as text or JSON. A record of several lines is several lines of text."""
    record = output.read_record(line) or _printed(line.decode(errors="replace"))
    who, about = whose()
    about["stream"] = "log" if record.logger else "output"
    if record.extra:  # Of a line that only looks like a record it may be anything.
        about["extra"] = logs.redacted_within(wire.decode_or_text(record.extra.encode()))
    return logs.lines_of_job(created, record, who, about)


def _printed(text: str) -> output.Record:
    """What a job prints is text, or a log record that it has made JSON of; the logger stays `outlive.job`."""
    if (said := json_lines.read(text)) is None or not said.level:
        return output.Record("INFO", "", text)
    extra = msgspec.json.encode(said.fields).decode() if said.fields else ""
    return output.Record(said.level, "", said.message, extra, said.exception)


def left_out(job: Claimed, lines: int) -> None:
    """A job prints more than is logged."""
    if log.isEnabledFor(logging.WARNING):
        were = f"of job {short_id(job.id)} {'was' if lines == 1 else 'were'} left out here"
        words = f"{counted(lines, 'line')} {were}: it prints too much at once ({job.task}, attempt {job.attempt})"
        logs.write("WARNING", words, lambda: fields(job) | {"left_out": lines})


def _took(took_s: float | None) -> str:
    return "" if took_s is None else f", {took_s:.3f} s"


def _code(end: Ended) -> int:
    """The exit code, minus the number of the signal that killed it, or 1 for an exception."""
    number = getattr(signal, end.signal or "", None)
    return -number if number is not None else 1 if end.exit_code is None else end.exit_code


def fields(job: Claimed) -> dict[str, object]:
    """What JSON lines have about a job."""
    return _fields(job.id, job.task, job.attempt, job.options)


def _fields(id: UUID, task: str, attempt: int, options: bytes | None) -> dict[str, object]:
    texts = luggage.of(options)
    return {"job_id": id, "task": task, "attempt": attempt} | ({"baggage": texts} if texts else {})


def _end_fields(
    one: Success, outcome: Outcome, worker: UUID, state: str | None, next_try: datetime | None
) -> dict[str, object]:
    id, task, attempt, took_s, options = one
    ended = {"outcome": outcome, "duration_s": took_s and round(took_s, 6), "worker": worker}
    return _fields(id, task, attempt, options) | ended | {"state": state, "next_try": next_try}
