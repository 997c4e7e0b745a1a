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
from outlive.dashboard.choosing import filter_of, ids_of
from outlive.dashboard.visits import Refused, Visit
from outlive.errors import BadArguments
from outlive.model import new_job_id
from outlive.states import State, legal
from outlive.store import JobFilter
from outlive.validation import positive
from outlive.wording import number

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

PORTION = 500
COUNT_S = 0.5
WAIT_S = 1.5
KEPT = 200

_log = logging.getLogger("outlive.dashboard")


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb on jobs. `states` are those that it takes of all jobs that match, if the filter names none."""

    word: str
    done: str
    note: str
    states: Sequence[State]


VERBS: dict[store.Verb, Verb] = {
    "retry": Verb("Retry", "retried", "They run again now, with all counters at zero.", [State.FAILED]),
    "cancel": Verb(
        "Cancel",
        "cancelled",
        "Running jobs are stopped by their workers.",
        [state for state in State if legal("cancel", state)],
    ),
    "release": Verb("Release", "released", "They run again, with crashes and losses at zero.", [State.QUARANTINED]),
    "prune": Verb("Delete", "deleted", "Their attempts, results and output are deleted, too.", []),
}


@dataclass(frozen=True, slots=True)
class Thing:
    """An action on one queue, source or schedule."""

    word: str
    noun: str
    note: str
    done: str
    make: Callable[[str, Mapping[str, str]], db.Statement[Any]]


def _rate(name: str, fields: Mapping[str, str]) -> db.Statement[Any]:
    text = fields.get("rate", "").strip()
    try:
        rate = positive("the rate", float(text)) if text else None
    except ValueError:
        raise BadArguments(f"the rate is {text[:40]!r}: it must be a number") from None
    return store.set_source(name, {"rate_limit_per_minute": rate})


THINGS = {
    "pause_queue": Thing(
        "Pause",
        "queue",
        "Its jobs are claimed no more until it is resumed. Running jobs continue.",
        "paused",
        lambda name, _: store.pause_queue(name),
    ),
    "resume_queue": Thing(
        "Resume", "queue", "Its jobs are claimed again.", "resumed", lambda name, _: store.resume_queue(name)
    ),
    "pause_source": Thing(
        "Pause",
        "source",
        "Its jobs are claimed no more until it is resumed. Running jobs continue.",
        "paused",
        lambda name, _: store.pause_source(name),
    ),
    "resume_source": Thing(
        "Resume",
        "source",
        "Its jobs are claimed again, and its breaker is closed.",
        "resumed",
        lambda name, _: store.resume_source(name),
    ),
    "set_rate": Thing("Set the rate of", "source", "It holds for all workers, at once.", "set", _rate),
    "drain_worker": Thing(
        "Drain",
        "worker",
        "It takes no more jobs, finishes those that it runs, and stops.",
        "told to drain",
        lambda name, _: store.drain_workers(name),
    ),
    "pause_schedule": Thing(
        "Pause",
        "schedule",
        "It fires no more until it is resumed. Its jobs continue.",
        "paused",
        lambda name, _: store.pause_schedule(name),
    ),
    "resume_schedule": Thing(
        "Resume",
        "schedule",
        "It fires again. What it has missed meanwhile follows its option missed.",
        "resumed",
        lambda name, _: store.resume_schedule(name),
    ),
    "run_schedule": Thing(
        "Run now",
        "schedule",
        "A job of it is enqueued now, beside its firings.",
        "enqueued",
        lambda name, _: store.run_schedule(name),
    ),
}


async def ask(site: Site, visit: Visit) -> Mapping[str, Any]:
    """The page that asks before an action."""
    if visit.role is not Role.OPERATOR:
        raise Refused("A viewer looks, and does not act: log in with the operator's token.")
    action, back = visit.get("action") or "", visit.get("back") or "/"
    found: dict[str, Any] = {
        "title": "Confirm",
        "back": back if back.startswith("/") else "/",
        "rate": None,
        "chosen": None,
        "danger": False,
    }
    name = visit.get("name") or ""
    if action in THINGS:
        thing = THINGS[action]
        rate = await _rate_of(site, name) if action == "set_rate" else None
        return {**found, "words": f"{thing.word} {thing.noun} {name}?", "note": thing.note, "rate": rate, "jobs": 1}
    if action == "cancel_batch":
        left = await _left(site, name)
        return {**found, "words": f"Cancel {_jobs(left)} of this batch?", "note": VERBS["cancel"].note, "jobs": left}
    verb, wanted, ids = _chosen(action, list(visit.query))
    jobs, more = (len(ids), False) if wanted is None else await count(site, wanted)
    words = f"{VERBS[verb].word} {'more than ' if more else ''}{_jobs(jobs)}?"
    if not jobs:
        words = "No job is selected." if wanted is None else f"No job that matches can be {VERBS[verb].done}."
    chosen = None if wanted is None else msgspec.to_builtins(wanted)
    return {
        **found,
        "words": words,
        "note": VERBS[verb].note,
        "jobs": jobs,
        "chosen": chosen,
        "danger": verb == "prune",
    }


async def do(site: Site, fields: Sequence[tuple[str, str]], who: str) -> UUID:
    """Do what the page has asked about. Returns the entry of the audit."""
    values = dict(fields)
    action, name = values.get("action", ""), values.get("name", "")
    entry = new_job_id()
    if action in THINGS:
        thing = THINGS[action]
        await _do_one(site, thing.make(name, values), who=who, action=action, name=name, entry=entry)
        site.said[entry] = (
            f"{thing.noun} {name} is {thing.done}" if action != "run_schedule" else f"a job of {name} is enqueued"
        )
        return entry
    if action == "cancel_batch":
        work = _cancel_batch(site, _uuid(name), who=who, entry=entry)
    else:
        verb, wanted, ids = _chosen(action, fields)
        work = _act(site, verb, wanted, ids, who=who, entry=entry)
    site.said[entry] = "under way: the audit shows how far it is"
    task = asyncio.get_running_loop().create_task(work)
    site.acting.add(task)
    task.add_done_callback(site.acting.discard)
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    if done:
        await task
    while len(site.said) > KEPT:
        del site.said[next(iter(site.said))]
    return entry


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


async def _do_one(site: Site, statement: db.Statement[Any], *, who: str, action: str, name: str, entry: UUID) -> None:
    async def work(connection: db.AsyncConnection) -> None:
        async with connection.transaction():
            if await db.arun(connection, statement) in (False, []):
                raise BadArguments(f"there is no {THINGS[action].noun} {name}, or it was {THINGS[action].done} already")
            words = action.replace("_", " ").replace("set rate", "set source")
            await db.arun(connection, store.write_audit(entry, who=who, action=words, what={THINGS[action].noun: name}))

    await site.actions.within(work, again=False)


async def _act(
    site: Site, verb: store.Verb, wanted: JobFilter | None, ids: list[UUID], *, who: str, entry: UUID
) -> None:
    changed = unchanged = stopping = 0
    note, past = "", None
    what = None if wanted is None else msgspec.to_builtins(wanted)
    try:
        while True:
            if wanted is not None:
                found = await site.actions.run(store.find_jobs(wanted, past=past, limit=PORTION))
                ids, past = found.ids, found.next
            if ids:
                statement = store.act(verb, ids, who=who, what=what, entry=entry)
                changes = await site.actions.run(statement, again=False)
                done = [one for one in changes if one.changed]
                changed += len(done)
                stopping += sum(one.state == State.RUNNING for one in done)
                unchanged += len(ids) - len(done)
                note = note or next((one.note for one in changes if not one.changed and one.note), "")
            if past is None:
                break
    except Exception as error:
        site.said[entry] = f"{_jobs(changed)} {VERBS[verb].done}, then it failed: {error}"
        raise
    words = f"{_jobs(changed - stopping)} {VERBS[verb].done}"
    words += f", {number(stopping)} asked to stop" if stopping else ""
    words += f", {number(unchanged)} not changed{': ' + note if note else ''}" if unchanged else ""
    site.said[entry] = words


async def _cancel_batch(site: Site, id: UUID, *, who: str, entry: UUID) -> None:
    left = await _left(site, str(id))

    async def close(connection: db.AsyncConnection) -> None:
        async with connection.transaction():
            await db.arun(connection, store.close_batch(id, cancelling=True))
            what = {"batch": id}
            await db.arun(connection, store.write_audit(entry, who=who, action="cancel batch", what=what, jobs=left))

    await site.actions.within(close, again=False)
    past = await site.actions.run(store.cancel_batch(id))
    while past is not None:
        past = await site.actions.run(store.cancel_batch(id, past))
    site.said[entry] = f"the batch and {_jobs(left)} of it were cancelled"


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


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{number(count)} jobs"
