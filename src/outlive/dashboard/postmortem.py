"""How an attempt ended, in words: what its signal means, how much memory it had, and the frames of the user's code."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from markupsafe import Markup

from outlive import output, stacks
from outlive.dashboard import charts
from outlive.humanize import duration, size
from outlive.model import Attempt, MemoryCourse
from outlive.operations.facts import evidence
from outlive.states import Outcome

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


def meaning(outcome: str | None, signal: str | None) -> str | None:
    """Why a process died, for a person who does not know signals by heart."""
    match outcome:
        case Outcome.LOST:
            return "Its worker died, or lost its zygote or the database, while it ran. The job itself may be innocent."
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
    """Its memory limit, if that was measured against, or the one that it exceeded, as its error names it."""
    if attempt.memory is not None:
        return attempt.memory.limit_bytes
    found = _LIMIT.search(attempt.error or "") if attempt.outcome is Outcome.OUT_OF_MEMORY else None
    return int(found[1].replace(",", "")) if found else None


def pretty(data: bytes | None, most: int) -> str:
    """JSON with indents, cut after `most` characters."""
    if data is None:
        return ""
    if len(data) > most * 4:
        return data[:most].decode(errors="replace") + "…"
    try:
        words = msgspec.json.format(data, indent=2).decode(errors="replace")
    except (msgspec.MsgspecError, RecursionError):
        words = data.decode(errors="replace")
    return words if len(words) <= most else words[:most] + "…"


def memory_chart(memory: MemoryCourse | None) -> Markup | None:
    if memory is None:
        return None
    most = max(memory.used_bytes)
    limit = "" if memory.limit_bytes is None else f" of {size(memory.limit_bytes)} that it may use"
    after = duration(memory.at_s[memory.used_bytes.index(most)])
    return charts.memory(memory, about=f"Memory: {size(most)}{limit} after {after}")


def shown(attempt: Attempt) -> dict[str, Any]:
    took_s = None if attempt.started_at is None else (attempt.ended_at - attempt.started_at).total_seconds()
    limit = limit_bytes(attempt)
    return {
        "it": attempt,
        "cause": meaning(attempt.outcome, attempt.signal),
        "evidence": evidence(msgspec.structs.asdict(attempt)),
        "stack": stacks.read(attempt.stack),
        "took_s": took_s,
        "limit_bytes": limit,
        "memory": memory_chart(attempt.memory),
        "lines": output.split(attempt.output or ""),
        "result": None if attempt.result is None else pretty(bytes(attempt.result), 4000),
    }
