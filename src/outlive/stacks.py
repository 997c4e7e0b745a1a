"""Stacks of dead and failed jobs: the frames of the user's own code apart from those of libraries and of outlive."""

from __future__ import annotations

import os
import re
from itertools import groupby
from pathlib import Path

import msgspec

from outlive.humanize import counted, plain, tail

MOST_FRAMES = 60
MOST_LINES = 400
TASK = "Asyncio task "
"""A part of a dump begins with this, and not with a thread, if it says where a task of asyncio waits."""
_PART = re.compile(rf"^(?=Thread |Current thread |{TASK})", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+')
_CALLER = re.compile(rf'^\s*File "(?:{re.escape(str(Path(__file__).parent) + os.sep)}|<frozen runpy>|<string>)')
_NOT_THEIRS = re.compile(r"site-packages/|dist-packages/|/lib(?:64)?/python3|<frozen |/outlive/child/|<string>")


class Stack(msgspec.Struct, frozen=True):
    theirs: str  # The frames of the user's own code, the one nearest to the crash first.
    others: int  # How many frames are not theirs.
    all: str


def read(text: str | None) -> Stack | None:
    """A traceback, or a dump: of that, the tasks of asyncio and the thread that crashed."""
    if not text:
        return None
    lines = [line for line in plain(text).splitlines() if line.strip()]
    frames = _frames(innermost(text, MOST_LINES).splitlines())
    if "most recent call first" not in text:
        frames.reverse()
    theirs = [frame for frame in frames if is_theirs(frame[0])]
    shown = "\n".join(line for frame in theirs for line in frame)
    return Stack(shown, len(frames) - len(theirs), "\n".join(lines[-MOST_LINES:]))


def is_theirs(frame: str) -> bool:
    """Whether a frame is of the user's own code, by its file."""
    return not _NOT_THEIRS.search(frame)


def brief(text: str, most: int) -> str:
    """What a terminal shows of a stack: their own frames, or else the innermost lines, and how much is left out."""
    stack = read(text)
    if stack is None or not stack.theirs:
        return innermost(text or "", most)
    lines = stack.theirs.splitlines()
    left = stack.others + sum(1 for line in lines[most:] if _FRAME.match(line))
    shown = "\n".join(lines[:most])
    return (
        f"{shown}\n  … and {counted(left, 'more frame')}, of libraries and of outlive (show --full)" if left else shown
    )


def evidence(dump: str) -> str:
    """What is kept of a dump by faulthandler: the tasks of asyncio first, as they wait in what the threads have called,
    and without the frames of outlive that have called the job."""
    if "most recent call first" not in dump:
        return dump
    first, *parts = _PART.split(_without_callers(dump))
    parts.sort(key=lambda part: not part.startswith(TASK))
    return "\n\n".join(part.strip("\n") for part in (first, *parts) if part.strip())


def _without_callers(text: str) -> str:
    """These frames are the same for all jobs. A thread that has no other frames keeps its own."""
    kept: list[str] = []
    for is_frame, group in groupby(text.splitlines(), lambda line: _FRAME.match(line) is not None):
        lines = list(group)
        callers = next((n for n, line in enumerate(reversed(lines)) if not _CALLER.match(line)), 0) if is_frame else 0
        kept += lines[: len(lines) - callers]
    return "\n".join(kept)


def innermost(text: str, most: int) -> str:
    """The lines nearest to the crash: the end of a traceback, or the beginning of what a dump has of the job."""
    if "most recent call first" not in text:
        return tail(text, most)
    return "\n".join([line for line in of_job(plain(text)).splitlines() if line][:most])


def of_job(dump: str) -> str:
    """Of a dump, where the tasks of asyncio wait, and then the thread that crashed."""
    parts = [part for part in _PART.split(dump) if "most recent call first" in part]
    tasks, threads = ([part for part in parts if part.startswith(TASK) == waits] for waits in (True, False))
    died = [part for part in threads if part.startswith("Current thread ")] or threads
    return "".join([*tasks, *died[:1]])


def _frames(lines: list[str]) -> list[list[str]]:
    """Each frame with the line of code below it, if there is one, without their indents."""
    found: list[list[str]] = []
    for n, line in enumerate(lines):
        if _FRAME.match(line):
            below = lines[n + 1] if n + 1 < len(lines) else ""
            code = [below] if below.startswith("    ") and not _FRAME.match(below) else []
            found.append([line.strip(), *(f"  {one.strip()}" for one in code)])
    return found[:MOST_FRAMES]
