"""Close a batch, or cancel it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlive import store
from outlive.dashboard.actions.jobs import first_of
from outlive.dashboard.actions.questions import NothingToDo, Question, wait_a_moment_for
from outlive.errors import BadArguments
from outlive.humanize import counted
from outlive.operations import By, controls
from outlive.operations.controls import audited
from outlive.operations.verbs import CANCEL
from outlive.store import JobFilter

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

CLOSED = "No client can add jobs to it any more. It is done when the jobs that it has have ended."


@dataclass(frozen=True, slots=True)
class CloseBatch:
    id: str

    async def question(self, site: Site) -> Question:
        batch = await _find(site, self.id)
        return Question("Close this batch?", CLOSED, _facts(batch))

    async def perform(self, site: Site, by: By) -> None:
        id = (await _find(site, self.id))["id"]
        await site.writing.do_at_once(audited(store.close_batch(id), by, "close batch", {"batch": id}))
        site.note(by.entry, "the batch is closed")


@dataclass(frozen=True, slots=True)
class CancelBatch:
    id: str

    async def question(self, site: Site) -> Question:
        batch = await _find(site, self.id)
        if not batch["unfinished"]:
            raise NothingToDo("No job of this batch can be cancelled: all have ended.")
        jobs = counted(batch["unfinished"], "job")
        first = await first_of(site, JobFilter(batch=batch["id"], states=CANCEL.takes))
        return Question(f"Cancel {jobs} of this batch?", CANCEL.note, _facts(batch), jobs=first)

    async def perform(self, site: Site, by: By) -> None:
        batch = await _find(site, self.id)
        await wait_a_moment_for(_cancel(site, batch["id"], batch["unfinished"], by), site, by)


async def _cancel(site: Site, id: UUID, unfinished: int, by: By) -> None:
    closing = store.close_batch(id, cancelling=True)
    await site.writing.do_at_once(audited(closing, by, "cancel batch", {"batch": id}, jobs=unfinished))
    await site.writing.do(controls.cancel_jobs_of(id))
    site.note(by.entry, f"the batch and its {counted(unfinished, 'unfinished job')} were cancelled")


async def _find(site: Site, id: str) -> Mapping[str, Any]:
    with suppress(ValueError):
        if found := await site.database.run(store.batch(UUID(id))):
            return found[0]
    raise BadArguments(f"there is no batch {id[:40]}")


def _facts(batch: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [("Batch", batch["name"]), ("Id", str(batch["id"]))]
