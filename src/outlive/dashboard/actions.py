"""What operators do: on jobs that they select or that match a filter, on queues, sources, schedules and batches.

A page asks first, and says how many jobs it concerns. The form then proves that it comes from that page. Every action
is written to the audit, in its own transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from outlive import db, store
from outlive.dashboard.access import Role
from outlive.dashboard.choosing import filter_of, ids_of, told
from outlive.dashboard.visits import Elsewhere, Refused, Visit, inside
from outlive.errors import BadArguments
from outlive.model import new_job_id
from outlive.operations import selection, verbs
from outlive.operations.selection import Count
from outlive.operations.verbs import CANCEL, PRUNE, VERBS, Tally, Verb
from outlive.store import JobFilter
from outlive.validation import positive
from outlive.wording import counted, number

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

COUNT_S = 0.5
WAIT_S = 1.5

_log = logging.getLogger("outlive.dashboard")


@dataclass(frozen=True, slots=True)
class Thing:
    """An action on one queue, source, worker or schedule. `make` takes its name, and for a rate the new limits."""

    word: str
    noun: str
    done: str
    make: Callable[..., db.Statement[Any]]
    note: str
    question: str = "{word} the {noun} {name}?"


_PAUSED = "Its jobs are claimed no more until it is resumed. Running jobs continue."
THINGS = {
    "pause_queue": Thing("Pause", "queue", "paused", store.pause_queue, _PAUSED),
    "resume_queue": Thing("Resume", "queue", "resumed", store.resume_queue, "Its jobs are claimed again."),
    "pause_source": Thing("Pause", "source", "paused", store.pause_source, _PAUSED),
    "resume_source": Thing(
        "Resume", "source", "resumed", store.resume_source, "Its jobs are claimed again, and its breaker is closed."
    ),
    "set_rate": Thing(
        "Set rate",
        "source",
        "set",
        store.set_source,
        "It holds for all workers, at once.",
        "Set the rate of the source {name}?",
    ),
    "drain_worker": Thing(
        "Drain",
        "worker",
        "told to drain",
        store.drain_workers,
        "It takes no more jobs, finishes those that it runs, and stops.",
    ),
    "pause_schedule": Thing(
        "Pause",
        "schedule",
        "paused",
        store.pause_schedule,
        "It fires no more until it is resumed. Its jobs continue.",
    ),
    "resume_schedule": Thing(
        "Resume",
        "schedule",
        "resumed",
        store.resume_schedule,
        "It fires again. What it has missed meanwhile follows its option missed.",
    ),
    "run_schedule": Thing(
        "Run now",
        "schedule",
        "enqueued",
        store.run_schedule,
        "A job of it is enqueued now, beside its firings.",
        "Run the schedule {name} now?",
    ),
}
BATCHES = ("cancel_batch", "close_batch")


async def ask(site: Site, visit: Visit) -> Mapping[str, Any]:
    """The page that asks before an action."""
    if visit.role is not Role.OPERATOR:
        raise Refused("A viewer looks, and does not act: log in with the operator's token.")
    action = visit.get("action") or ""
    found: dict[str, Any] = {
        "title": "Confirm",
        "back": inside(visit.get("back") or ""),
        "rate": None,
        "chosen": None,
        "danger": False,
    }
    name = visit.get("name") or ""
    if action in THINGS:
        thing = THINGS[action]
        rate = await _rate_of(site, name) if action == "set_rate" else None
        words = thing.question.format(word=thing.word, noun=thing.noun, name=name)
        return {**found, "words": words, "note": thing.note, "rate": rate}
    if action in BATCHES:
        return {**found, **await _ask_of_batch(site, action, name, found["back"])}
    verb, chosen = _chosen(action, list(visit.query))
    if isinstance(chosen, JobFilter):
        count, none = (
            await site.database.do(selection.count(chosen, patience_s=COUNT_S)),
            f"that matches can be {verb.past}",
        )
    else:
        count, none = Count(len(chosen), more=False), "was selected"
    if not count.jobs:
        raise Elsewhere(f"No job {none}.", found["back"])
    return {
        **found,
        "words": f"{verb.word} {count}?",
        "note": verb.note_on_one if count.jobs == 1 else verb.note,
        "chosen": await _chosen_in_words(site, chosen),
        "danger": verb is PRUNE,
    }


async def _chosen_in_words(site: Site, chosen: JobFilter | list[UUID]) -> list[tuple[str, str]]:
    """The filter, or the one job that is meant."""
    if isinstance(chosen, JobFilter):
        return [told(key, value) for key, value in msgspec.to_builtins(chosen).items()]
    if len(chosen) > 1:
        return []
    rows = await site.database.run(store.list_jobs(chosen))
    return [pair for row in rows for pair in (("Task", row["task"]), ("Job", str(row["id"])), ("State", row["state"]))]


async def _ask_of_batch(site: Site, action: str, name: str, back: str) -> Mapping[str, Any]:
    found = await site.database.run(store.batch(_uuid(name)))
    if not found:
        raise BadArguments(f"there is no batch {name[:40]}")
    chosen = [("Batch", found[0]["name"]), ("Id", name)]
    if action == "close_batch":
        note = "No client can add jobs to it any more. It is done when the jobs that it has have ended."
        return {"words": "Close this batch?", "note": note, "chosen": chosen}
    left = found[0]["unfinished"]
    if not left:
        raise Elsewhere("No job of this batch can be cancelled: all have ended.", back)
    note = CANCEL.note_on_one if left == 1 else CANCEL.note
    return {"words": f"Cancel {counted(left, 'job')} of this batch?", "note": note, "chosen": chosen}


async def do(site: Site, fields: Sequence[tuple[str, str]], who: str) -> UUID:
    """Do what the page has asked about. Returns the entry of the audit."""
    values = dict(fields)
    action, name = values.get("action", ""), values.get("name", "")
    entry = new_job_id()
    if action in THINGS:
        thing = THINGS[action]
        limits = [_limits(values)] if action == "set_rate" else []
        what = {thing.noun: name, **(limits[0] if limits else {})}
        await _do_one(site, thing.make(name, *limits), who=who, action=action, what=what, entry=entry)
        words = f"{thing.noun} {name} is {thing.done}" if action != "run_schedule" else f"a job of {name} is enqueued"
        site.tell(entry, words)
        return entry
    if action == "close_batch":
        await _close_batch(site, _uuid(name), who=who, entry=entry)
        site.tell(entry, "the batch is closed")
        return entry
    if action == "cancel_batch":
        work = _cancel_batch(site, _uuid(name), who=who, entry=entry)
    else:
        verb, chosen = _chosen(action, fields)
        work = _act(site, verb, chosen, who=who, entry=entry)
    site.tell(entry, "under way: the audit shows how far it is")
    task = asyncio.get_running_loop().create_task(work)
    site.acting.add(task)
    task.add_done_callback(site.acting.discard)
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    if done:
        await task
    return entry


def _limits(fields: Mapping[str, str]) -> dict[str, float | None]:
    """The rate that was written into the form."""
    text = fields.get("rate", "").strip()
    try:
        return {"rate_limit_per_minute": positive("the rate", float(text)) if text else None}
    except ValueError:
        raise BadArguments(f"the rate is {text[:40]!r}: it must be a number") from None


def _chosen(action: str, fields: Sequence[tuple[str, str]]) -> tuple[Verb, JobFilter | list[UUID]]:
    """The verb, and the filter or the ids that it applies to."""
    name, _, all = action.partition("_")
    if name not in VERBS or all not in ("", "all"):
        raise BadArguments(f"there is no action {action[:40]!r}")
    verb = VERBS[name]
    return verb, verb.narrowed(filter_of(dict(fields))) if all else ids_of(fields)


async def _do_one(
    site: Site, statement: db.Statement[Any], *, who: str, action: str, what: Mapping[str, Any], entry: UUID
) -> None:
    async def work(connection: db.AsyncConnection) -> None:
        async with connection.transaction():
            if await db.arun(connection, statement) in (False, []):
                noun, done = THINGS[action].noun, THINGS[action].done
                raise BadArguments(f"there is no {noun} {what[noun]}, or it was {done} already")
            words = action.replace("_", " ").replace("set rate", "set source")
            await db.arun(connection, store.write_audit(entry, who=who, action=words, what=what))

    await site.writing.within(work, again=False)


async def _act(site: Site, verb: Verb, chosen: JobFilter | list[UUID], *, who: str, entry: UUID) -> None:
    tally = Tally(verb)
    try:
        await site.writing.do(verbs.act(tally, chosen, who=who, entry=entry))
    except Exception as error:
        site.said[entry] = f"{tally}, then it failed: {error}"
        raise
    notes = [f": {one.note}" for one in tally.unchanged if one.note]
    unchanged = tally.jobs - tally.changed
    site.said[entry] = f"{tally}, {number(unchanged)} not changed{''.join(notes[:1])}" if unchanged else str(tally)


async def _close_batch(site: Site, id: UUID, *, who: str, entry: UUID, cancelling: bool = False, jobs: int = 0) -> None:
    async def close(connection: db.AsyncConnection) -> None:
        action = "cancel batch" if cancelling else "close batch"
        async with connection.transaction():
            await db.arun(connection, store.close_batch(id, cancelling=cancelling))
            written = store.write_audit(entry, who=who, action=action, what={"batch": id}, jobs=jobs)
            await db.arun(connection, written)

    await site.writing.within(close, again=False)


async def _cancel_batch(site: Site, id: UUID, *, who: str, entry: UUID) -> None:
    left = await _left(site, str(id))
    await _close_batch(site, id, who=who, entry=entry, cancelling=True, jobs=left)
    past = await site.writing.run(store.cancel_batch(id))
    while past is not None:
        past = await site.writing.run(store.cancel_batch(id, past))
    site.said[entry] = f"the batch and {counted(left, 'job')} of it were cancelled"


async def _left(site: Site, name: str) -> int:
    found = await site.database.run(store.batch_counts(_uuid(name)))
    if found is None:
        raise BadArguments(f"there is no batch {name[:40]}")
    return found.left


async def _rate_of(site: Site, name: str) -> str:
    for row in await site.database.run(store.list_sources()):
        if row["name"] == name:
            return "" if row["rate_limit_per_minute"] is None else f"{row['rate_limit_per_minute']:g}"
    raise BadArguments(f"there is no source {name}")


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise BadArguments(f"{text[:40]!r} is not an id") from None
