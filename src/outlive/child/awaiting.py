"""Where async code is: the coroutines in which the tasks of asyncio wait.

A task that waits is on no thread, so it is in no dump by faulthandler. All of this runs only when a job is stopped, and
nothing of it raises into the job.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from linecache import getline
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from outlive.child import stops
from outlive.child.boundary import OURS, Raised, guarded, storable
from outlive.stacks import TASK

if TYPE_CHECKING:  # Otherwise every fork would pay for the libraries that come with it.
    import asyncio

T = TypeVar("T")
R = TypeVar("R")
MOST_TASKS = 10
MOST_FRAMES = 50
MOST_AWAITED = 10_000  # What looks like a coroutine may lead back to itself.
MAX_CHARS = 32_000  # In the process of one job, the dump of its threads is beside it.
_KINDS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


def on_stop(stack: int, number: int, frame: FrameType | None) -> None:
    """The handler of SIGTERM. faulthandler has written the threads to this descriptor, and the tasks follow."""
    guarded(_write, stack)
    stops.on_stop(number, frame)


def _write(stack: int) -> None:
    asyncio = sys.modules.get("asyncio")
    loop = asyncio and asyncio._get_running_loop()
    if asyncio and loop and asyncio.current_task(loop) is None:  # Otherwise the code runs, and its thread says where.
        os.write(stack, f"\n{stacks_of(asyncio.all_tasks(loop))}".encode())


class _Place(NamedTuple):
    """Where a task waits. The job's own comes first: it has frames of outlive, which call the job."""

    is_others: bool
    length: int
    name: str
    frames: list[FrameType]


def stacks_of(tasks: Iterable[asyncio.Task[Any]]) -> str:
    """Where these tasks wait, the job's own first, in the form of faulthandler: the innermost frame first."""
    found = sorted(_each(_place_of, tasks), key=lambda one: one[:3])
    shown = "\n".join(_each(_stack_of, found[:MOST_TASKS]))  # The others' would cost time: there may be thousands.
    left = f"\n… and {len(found) - MOST_TASKS} more tasks of asyncio\n" if len(found) > MOST_TASKS else ""
    return storable(shown[:MAX_CHARS] + left, 2 * MAX_CHARS)


def _each(code: Callable[[T], R], things: Iterable[T]) -> list[R]:
    """What it returns for each of them, without those at which it raises."""
    return [one for one in (guarded(code, thing) for thing in things) if not isinstance(one, Raised)]


def _place_of(task: asyncio.Task[Any]) -> _Place:
    frames = list(_frames(task.get_coro()))
    callers = next((n for n, one in enumerate(frames) if not one.f_code.co_filename.startswith(OURS)), 0)
    name = str(task.get_name())
    return _Place(not callers, len(name), name, frames[callers:])


def _stack_of(place: _Place) -> str:
    shown = "".join(map(_lines_of, place.frames[::-1][:MOST_FRAMES]))
    return f"{TASK}{place.name[:100]!r} (most recent call first):\n{shown}"


def _lines_of(frame: FrameType) -> str:
    """Without the checks of `traceback`, which take most of a millisecond: hundreds of jobs may time out together."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    code = getline(file, line).strip()
    return f'  File "{file}", line {line} in {frame.f_code.co_name}\n' + (f"    {code}\n" if code else "")


def _frames(code: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of all that it awaits, the innermost last."""
    for _ in range(MOST_AWAITED):
        kind = next((names for names in _KINDS if hasattr(code, names[0])), None)
        if kind is None:
            code = _hidden(code)
        else:
            frame, code = (getattr(code, name, None) for name in kind)
            if frame is not None:
                yield frame
        if code is None:
            return


def _hidden(awaited: Any) -> Any:
    """The coroutine or generator inside of an object of Python that does not show it, as `async for` awaits one."""
    if type(awaited).__module__ != "builtins":
        return None
    kinds = (CoroutineType, GeneratorType, AsyncGeneratorType)
    return next((one for one in gc.get_referents(awaited) if isinstance(one, kinds)), None)
