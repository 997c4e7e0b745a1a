"""How an attempt ended, in words: what its signal means, how much memory it had, and the frames of the user's code."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from outlive import output
from outlive.model import Attempt
from outlive.states import Outcome
from outlive.wording import duration, innermost, plain, size

SIGNALS = {
    "SIGSEGV": "it touched memory that is not its own (a segmentation fault), most likely in native code",
    "SIGBUS": "it touched memory that is not there any more: a file that was cut short, or a full /dev/shm",
    "SIGABRT": "it aborted itself: an assertion in native code, or an allocator that found its heap corrupted",
    "SIGILL": "it executed an instruction that this CPU does not have",
    "SIGFPE": "it divided by zero in native code",
    "SIGKILL": "it was killed from outside: by the kernel for lack of memory, by its worker, or by a person",
    "SIGTERM": "it was asked to stop by something other than its worker",
    "SIGINT": "it was interrupted by something other than its worker",
    "SIGXCPU": "it used up its limit of processor time",
    "SIGPIPE": "it wrote to a pipe or socket that the other end had closed",
    "SIGSYS": "it made a system call that it is not allowed to make",
}
_LIMIT = re.compile(r"limit of ([\d,]+)(?: bytes)?")
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+')
_NOT_THEIRS = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen ", "/outlive/child/", "<string>")
MOST_LINES = 60


class Stack(msgspec.Struct, frozen=True):
    theirs: str
    """The frames of the user's own code, the one nearest to the crash first."""
    all: str


def meaning(outcome: str | None, signal: str | None) -> str | None:
    """Why a process died, for a person who does not know signals by heart."""
    match outcome:
        case Outcome.LOST:
            return "Its worker died or lost the database while it ran. The job itself may be innocent."
        case Outcome.OUT_OF_MEMORY:
            return "It needed more memory than it may use, and was killed."
        case Outcome.TIMED_OUT:
            return "It ran longer than it may, or made no progress, and was stopped."
        case Outcome.CRASHED if signal:
            return f"{signal}: {SIGNALS.get(signal, 'it was killed by this signal')}."
        case Outcome.CRASHED:
            return "Its process exited by itself, without a result."
        case _:
            return None


def limit_bytes(attempt: Attempt) -> int | None:
    """The memory limit that the attempt exceeded, as its error names it."""
    found = _LIMIT.search(attempt.error or "") if attempt.outcome is Outcome.OUT_OF_MEMORY else None
    return int(found[1].replace(",", "")) if found else None


def facts(attempt: Attempt) -> list[str]:
    found = [
        attempt.signal,
        None if attempt.exit_code is None else f"exit code {attempt.exit_code}",
        attempt.peak_memory_bytes and f"peak memory {size(attempt.peak_memory_bytes)}",
        attempt.cpu_s and f"processor time {duration(attempt.cpu_s)}",
    ]
    return [str(fact) for fact in found if fact]


def stack(text: str | None) -> Stack | None:
    """A traceback or a dump by faulthandler, with the frames of the user's own code apart."""
    if not text:
        return None
    lines = [line for line in plain(text).splitlines() if line.strip()]
    near = innermost(text, 400).splitlines()
    frames = _frames(near)
    if "most recent call first" not in text:
        frames.reverse()
    theirs = [frame for frame in frames if not any(part in frame[0] for part in _NOT_THEIRS)]
    return Stack("\n".join(line for frame in theirs for line in frame), "\n".join(lines[-400:]))


def _frames(lines: list[str]) -> list[list[str]]:
    """Each frame with the line of code below it, if there is one."""
    found: list[list[str]] = []
    for n, line in enumerate(lines):
        if _FRAME.match(line):
            below = lines[n + 1] if n + 1 < len(lines) else ""
            code = [below] if below.startswith("    ") and not _FRAME.match(below) else []
            found.append([line, *code])
    return found[:MOST_LINES]


def pretty(data: bytes | None, most: int) -> tuple[str, int]:
    """JSON with indents, cut after so many characters, and how many bytes it has."""
    if data is None:
        return "", 0
    if len(data) > most * 4:
        return data[:most].decode(errors="replace") + "…", len(data)
    try:
        words = msgspec.json.format(data, indent=2).decode(errors="replace")
    except msgspec.MsgspecError:
        words = data.decode(errors="replace")
    return (words if len(words) <= most else words[:most] + "…"), len(data)


def told(attempt: Attempt) -> dict[str, Any]:
    """Everything that the page shows of an attempt."""
    took_s = None if attempt.started_at is None else (attempt.ended_at - attempt.started_at).total_seconds()
    limit = limit_bytes(attempt)
    return {
        "it": attempt,
        "cause": meaning(attempt.outcome, attempt.signal),
        "facts": facts(attempt),
        "stack": stack(attempt.stack),
        "took_s": took_s,
        "limit_bytes": limit,
        "lines": output.split(attempt.output or ""),
        "result": None if attempt.result is None else pretty(bytes(attempt.result), 4000)[0],
    }
