"""What operators do: on jobs that they select or that match a filter, on queues, sources, schedules and batches.

A page asks first, and says how many jobs it concerns. The form then proves that it comes from that page. Every action
is written to the audit, in its own transaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
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
from outlive.states import State, legal
from outlive.store import JobFilter
from outlive.validation import positive
from outlive.wording import counted, number

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

PORTION = 500
COUNT_S = 0.5
WAIT_S = 1.5

_log = logging.getLogger("outlive.dashboard")


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb on jobs. `states` are those that it takes of all jobs that match, if the filter names none."""

    word: str
    done: str
    note: str
    note_on_one: str
    states: Sequence[State]


VERBS: dict[store.Verb, Verb] = {
    "retry": Verb(
        "Retry",
        "retried",
        "They run again now, with all counters at zero.",
        "It runs again now, with all counters at zero.",
        [State.FAILED],
    ),
    "cancel": Verb(
        "Cancel",
        "cancelled",
        "Running jobs are stopped by their workers.",
        "If it is running, its worker stops it.",
        [state for state in State if legal("cancel", state)],
    ),
    "release": Verb(
        "Release",
        "released",
        "They run again, with crashes and losses at zero.",
        "It runs again, with crashes and losses at zero.",
        [State.QUARANTINED],
    ),
    "prune": Verb(
        "Delete",
        "deleted",
        "Their attempts, results and output are deleted, too.",
        "Its attempts, result and output are deleted, too.",
        [],
    ),
}


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
    verb, wanted, ids = _chosen(action, list(visit.query))
    jobs, more = (len(ids), False) if wanted is None else await count(site, wanted)
    if not jobs:
        words = "No job was selected." if wanted is None else f"No job that matches can be {VERBS[verb].done}."
        raise Elsewhere(words, found["back"])
    return {
        **found,
        "words": f"{VERBS[verb].word} {'more than ' if more else ''}{counted(jobs, 'job')}?",
        "note": VERBS[verb].note_on_one if jobs == 1 else VERBS[verb].note,
        "chosen": await _chosen_in_words(site, wanted, ids),
        "danger": verb == "prune",
    }


async def _chosen_in_words(site: Site, wanted: JobFilter | None, ids: list[UUID]) -> list[tuple[str, str]]:
    """The filter, or the one job that is meant."""
    if wanted is not None:
        return [told(key, value) for key, value in msgspec.to_builtins(wanted).items()]
    if len(ids) > 1:
        return []
    rows = await site.database.run(store.list_jobs(ids))
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
    note = VERBS["cancel"].note_on_one if left == 1 else VERBS["cancel"].note
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
        verb, wanted, ids = _chosen(action, fields)
        work = _act(site, verb, wanted, ids, who=who, entry=entry)
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


async def count(site: Site, wanted: JobFilter) -> tuple[int, bool]:
    """How many jobs match, and whether there are more: counting ends after half a second, or 10,000 jobs."""
    jobs, past, began = 0, None, time.monotonic()
    while True:
        found = await site.database.run(
            store.find_jobs(wanted, past=past, limit=store.MOST_COUNTED + 1 - jobs, counting=True)
        )
        jobs, past = jobs + found.count, found.next
        if past is None:
            return jobs, False
        if jobs > store.MOST_COUNTED or time.monotonic() - began > COUNT_S:
            return min(jobs, store.MOST_COUNTED), True


def _chosen(action: str, fields: Sequence[tuple[str, str]]) -> tuple[store.Verb, JobFilter | None, list[UUID]]:
    """The verb, and the filter or the ids that it applies to."""
    name, _, all = action.partition("_")
    if name not in VERBS or all not in ("", "all"):
        raise BadArguments(f"there is no action {action[:40]!r}")
    verb: store.Verb = name
    if not all:
        return verb, None, ids_of(fields)
    wanted = filter_of(dict(fields))
    states = wanted.states or tuple(VERBS[verb].states)
    taken = tuple(state for state in states if legal(verb, state))
    if not taken:
        raise BadArguments(f"choose a state whose jobs can be {VERBS[verb].done}: filter by state first")
    return verb, msgspec.structs.replace(wanted, states=taken), []


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


async def _act(
    site: Site, verb: store.Verb, wanted: JobFilter | None, ids: list[UUID], *, who: str, entry: UUID
) -> None:
    changed = unchanged = stopping = 0
    note, past = "", None
    what = None if wanted is None else msgspec.to_builtins(wanted)
    try:
        while True:
            if wanted is not None:
                found = await site.writing.run(store.find_jobs(wanted, past=past, limit=PORTION))
                ids, past = found.ids, found.next
            if ids:
                statement = store.act(verb, ids, who=who, what=what, entry=entry)
                changes = await site.writing.run(statement, again=False)
                done = [one for one in changes if one.changed]
                changed += len(done)
                stopping += sum(one.state == State.RUNNING for one in done)
                unchanged += len(ids) - len(done)
                note = note or next((one.note for one in changes if not one.changed and one.note), "")
            if past is None:
                break
    except Exception as error:
        site.said[entry] = f"{counted(changed, 'job')} {VERBS[verb].done}, then it failed: {error}"
        raise
    words = f"{counted(changed - stopping, 'job')} {VERBS[verb].done}"
    words += f", {number(stopping)} asked to stop" if stopping else ""
    words += f", {number(unchanged)} not changed{': ' + note if note else ''}" if unchanged else ""
    site.said[entry] = words


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
