"""What an action of an operator is, and the question that comes before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from outlive.operations import By

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

WAIT_S = 1.5
Fact = tuple[str, str | datetime]


class Form:
    """The fields of an action, in the address of its question or in the answer."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self.fields, self.values = fields, dict(fields)

    def __getitem__(self, name: str) -> str:
        """What a field has, or nothing."""
        return self.values.get(name, "").replace("\0", "").strip()

    def typed(self, names: Collection[str]) -> dict[str, str]:
        """What an operator has written into some fields of a question."""
        return {name: self[name] for name in names if name in self.values}


class NothingToDo(Exception):
    """The action concerns no job: go back to the page that it comes from, which shows this text."""

    def __init__(self, words: str, form: Form) -> None:
        super().__init__(words)
        self.back = form["back"]


@dataclass(frozen=True, slots=True)
class Field:
    """A value that the operator may change before the answer. `hint` says what an empty one means."""

    name: str
    label: str
    value: str
    hint: str = ""
    choices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """What the page `/confirm` shows. `jobs` are the first jobs that it concerns, if there are several. `fixed` are
    values that the answer has in place of those that were asked for: moments for durations.
    """

    words: str
    note: str
    facts: Sequence[Fact] = ()
    danger: bool = False
    fields: Sequence[Field] = ()
    jobs: Sequence[Mapping[str, Any]] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """`ask` finds what to ask first, and raises `NothingToDo` if no job is left to act on. `do` does it, and notes what
    became of it for the page that the operator goes back to.
    """

    ask: Callable[[Site, Form], Awaitable[Question]]
    do: Callable[[Site, Form, By], Awaitable[None]]


async def wait_a_moment_for(work: Coroutine[Any, Any, None], site: Site, by: By) -> None:
    """Start an action on jobs, which may take minutes. The operator waits for a moment, and then goes back."""
    site.note(by.entry, "under way: the audit shows how far it is")
    task = asyncio.create_task(work)
    site.acting.add(task)
    task.add_done_callback(site.acting.discard)
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    if done:
        await task
