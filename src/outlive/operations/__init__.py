"""What operators look at and do, for the command line and the dashboard alike: what it is called, which jobs are meant,
what is wrong, and the facts of a job. Nothing here knows a terminal or a request, and nothing here runs a statement.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from outlive.statement import Statement

T = TypeVar("T")
Steps = Generator[Statement[Any], Any, T]
"""An operation of several statements. It yields each, and is sent the answer."""


class By(NamedTuple):
    """Who does something, and the entry of the audit that says so."""

    who: str
    entry: UUID


def run(steps: Steps[T], ask: Callable[[Statement[Any]], Any]) -> T:
    """Do an operation; `ask` runs a statement."""
    answer: Any = None
    try:
        while True:
            answer = ask(steps.send(answer))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(steps: Steps[T], ask: Callable[[Statement[Any]], Awaitable[Any]]) -> T:
    answer: Any = None
    try:
        while True:
            answer = await ask(steps.send(answer))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
