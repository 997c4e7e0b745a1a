"""Close a batch, or cancel it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlive import store
from outlive.dashboard.actions.jobs import first_of
from outlive.dashboard.actions.questions import Form, NothingToDo, Question, wait_a_moment_for
from outlive.errors import BadArguments
from outlive.humanize import counted
from outlive.operations import By, controls
from outlive.operations.controls import audited
from outlive.operations.verbs import CANCEL
from outlive.store import JobFilter

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

CLOSED = "No client can add jobs to it any more. It is done when the jobs that it has have ended."


async def ask_to_close(site: Site, form: Form) -> Question:
    return Question("Close this batch?", CLOSED, _facts(await _find(site, form)))


async def close(site: Site, form: Form, by: By) -> None:
    id = (await _find(site, form))["id"]
    await site.writing.do_at_once(audited(store.close_batch(id), by, "close batch", {"batch": id}))
    site.note(by.entry, "the batch is closed")


async def ask_to_cancel(site: Site, form: Form) -> Question:
    batch = await _find(site, form)
    if not batch["unfinished"]:
        raise NothingToDo("No job of this batch can be cancelled: all have ended.", form)
    first = await first_of(site, JobFilter(batch=batch["id"], states=CANCEL.takes))
    words = f"Cancel {counted(batch['unfinished'], 'job')} of this batch?"
    return Question(words, CANCEL.note, _facts(batch), jobs=first)


async def cancel(site: Site, form: Form, by: By) -> None:
    batch = await _find(site, form)
    await wait_a_moment_for(_cancel(site, batch["id"], batch["unfinished"], by), site, by)


async def _cancel(site: Site, id: UUID, unfinished: int, by: By) -> None:
    closing = store.close_batch(id, cancelling=True)
    await site.writing.do_at_once(audited(closing, by, "cancel batch", {"batch": id}, jobs=unfinished))
    await site.writing.do(controls.cancel_jobs_of(id))
    site.note(by.entry, f"the batch and its {counted(unfinished, 'unfinished job')} were cancelled")


async def _find(site: Site, form: Form) -> Mapping[str, Any]:
    with suppress(ValueError):
        if found := await site.database.run(store.batch(UUID(form["name"]))):
            return found[0]
    raise BadArguments(f"there is no batch {form['name'][:40]}")


def _facts(batch: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [("Batch", batch["name"]), ("Id", str(batch["id"]))]
