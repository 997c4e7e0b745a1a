"""show: prints one job with all its attempts and their evidence."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from textwrap import indent
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import msgspec
import typer

from outlive import output, stacks, store, wire
from outlive.cli import screen
from outlive.cli.command import CommandContext, JobId, app, command
from outlive.cli.job_filter import found_id
from outlive.cli.screen import Drawn, Listing, Text, text
from outlive.errors import OutliveError, no_job
from outlive.humanize import duration, figure, moment, one_line, plain, size
from outlive.model import Attempt, MemoryCourse
from outlive.operations import facts
from outlive.output import OutputPart
from outlive.states import State

MAX_ARGS_CHARS = 2000
TAIL_LINES = 12
AGAIN_S = 0.02
ANSWER_S = 0.5
"""How long a worker may take to send the output of a running job."""
MOST_BLOCKS = 32
BLOCKS = "▁▂▃▄▅▆▇█"
_FIRST = ("id", "task", "queue", "source", "state", "args", "priority", "created_at", "ready_at")


class Life(NamedTuple):
    """A job, its attempts that have ended, and the output of the running one."""

    job: dict[str, Any]
    attempts: list[Attempt]
    live: OutputPart | None


@command(app, example="show ID")
def show(
    context: CommandContext,
    id: JobId,
    full: Annotated[
        bool, typer.Option("--full", help="Print all frames of stacks, and all output that is kept.")
    ] = False,
) -> Listing[Life]:
    """Show one job: every attempt, why it ended, and the evidence.

    The time of an attempt is from its claim to its recorded end; the worker's log has the time of the run alone.
    `peak` is the most that the kernel has counted, with what the process shares with the worker; `memory` is without
    that, and is what counts for the limit.
    """
    job = found_id(context, "job", id)

    def look() -> Life:
        found = context.run(store.job(job))
        if not found:
            raise no_job(job)
        live = _so_far(context, job) if found[0]["state"] == State.RUNNING else None
        return Life(found[0], context.run(store.list_attempts(job)), live)

    return Listing(look, lambda life: _shown(life, sys.maxsize if full else TAIL_LINES), _as_json)


def _so_far(context: CommandContext, job: UUID) -> OutputPart | None:
    """The output and the memory of its running attempt. Its worker is asked first, and may take a moment to answer."""
    late = time.monotonic() + ANSWER_S
    with contextlib.suppress(OutliveError):  # A standby can't ask a worker.
        while (part := context.run(store.watch(job))) and part.asked and time.monotonic() < late:
            time.sleep(AGAIN_S)
        return part if part and part.live else None
    return None


def _as_json(life: Life) -> dict[str, object]:
    """The JSON form of a job. Programs rely on its keys."""
    job, attempts, live = life
    shape = {key: job[key] for key in (*_FIRST, "failures", "crashes", "losses")}
    shape |= {"args": wire.readable(job["args"]), "progress": None}
    if job["progress_at"] is not None or job["checkpoint"] is not None:
        progress = {key: job[key] for key in ("current", "total", "message")} | {"attempt": job["progress_attempt"]}
        checkpoint = job["checkpoint"] and wire.readable(job["checkpoint"])
        shape["progress"] = progress | {"checkpoint": checkpoint, "updated_at": job["progress_at"]}
    shape |= {key: job[key] for key in ("schedule", "repeats", "gathered_by")} | {"kills_by_others": job["kills"]}
    shape |= {"on_failed": job["on_failed"], "expires_at": job["expires_at"], "deadline": job["deadline"]}
    for name in ("waits_for", "waited_for", "needed_by"):
        shape[name] = {"jobs": job[name], "first": msgspec.Raw(job[f"{name}_first"] or b"[]")}
    evidence = [field for field in Attempt.__struct_fields__ if field != "result"]
    shape["attempts"] = [{field: getattr(attempt, field) for field in evidence} for attempt in attempts]
    shape["running"] = live and {"attempt": live.attempt, "output": "\n".join(live.lines), "memory": live.memory}
    result = attempts[-1].result if attempts and job["state"] == State.SUCCEEDED else None
    shape["result"] = None if result is None else wire.readable(bytes(result))
    return shape


def _shown(life: Life, most: int) -> Drawn:
    """The facts of a job, and its attempts. `most` limits the lines of a stack and of an output."""
    job, attempts, live = life
    first, *rest = [(name, facts.words(parts)) for name, parts in facts.of_job(job)]
    given = [("arguments", _short(job["args"])), ("options", _short(job["options"]))]
    made = [("progress", _progress(job)), ("checkpoint", _short(job["checkpoint"]))]
    lines = [text((job["task"], "bold"), f"  {job['id']}  ", screen.state(job["state"]))]
    for name, value in [first, *given, *rest, *made]:
        lines += [text((f"  {name:<11}", "dim"), one_line(value))] if value else []
    lines += [text(), *(line for attempt in attempts for line in _attempt(attempt, most))]
    if job["state"] == State.RUNNING:
        lines += _under_way(job, live, most)
    elif not attempts:
        lines.append(text(("no attempt has ended yet", "dim")))
    return screen.stacked(*lines)


def _short(data: bytes | None) -> str | None:
    if data is None:
        return None
    whole = data.decode(errors="replace")
    return whole if len(whole) <= MAX_ARGS_CHARS else f"{whole[:MAX_ARGS_CHARS]}… ({len(whole):,} characters)"


def _progress(job: dict[str, Any]) -> str | None:
    if job["progress_at"] is None:
        return None
    count = "" if job["current"] is None else figure(job["current"])
    count += "" if job["total"] is None else f" of {figure(job['total'])}"
    live = job["state"] == State.RUNNING and job["progress_attempt"] == job["attempt"]
    during = "" if live else f", in attempt {job['progress_attempt']}"
    return f"{count} {job['message'] or ''} at {moment(job['progress_at'])}{during}".strip()


def _attempt(attempt: Attempt, most: int) -> list[Text]:
    """One line with the outcome, and the evidence below it."""
    when = f"  {moment(attempt.started_at or attempt.ended_at)}"
    if attempt.started_at is not None:
        when += f" + {duration(max(0.0, (attempt.ended_at - attempt.started_at).total_seconds()))}"
    if attempt.worker is not None:
        when += f"  on {attempt.worker}"
        if attempt.hostname and attempt.hostname not in attempt.worker:
            when += f" ({attempt.hostname})"
    lines = [text(f"attempt {attempt.attempt}  ", screen.state(attempt.outcome), (when, "dim"))]
    lines += evidence_of(attempt, most)
    if attempt.result is not None:
        lines.append(_indented("result " + (_short(bytes(attempt.result)) or ""), "green"))
    return lines


def evidence_of(attempt: Attempt, most: int = TAIL_LINES) -> list[Text]:
    """Its signal or exit code, memory, error, stack and last output."""
    known = facts.evidence(msgspec.structs.asdict(attempt))
    lines = [_indented(known, "yellow")] if known else []
    lines += _memory(attempt.memory)
    if attempt.error:
        lines.append(_indented(attempt.error, "red"))
    if attempt.stack:
        stack = plain(attempt.stack).strip("\n") if most == sys.maxsize else stacks.brief(attempt.stack, most)
        lines += [_indented("stack", "dim"), _indented(stack, left=4)]
    return lines + (_output(*output.split(attempt.output), most) if attempt.output else [])


def _memory(course: MemoryCourse | None) -> list[Text]:
    """The memory over time as blocks of eight heights; the highest is the limit, if there is one."""
    if course is None:
        return []
    top = max([1, course.limit_bytes or 0, *course.used_bytes])
    step = math.ceil(len(course.used_bytes) / MOST_BLOCKS)
    highest = [max(course.used_bytes[n : n + step]) for n in range(0, len(course.used_bytes), step)]
    blocks = "".join(BLOCKS[round(used / top * (len(BLOCKS) - 1))] for used in highest)
    limit = "" if course.limit_bytes is None else f", limit {size(course.limit_bytes)}"
    words = f"memory {blocks} {size(max(course.used_bytes))} in {duration(course.at_s[-1])}{limit}"
    return [_indented(words, "yellow")]


def _output(missing: int, lines: list[str], most: int) -> list[Text]:
    """The last lines of an output, and how many it had."""
    cut = missing + len(lines) > most or missing
    title = f"output: last {min(most, len(lines))} lines of {missing + len(lines):,}" if cut else "output"
    return [_indented(title, "dim"), _indented("\n".join(lines[-most:]), left=4)]


def _under_way(job: dict[str, Any], live: OutputPart | None, most: int) -> list[Text]:
    since = (f"  since {moment(job['locked_at'])} on {job['locked_by']}", "dim")
    stopping = ("  asked to stop" if job["cancel_requested"] else "", "yellow")
    lines = [text(f"attempt {job['attempt']}  ", screen.state("running"), since, stopping)]
    lines.append(_indented(f"last heartbeat {moment(job['heartbeat_at'])}", "dim"))
    lines += [_indented(f"in the step {live.steps}", "dim")] if live and live.steps else []
    lines += _memory(live.memory if live else None)
    return lines + (_output(live.before, live.lines, most) if live and live.lines else [])


def _indented(words: str, style: str = "", *, left: int = 2) -> Text:
    return text((indent(plain(words), " " * left), style))
