"""show: prints one job with all its attempts and their evidence."""

import contextlib
import math
import sys
import time
from datetime import datetime
from textwrap import indent
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from outlive import output, stacks, store, wire
from outlive.cli import screen
from outlive.cli.choosing import found_id
from outlive.cli.command import LOOK, CommandContext, JobId, Json, Watch, app, command
from outlive.errors import OutliveError, no_job
from outlive.model import Attempt, MemoryCourse, Said
from outlive.operations.facts import Part, evidence, facts
from outlive.states import State

MAX_ARGS_CHARS = 2000
TAIL_LINES = 12
AGAIN_S = 0.02
ANSWER_S = 0.5
"""How long a worker may take to tell what a running job has said."""
MOST_BLOCKS = 32
BLOCKS = "▁▂▃▄▅▆▇█"


@command(app, panel=LOOK)
def show(
    context: CommandContext,
    id: JobId,
    json: Json = False,
    watch: Watch = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print all frames of stacks, and all output that is kept.")
    ] = False,
) -> None:
    """Show one job: every attempt, why it ended, and the evidence.

    The time of an attempt is from its claim to its recorded end; the worker's log has the time of the run alone.
    `peak` is the most that the kernel has counted, with what the process shares with the worker; `memory` is without
    that, and is what counts for the limit.

    Example: outlive show ID
    """
    job = found_id(context, "job", id)

    def look() -> tuple[dict[str, Any], list[Attempt], Said | None]:
        found = context.run(store.job(job))
        if not found:
            raise no_job(job)
        said = _so_far(context, job) if found[0]["state"] == State.RUNNING else None
        return found[0], context.run(store.list_attempts(job)), said

    screen.listing(
        look, lambda found: life(*found, full=full), json=json, watch=watch, shape=lambda found: _as_json(*found)
    )


def _so_far(context: CommandContext, job: UUID) -> Said | None:
    """What its running attempt has said and used. Its worker is asked first, and may take a moment to answer."""
    late = time.monotonic() + ANSWER_S
    with contextlib.suppress(OutliveError):  # A standby can't ask a worker.
        while (said := context.run(store.watch(job))) and said.asked and time.monotonic() < late:
            time.sleep(AGAIN_S)
        return said if said and said.live else None
    return None


def _as_json(job: dict[str, Any], attempts: list[Attempt], said: Said | None) -> dict[str, object]:
    """The JSON form of a job. Programs rely on its keys."""
    first = ("id", "task", "queue", "source", "state", "args", "priority", "created_at", "ready_at")
    shape = {key: job[key] for key in (*first, "failures", "crashes", "losses")}
    shape |= {"args": wire.readable(job["args"]), "progress": None}
    if job["progress_at"] is not None:
        progress = {key: job[key] for key in ("current", "total", "message")} | {"attempt": job["progress_attempt"]}
        checkpoint = job["checkpoint"] and wire.readable(job["checkpoint"])
        shape["progress"] = progress | {"checkpoint": checkpoint, "updated_at": job["progress_at"]}
    shape["schedule"] = job["schedule"]
    shape["kills_by_others"] = job["kills"]
    for name in ("waits_for", "needed_by"):
        shape[name] = {"jobs": job[name], "first": msgspec.Raw(job[f"{name}_first"] or b"[]")}
    evidence = [field for field in Attempt.__struct_fields__ if field != "result"]
    shape["attempts"] = [{field: getattr(attempt, field) for field in evidence} for attempt in attempts]
    shape["running"] = said and {"attempt": said.attempt, "output": "\n".join(said.lines), "memory": said.memory}
    result = attempts[-1].result if attempts and job["state"] == State.SUCCEEDED else None
    shape["result"] = None if result is None else wire.readable(bytes(result))
    return shape


def life(
    job: dict[str, Any], attempts: list[Attempt], said: Said | None = None, *, full: bool = False
) -> RenderableType:
    parts: list[RenderableType] = [*_facts(job), Text()]
    parts += [part for attempt in attempts for part in _attempt(attempt, full=full)]
    if job["state"] == "running":
        parts += [_under_way(job), *_evidence_so_far(said, full=full)]
    if not attempts and job["state"] != "running":
        parts.append(Text("no attempt yet", style="dim"))
    return Group(*parts)


def _facts(job: dict[str, Any]) -> list[RenderableType]:
    head = Text(screen.plain(job["task"]), style="bold").append(f"  {job['id']}  ", style="not bold")
    head.append_text(screen.state(job["state"]))
    first, *rest = [(name, "".join(map(_part, parts))) for name, parts in facts(job)]
    given = [("arguments", _short(job["args"])), ("options", _short(job["options"]))]
    made = [("progress", _progress(job)), ("checkpoint", _short(job["checkpoint"]))]
    return [head, *(_fact(name, value) for name, value in [first, *given, *rest, *made] if value)]


def _part(part: Part) -> str:
    return screen.moment(part) if isinstance(part, datetime) else str(part)


def _fact(name: str, value: str) -> Text:
    return Text(f"  {name:<11}", style="dim").append(screen.plain(screen.one_line(value)), style="not dim")


def _short(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data.decode(errors="replace")
    return text if len(text) <= MAX_ARGS_CHARS else f"{text[:MAX_ARGS_CHARS]}… ({len(text):,} characters)"


def _progress(job: dict[str, Any]) -> str | None:
    if job["progress_at"] is None:
        return None
    count = "" if job["current"] is None else f"{job['current']:g}"
    count += "" if job["total"] is None else f" of {job['total']:g}"
    live = job["state"] == "running" and job["progress_attempt"] == job["attempt"]
    during = "" if live else f", in attempt {job['progress_attempt']}"
    return f"{count} {job['message'] or ''} at {screen.moment(job['progress_at'])}{during}".strip()


def _attempt(attempt: Attempt, *, full: bool) -> list[RenderableType]:
    """One line with the outcome, and the evidence below it."""
    line = Text(f"attempt {attempt.attempt}  ").append_text(screen.state(attempt.outcome))
    line.append(f"  {screen.moment(attempt.started_at or attempt.ended_at)}", style="dim")
    if attempt.started_at is not None:
        took_s = (attempt.ended_at - attempt.started_at).total_seconds()
        line.append(f" + {screen.duration(max(0.0, took_s))}", style="dim")
    if attempt.worker is not None:
        line.append(f"  on {screen.plain(attempt.worker)}", style="dim")
        if attempt.hostname and attempt.hostname not in attempt.worker:
            line.append(f" ({screen.plain(attempt.hostname)})", style="dim")
    parts: list[RenderableType] = [line, *evidence_of(attempt, full=full)]
    if attempt.result is not None:
        parts.append(_indented("result " + (_short(bytes(attempt.result)) or ""), "green"))
    return parts


def evidence_of(attempt: Attempt, *, full: bool = False) -> list[RenderableType]:
    """Its signal or exit code, error, stack and last output."""
    parts: list[RenderableType] = []
    if known := evidence(msgspec.structs.asdict(attempt)):
        parts.append(_indented(known, "yellow"))
    if attempt.memory is not None:
        parts.append(_indented(memory_line(attempt.memory), "yellow"))
    if attempt.error:
        parts.append(_indented(attempt.error, "red"))
    if attempt.stack:
        shown = screen.plain(attempt.stack).strip("\n") if full else stacks.brief(attempt.stack, TAIL_LINES)
        parts += [_indented("stack", "dim"), _indented(shown, left=4)]
    if attempt.output:
        parts += _output(*output.split(attempt.output), sys.maxsize if full else TAIL_LINES)
    return parts


def memory_line(course: MemoryCourse) -> str:
    """Its memory over time as blocks of eight heights; the highest is the limit, if there is one."""
    top = max([1, course.limit_bytes or 0, *course.used_bytes])
    step = math.ceil(len(course.used_bytes) / MOST_BLOCKS)
    highest = [max(course.used_bytes[n : n + step]) for n in range(0, len(course.used_bytes), step)]
    blocks = "".join(BLOCKS[round(used / top * (len(BLOCKS) - 1))] for used in highest)
    limit = "" if course.limit_bytes is None else f", limit {screen.size(course.limit_bytes)}"
    return f"memory {blocks} {screen.size(max(course.used_bytes))} in {screen.duration(course.at_s[-1])}{limit}"


def _output(missing: int, lines: list[str], most: int) -> list[RenderableType]:
    """The last lines of an output, and how many it had."""
    shown = "\n".join(lines[-most:])
    cut = missing + len(lines) > most or missing
    title = f"output: last {min(most, len(lines))} lines of {missing + len(lines):,}" if cut else "output"
    return [_indented(title, "dim"), _indented(shown, left=4)]


def _under_way(job: dict[str, Any]) -> Text:
    line = Text(f"attempt {job['attempt']}  ").append_text(screen.state("running"))
    line.append(f"  since {screen.moment(job['locked_at'])} on {screen.plain(job['locked_by'])}", style="dim")
    if job["cancel_requested"]:
        line.append("  asked to stop", style="yellow")
    return line.append(f"\n  last heartbeat {screen.moment(job['heartbeat_at'])}", style="dim")


def _evidence_so_far(said: Said | None, *, full: bool) -> list[RenderableType]:
    if said is None:
        return []
    parts: list[RenderableType] = []
    if said.memory is not None:
        parts.append(_indented(memory_line(said.memory), "yellow"))
    if said.lines:
        parts += _output(said.before, said.lines, sys.maxsize if full else TAIL_LINES)
    return parts


def _indented(text: str, style: str = "", *, left: int = 2) -> Text:
    return Text(indent(screen.plain(text), " " * left), style=style)
