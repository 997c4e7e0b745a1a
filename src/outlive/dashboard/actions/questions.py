"""What an action of an operator is, and the question that comes before it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outlive.operations import By

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

WAIT_S = 1.5


class NothingToDo(Exception):
    """The action concerns no job. The text says why."""


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
    """What the page `/confirm` shows. `jobs` are the first jobs that it concerns, if there are several."""

    words: str
    note: str
    facts: Sequence[tuple[str, str]] = ()
    danger: bool = False
    fields: Sequence[Field] = ()
    jobs: Sequence[Mapping[str, Any]] = ()


class Action(Protocol):
    async def question(self, site: Site) -> Question:
        """What to ask first. Raises `NothingToDo` if no job is left to act on."""

    async def perform(self, site: Site, by: By) -> None:
        """Do it, and note what became of it for the page that the operator goes back to."""


async def wait_a_moment_for(work: Coroutine[Any, Any, None], site: Site, by: By) -> None:
    """Start an action on jobs, which may take minutes. The operator waits for a moment, and then goes back."""
    site.note(by.entry, "under way: the audit shows how far it is")
    task = asyncio.create_task(work)
    site.acting.add(task)
    task.add_done_callback(site.acting.discard)
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    if done:
        await task
