"""The other lists: killers, workers, sources, queues, schedules and batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlive import stacks, store
from outlive.dashboard import postmortem
from outlive.dashboard.visits import Visit
from outlive.errors import no_batch
from outlive.operations import facts, findings
from outlive.states import State

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
    return {"title": "Workers", "workers": rows, "running": by_worker, "busy": facts.busy, "shown": shown}


async def sources(site: Site, visit: Visit) -> Mapping[str, Any]:
    begins = visit.get("name") or ""
    rows = await site.database.run(store.list_sources(begins=begins, limit=SOURCES))
    return {"title": "Sources", "sources": rows, "begins": begins, "most": SOURCES}


async def queues(site: Site, visit: Visit) -> Mapping[str, Any]:
    workers = await site.database.run(store.list_workers())
    sources = await site.database.run(store.list_sources())
    shut = {row["name"]: "breaker open" if row["enabled"] else "paused" for row in sources if row["paused"]}
    behind: dict[str, dict[str, str]] = {}
    for lane in await site.answers.lanes.get():
        if lane["source"] in shut:
            behind.setdefault(lane["queue"], {})[lane["source"]] = shut[lane["source"]]
    rows = await site.answers.queue_rates.get()
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
