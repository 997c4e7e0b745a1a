"""Steps: functions whose results a job keeps. A later attempt gets what was kept, and does not call them again.

Outside of a job, a step is the function that it was made of.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload
from weakref import WeakSet

from outlive import job_gateway, validation
from outlive.arguments import Codec
from outlive.errors import ConfigError
from outlive.protocol import CHECKPOINT

if TYPE_CHECKING:
    from outlive.child.context import Context

BELOW = " > "  # Stands between the name of a step and that of one that it calls.
RESERVED = frozenset({"sleep", "receive", "gather", "once", CHECKPOINT})
_MADE = re.compile(rf"{BELOW}|[,:] |#\d+$")
"""What is in the names that the journal makes, or beside them in the evidence of a death: not in what jobs give."""
DECLARED: WeakSet[Step[..., Any]] = WeakSet()
P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A step, which is called like its function. `named` gives one of several calls a name of its own."""

    def __init__(
        self, function: Callable[P, R], *, attempts: int, backoff_s: float, timeout_s: float | None, relaxed: bool
    ) -> None:
        self.function, self.name = function, function.__name__
        self.attempts, self.backoff_s, self.timeout_s, self.relaxed = attempts, backoff_s, timeout_s, relaxed
        self.is_async = inspect.iscoroutinefunction(function)
        self.codec = Codec(self.name, function)
        self.label: str | None = None
        functools.update_wrapper(self, function)
        DECLARED.add(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What was kept under the name of this call, or what the function returns, which is kept then."""
        if (context := cast("Context | None", job_gateway.context())) is None:
            return self.function(*args, **kwargs)
        take = context.journal.atake if self.is_async else context.journal.take
        return cast("R", take(self, args, kwargs))

    def named(self, label: str) -> Step[P, R]:
        """The same step under a name of its own, for calls whose order may change, or that run at once."""
        other = copy(self)
        other.label = part_of_name("name", label)
        return other

    def __set_name__(self, owner: type, name: str) -> None:
        raise ConfigError(f"{owner.__qualname__}.{name} can't be a step: write a function outside of the class")


def part_of_name(key: str, text: str) -> str:
    """A part of the name of a step that a job gives. It must look like no name that the journal makes."""
    if _MADE.search(validation.identifier(key, text)):
        wanted = f"a text without {BELOW!r}, ', ' and ': ', and without '#' and a number at its end"
        raise validation.refused(key, text, wanted)
    return text


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    attempts: int = ...,
    backoff: validation.Duration = ...,
    timeout: validation.Duration | None = ...,
    relaxed: bool = ...,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    attempts: int = 1,
    backoff: validation.Duration = 1.0,
    timeout: validation.Duration | None = None,
    relaxed: bool = False,
) -> Any:
    """Make a function a step: a job that calls it keeps what it returns.

    `attempts` and `backoff`: how often it is called if it raises, and how long to wait before the second call; the wait
    doubles each time. `timeout`: how long a call may take. `relaxed`: the job goes on before the step is in the
    database, and the step may be lost with its worker.
    """
    tries = validation.count("attempts", attempts, most=1000)
    backoff_s = validation.seconds("backoff", backoff)
    timeout_s = None if timeout is None else validation.seconds("timeout", timeout)

    def make(made_of: Callable[..., Any]) -> Step[Any, Any]:
        if not inspect.isfunction(made_of) or made_of.__name__ == "<lambda>":
            raise ConfigError(f"{made_of!r} can't be a step: write a function with a name")
        if inspect.isgeneratorfunction(made_of) or inspect.isasyncgenfunction(made_of):
            raise ConfigError(f"{made_of.__qualname__} can't be a step: a generator returns nothing that can be kept")
        if made_of.__name__ in RESERVED:
            taken = "outlive itself keeps something under this name"
            raise ConfigError(f"a step can't be named {made_of.__name__}: {taken}")
        return Step(made_of, attempts=tries, backoff_s=backoff_s, timeout_s=timeout_s, relaxed=relaxed)

    return make if function is None else make(function)
