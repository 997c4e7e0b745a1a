"""What operators do: to jobs that they select or that match a filter, to batches, queues, sources, schedules, workers.

The page `/confirm` asks first, and says how many jobs it concerns. Its form then proves that it comes from that page.
Both find the same action in their fields. Every action is written to the audit, in its own transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from outlive import store
from outlive.dashboard.access import Role
from outlive.dashboard.job_choice import filter_of, ids_of
from outlive.dashboard.visits import Elsewhere, Refused, Visit, inside
from outlive.errors import BadArguments
from outlive.humanize import counted, number
from outlive.model import new_job_id
from outlive.operations import By, controls, selection, verbs
from outlive.operations.controls import CONTROLS, Control, audited
from outlive.operations.selection import Count
from outlive.operations.verbs import CANCEL, PRUNE, VERBS, Tally, Verb
from outlive.store import JobFilter

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

COUNT_S = 0.5
WAIT_S = 1.5
RATE = "rate_limit_per_minute"
VIEWER = "You are logged in as a viewer: log in with the operator token to change jobs."
Fields = Sequence[tuple[str, str]]


class Nothing(Exception):
    """The action concerns no job. The text says why."""


async def ask(site: Site, visit: Visit) -> Mapping[str, Any]:
    """The page that asks before an action."""
    if visit.role is not Role.OPERATOR:
        raise Refused(VIEWER)
    back = inside(visit.get("back") or "")
    try:
        question = await action_in(visit.query).question(site)
    except Nothing as nothing:
        raise Elsewhere(str(nothing), back) from None
    return {"title": "Confirm", "back": back, "rate": None, "chosen": None, "danger": False, **question}


async def do(site: Site, fields: Fields, who: str) -> UUID:
    """Do what the page has asked about. Returns the entry of the audit."""
    by = By(who, new_job_id())
    await action_in(fields).do(site, by)
    return by.entry


def action_in(fields: Fields) -> OnJobs | OnBatch | OnThing:
    """The action that the fields of an address or a form name."""
    values = dict(fields)
    action, name = values.get("action", ""), values.get("name", "").replace("\0", "").strip()
    if action in CONTROLS:
        return OnThing(CONTROLS[action], name, values.get("rate", "").strip() if action == "set_rate" else None)
    if action in ("cancel_batch", "close_batch"):
        return OnBatch(name, cancelling=action == "cancel_batch")
    verb, _, all = action.partition("_")
    if verb not in VERBS or all not in ("", "all"):
        raise BadArguments(f"there is no action {action[:40]!r}")
    return OnJobs(VERBS[verb], VERBS[verb].narrowed(filter_of(values)) if all else ids_of(fields))


@dataclass(frozen=True, slots=True)
class OnJobs:
    verb: Verb
    chosen: JobFilter | list[UUID]

    async def question(self, site: Site) -> Mapping[str, Any]:
        if isinstance(self.chosen, JobFilter):
            count = await site.database.do(selection.count(self.chosen, patience_s=COUNT_S))
            none = f"No job that matches can be {self.verb.past}."
        else:
            count, none = Count(len(self.chosen), more=False), "No job was selected."
        if not count.jobs:
            raise Nothing(none)
        words, danger = f"{self.verb.word} {count}?", self.verb is PRUNE
        return {"words": words, "note": self.verb.note, "chosen": await self._in_words(site), "danger": danger}

    async def _in_words(self, site: Site) -> list[tuple[str, str]]:
        """The filter, or the one job that is meant."""
        if isinstance(self.chosen, JobFilter):
            parts = [selection.in_words(key, value) for key, value in msgspec.to_builtins(self.chosen).items()]
            return [(label.capitalize(), words) for label, words in parts]
        if len(self.chosen) > 1:
            return []
        rows = await site.database.run(store.list_jobs(self.chosen))
        return [
            one for row in rows for one in (("Task", row["task"]), ("Job", str(row["id"])), ("State", row["state"]))
        ]

    async def do(self, site: Site, by: By) -> None:
        await _wait_for(site, self._act(site, by), by)

    async def _act(self, site: Site, by: By) -> None:
        tally = Tally(self.verb)
        try:
            await site.writing.do(verbs.act(tally, self.chosen, by))
        except Exception as error:
            site.note(by.entry, f"{tally}, then it failed: {error}")
            raise
        why = next((f": {one.note}" for one in tally.unchanged if one.note), "")
        unchanged = tally.jobs - tally.changed
        site.note(by.entry, f"{tally}, {number(unchanged)} not changed{why}" if unchanged else str(tally))


@dataclass(frozen=True, slots=True)
class OnBatch:
    name: str
    cancelling: bool

    async def question(self, site: Site) -> Mapping[str, Any]:
        batch = await self._found(site)
        chosen = [("Batch", batch["name"]), ("Id", self.name)]
        if not self.cancelling:
            note = "No client can add jobs to it any more. It is done when the jobs that it has have ended."
            return {"words": "Close this batch?", "note": note, "chosen": chosen}
        if not batch["unfinished"]:
            raise Nothing("No job of this batch can be cancelled: all have ended.")
        words = f"Cancel {counted(batch['unfinished'], 'job')} of this batch?"
        return {"words": words, "note": CANCEL.note, "chosen": chosen}

    async def _found(self, site: Site) -> Mapping[str, Any]:
        with suppress(ValueError):
            if found := await site.database.run(store.batch(UUID(self.name))):
                return found[0]
        raise BadArguments(f"there is no batch {self.name[:40]}")

    async def do(self, site: Site, by: By) -> None:
        batch = await self._found(site)
        if self.cancelling:
            await _wait_for(site, self._cancel(site, batch["id"], batch["unfinished"], by), by)
        else:
            closing = audited(store.close_batch(batch["id"]), by, "close batch", {"batch": batch["id"]})
            await site.writing.do_at_once(closing)
            site.note(by.entry, "the batch is closed")

    async def _cancel(self, site: Site, id: UUID, unfinished: int, by: By) -> None:
        closing = store.close_batch(id, cancelling=True)
        await site.writing.do_at_once(audited(closing, by, "cancel batch", {"batch": id}, jobs=unfinished))
        await site.writing.do(controls.cancel_jobs_of(id))
        site.note(by.entry, f"the batch and its {counted(unfinished, 'unfinished job')} were cancelled")


@dataclass(frozen=True, slots=True)
class OnThing:
    """On a queue, a source, a schedule or a worker. `rate` is the new one of a source."""

    control: Control
    name: str
    rate: str | None

    async def question(self, site: Site) -> Mapping[str, Any]:
        rate = None if self.rate is None else await self._present_rate(site)
        return {"words": self.control.asked(self.name), "note": self.control.note, "rate": rate}

    async def _present_rate(self, site: Site) -> str:
        for row in await site.database.run(store.list_sources()):
            if row["name"] == self.name:
                return "" if row[RATE] is None else f"{row[RATE]:g}"
        raise BadArguments(f"there is no source {self.name}")

    async def do(self, site: Site, by: By) -> None:
        control, limits = self.control, {} if self.rate is None else {RATE: controls.limit_of_source(RATE, self.rate)}
        statement = control.make(self.name, limits) if limits else control.make(self.name)
        done = await site.writing.do_at_once(
            audited(statement, by, control.action, {control.noun: self.name, **limits})
        )
        if done in (False, []):
            raise BadArguments(f"there is no {control.noun} {self.name}, or it was {control.done} already")
        site.note(by.entry, control.result(self.name))


async def _wait_for(site: Site, work: Coroutine[Any, Any, None], by: By) -> None:
    """Wait for an action on jobs, but not long: it may take minutes."""
    site.note(by.entry, "under way: the audit shows how far it is")
    task = asyncio.create_task(work)
    site.acting.add(task)
    task.add_done_callback(site.acting.discard)
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    if done:
        await task
