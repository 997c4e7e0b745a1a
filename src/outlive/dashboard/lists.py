"""The other lists: tasks, killers, workers, sources, queues, schedules, batches and the audit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from outlive import stacks, store
from outlive.dashboard import postmortem
from outlive.dashboard.answers import MOST_LANES, MOST_TASKS
from outlive.dashboard.rendering import Links
from outlive.dashboard.visits import Visit
from outlive.errors import no_batch
from outlive.operations import facts, findings
from outlive.operations.selection import count_in, in_words
from outlive.operations.verbs import VERBS
from outlive.states import State
from outlive.store import JobFilter

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

KILLERS = 200
SOURCES = 1000
RUNNING = 500
FEW = 25
"""So many workers at most have several of their jobs listed."""
NEXT = 3
BATCHES = 100
BATCH_JOBS = 50
COUNTS = {
    "ready": {"state": "pending,retryable", "before": "0s"},
    "waiting": {"state": "pending,retryable"},
    **{state: {"state": state} for state in ("running", "blocked", "suspended", "quarantined")},
}
"""How many jobs of a queue are counted, and by which filter they are found."""
FAILED = (State.FAILED, State.QUARANTINED)
OF_TASKS = {
    "waiting": (State.PENDING, State.RETRYABLE),
    "held": (State.BLOCKED, State.SUSPENDED),
    "running": (State.RUNNING,),
    "failed": (State.FAILED,),
    "quarantined": (State.QUARANTINED,),
    "succeeded": (State.SUCCEEDED,),
}
"""How many jobs of a task are counted together."""
UNKNOWN = dict.fromkeys(("described", "succeeded_per_min", "failed_per_min", "ran_s", "peak_memory_bytes"))
"""The figures of a task that has jobs, but was registered by no worker."""
AUDITED = 50
SHOWN_IDS = 10


async def tasks(site: Site, visit: Visit) -> Mapping[str, Any]:
    figures = {row["name"]: row for row in await site.answers.ask(store.list_tasks(limit=MOST_TASKS))}
    counts: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await site.answers.ask(store.count_jobs()):
        counts[row["task"]].append(row)
    workers = await site.database.run(store.list_workers())
    names = sorted({*figures, *counts})
    rows = [
        {
            **figures.get(name, UNKNOWN),
            "name": name,
            **{column: count_in(counts[name], JobFilter(states=states)) for column, states in OF_TASKS.items()},
            "workers": _serving(name, workers),
        }
        for name in names[:MOST_TASKS]
    ]
    most = MOST_TASKS if len(names) > MOST_TASKS else None
    return {"title": "Tasks", "tasks": rows, "states_of": OF_TASKS, "most": most}


def _serving(task: str, workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """The active workers that have the task. Those of other languages don't say which they have."""
    return [row["name"] for row in workers if row["state"] == "active" and task in (row["tasks"] or ())]


async def killers(site: Site, visit: Visit) -> Mapping[str, Any]:
    rows = await site.database.run(store.group_killers(limit=KILLERS))
    for row in rows:
        row["cause"] = postmortem.meaning(row["outcome"], row["signal"])
        row["evidence"] = facts.evidence(row)
        row["frames"] = stacks.read(row["stack"])
    shown = sum(row["jobs"] for row in rows)
    return {"title": "Killers", "groups": rows, "most": KILLERS if shown == KILLERS else None}


async def workers(site: Site, visit: Visit) -> Mapping[str, Any]:
    rows = await site.database.run(store.list_workers())
    running = await site.database.run(store.list_running(limit=RUNNING))
    by_worker: dict[object, list[dict[str, Any]]] = {}
    for job in running:
        by_worker.setdefault(job["worker"], []).append(job)
    shown = 4 if len(rows) <= FEW else 1
    return {
        "title": "Workers",
        "workers": rows,
        "running": by_worker,
        "busy": facts.busy,
        "late": facts.late,
        "shown": shown,
    }


async def sources(site: Site, visit: Visit) -> Mapping[str, Any]:
    begins = visit.get("name") or ""
    rows = await site.database.run(store.list_sources(begins=begins, limit=SOURCES))
    return {"title": "Sources", "sources": rows, "begins": begins, "most": SOURCES}


async def queues(site: Site, visit: Visit) -> Mapping[str, Any]:
    workers = await site.database.run(store.list_workers())
    sources = await site.database.run(store.list_sources())
    shut = {row["name"]: "breaker open" if row["enabled"] else "paused" for row in sources if row["paused"]}
    behind: dict[str, dict[str, str]] = {}
    for lane in await site.answers.ask(store.list_lanes(limit=MOST_LANES)):
        if lane["source"] in shut:
            behind.setdefault(lane["queue"], {})[lane["source"]] = shut[lane["source"]]
    rows = await site.answers.ask(store.queues_with_rates())
    workers_of = {row["name"]: len(findings.serving_queue(row["name"], workers)) for row in rows}
    return {"title": "Queues", "queues": rows, "counts": COUNTS, "workers_of": workers_of, "behind": behind}


async def schedules(site: Site, visit: Visit) -> Mapping[str, Any]:
    rows = facts.schedules(await site.database.run(store.list_schedules()), firings=NEXT)
    return {"title": "Schedules", "schedules": rows, "state_of": facts.state_of_schedule}


async def batches(site: Site, visit: Visit) -> Mapping[str, Any]:
    return {"title": "Batches", "batches": await site.database.run(store.list_batches(limit=BATCHES)), "most": BATCHES}


async def batch(site: Site, visit: Visit) -> Mapping[str, Any]:
    id = visit.id()
    found = await site.database.run(store.batch(id))
    if not found:
        raise no_batch(id)
    failed = await site.database.run(store.find_jobs(store.JobFilter(batch=id, states=FAILED), limit=BATCH_JOBS))
    newest = await site.database.run(store.find_jobs(store.JobFilter(batch=id), limit=BATCH_JOBS))
    ids = list(dict.fromkeys([*failed.ids, *newest.ids]))[:BATCH_JOBS]
    jobs = await site.database.run(store.list_jobs(ids))
    return {"title": f"Batch {found[0]['name']}", "batch": found[0], "facts": facts.of_batch(found[0]), "jobs": jobs}


async def audit(site: Site, visit: Visit) -> Mapping[str, Any]:
    try:
        past = None if visit.get("past") is None else UUID(visit.get("past"))
    except ValueError:
        past = None
    rows = await site.database.run(store.list_audit(past=past, limit=AUDITED + 1))
    for row in rows:
        row["what"] = list(_chosen(msgspec.json.decode(row["what"]), visit.links))
        verb = VERBS.get(row["action"])
        row["word"] = verb.word if verb else row["action"].capitalize()
    return {"title": "Audit", "rows": rows[:AUDITED], "past": rows[AUDITED - 1]["id"] if len(rows) > AUDITED else None}


def _chosen(what: Mapping[str, Any], at: Links) -> Iterator[tuple[str, str | datetime, list[tuple[str, str]]]]:
    """What it was done to: labels, words, and links to jobs and batches."""
    for key, value in what.items():
        label, words = in_words(key, value)
        if key == "ids":
            more = f"and {len(value) - SHOWN_IDS} more" if len(value) > SHOWN_IDS else ""
            yield "", more, [(str(id), at("jobs", id)) for id in value[:SHOWN_IDS]]
        elif key == "batch":
            yield label.capitalize(), "", [(value, at("batches", value))]
        else:
            yield label.capitalize(), words, []
