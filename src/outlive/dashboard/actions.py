"""What operators do: on jobs that they select or that match a filter, on queues, sources, schedules and batches.

A page asks first, and says how many jobs it concerns. The form then proves that it comes from that page. Every action
is written to the audit, in its own transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from outlive import store
from outlive.dashboard.access import Role
from outlive.dashboard.choosing import filter_of, ids_of
from outlive.dashboard.visits import Elsewhere, Refused, Visit, inside
from outlive.errors import BadArguments
from outlive.model import new_job_id
from outlive.operations import By, controls, selection, verbs
from outlive.operations.controls import CONTROLS, audited
from outlive.operations.selection import Count
from outlive.operations.verbs import CANCEL, PRUNE, VERBS, Tally, Verb
from outlive.store import JobFilter
from outlive.wording import counted, number

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

COUNT_S = 0.5
WAIT_S = 1.5
RATE = "rate_limit_per_minute"


async def ask(site: Site, visit: Visit) -> Mapping[str, Any]:
    """The page that asks before an action."""
    if visit.role is not Role.OPERATOR:
        raise Refused("You are logged in as a viewer: log in with the operator's token to change jobs.")
    action, name, back = visit.get("action") or "", visit.get("name") or "", inside(visit.get("back") or "")
    found = {"title": "Confirm", "back": back, "rate": None, "chosen": None, "danger": False}
    if control := CONTROLS.get(action):
        rate = await _rate_of(site, name) if action == "set_rate" else None
        return {**found, "words": control.asked(name), "note": control.note, "rate": rate}
    if action in ("cancel_batch", "close_batch"):
        return {**found, **await _ask_of_batch(site, action, name, back)}
    verb, chosen = _chosen(action, list(visit.query))
    if isinstance(chosen, JobFilter):
        count = await site.database.do(selection.count(chosen, patience_s=COUNT_S))
        none = f"No job that matches can be {verb.past}."
    else:
        count, none = Count(len(chosen), more=False), "No job was selected."
    if not count.jobs:
        raise Elsewhere(none, back)
    chosen_in_words, words = await _chosen_in_words(site, chosen), f"{verb.word} {count}?"
    return {**found, "words": words, "note": verb.note, "chosen": chosen_in_words, "danger": verb is PRUNE}


async def _chosen_in_words(site: Site, chosen: JobFilter | list[UUID]) -> list[tuple[str, str]]:
    """The filter, or the one job that is meant."""
    if isinstance(chosen, JobFilter):
        parts = [selection.in_words(key, value) for key, value in msgspec.to_builtins(chosen).items()]
        return [(label.capitalize(), words) for label, words in parts]
    if len(chosen) > 1:
        return []
    rows = await site.database.run(store.list_jobs(chosen))
    return [pair for row in rows for pair in (("Task", row["task"]), ("Job", str(row["id"])), ("State", row["state"]))]


async def _ask_of_batch(site: Site, action: str, name: str, back: str) -> Mapping[str, Any]:
    batch = await _batch(site, name)
    chosen = [("Batch", batch["name"]), ("Id", name)]
    if action == "close_batch":
        note = "No client can add jobs to it any more. It is done when the jobs that it has have ended."
        return {"words": "Close this batch?", "note": note, "chosen": chosen}
    if not batch["unfinished"]:
        raise Elsewhere("No job of this batch can be cancelled: all have ended.", back)
    words = f"Cancel {counted(batch['unfinished'], 'job')} of this batch?"
    return {"words": words, "note": CANCEL.note, "chosen": chosen}


async def do(site: Site, fields: Sequence[tuple[str, str]], who: str) -> UUID:
    """Do what the page has asked about. Returns the entry of the audit."""
    values = dict(fields)
    action, name, by = values.get("action", ""), values.get("name", ""), By(who, new_job_id())
    if action in CONTROLS:
        site.tell(by.entry, await _control(site, action, name, values, by))
    elif action == "close_batch":
        id = (await _batch(site, name))["id"]
        await site.writing.do_at_once(audited(store.close_batch(id), by, "close batch", {"batch": id}))
        site.tell(by.entry, "the batch is closed")
    elif action == "cancel_batch":
        await _wait_for(site, _cancel_batch(site, await _batch(site, name), by), by)
    else:
        verb, chosen = _chosen(action, fields)
        await _wait_for(site, _act(site, verb, chosen, by), by)
    return by.entry


async def _wait_for(site: Site, work: Coroutine[Any, Any, None], by: By) -> None:
    """Wait for an action on jobs, but not long: it may take minutes."""
    site.tell(by.entry, "under way: the audit shows how far it is")
    task = asyncio.get_running_loop().create_task(work)
    site.acting.add(task)
    task.add_done_callback(site.acting.discard)
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    if done:
        await task


async def _control(site: Site, action: str, name: str, values: Mapping[str, str], by: By) -> str:
    """Do something to one thing, and say what."""
    control = CONTROLS[action]
    limits = {RATE: controls.limit_of_source(RATE, values.get("rate", "").strip())} if action == "set_rate" else {}
    statement = control.make(name, limits) if limits else control.make(name)
    done = await site.writing.do_at_once(audited(statement, by, control.action, {control.noun: name, **limits}))
    if done in (False, []):
        raise BadArguments(f"there is no {control.noun} {name}, or it was {control.done} already")
    return control.result(name)


def _chosen(action: str, fields: Sequence[tuple[str, str]]) -> tuple[Verb, JobFilter | list[UUID]]:
    """The verb, and the filter or the ids that it applies to."""
    name, _, all = action.partition("_")
    if name not in VERBS or all not in ("", "all"):
        raise BadArguments(f"there is no action {action[:40]!r}")
    verb = VERBS[name]
    return verb, verb.narrowed(filter_of(dict(fields))) if all else ids_of(fields)


async def _act(site: Site, verb: Verb, chosen: JobFilter | list[UUID], by: By) -> None:
    tally = Tally(verb)
    try:
        await site.writing.do(verbs.act(tally, chosen, by))
    except Exception as error:
        site.said[by.entry] = f"{tally}, then it failed: {error}"
        raise
    notes = [f": {one.note}" for one in tally.unchanged if one.note]
    unchanged = tally.jobs - tally.changed
    site.said[by.entry] = f"{tally}, {number(unchanged)} not changed{''.join(notes[:1])}" if unchanged else str(tally)


async def _cancel_batch(site: Site, batch: Mapping[str, Any], by: By) -> None:
    id, left = batch["id"], batch["unfinished"]
    closing = store.close_batch(id, cancelling=True)
    await site.writing.do_at_once(audited(closing, by, "cancel batch", {"batch": id}, jobs=left))
    await site.writing.do(controls.cancel_jobs_of(id))
    site.said[by.entry] = f"the batch and {counted(left, 'job')} of it were cancelled"


async def _batch(site: Site, name: str) -> Mapping[str, Any]:
    with suppress(ValueError):
        if found := await site.database.run(store.batch(UUID(name))):
            return found[0]
    raise BadArguments(f"there is no batch {name[:40]}")


async def _rate_of(site: Site, name: str) -> str:
    for row in await site.database.run(store.list_sources()):
        if row["name"] == name:
            return "" if row[RATE] is None else f"{row[RATE]:g}"
    raise BadArguments(f"there is no source {name}")
