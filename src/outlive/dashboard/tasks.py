"""The tasks: how many jobs each has, how they ended in the last hour, and which workers serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outlive import store
from outlive.dashboard.answers import MOST_TASKS
from outlive.dashboard.visits import Visit
from outlive.operations.selection import Count
from outlive.states import State

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

SHOWN = {
    "waiting": (State.PENDING, State.RETRYABLE),
    "held": (State.BLOCKED, State.SUSPENDED),
    "running": (State.RUNNING,),
    "failed": (State.FAILED,),
    "quarantined": (State.QUARANTINED,),
    "succeeded": (State.SUCCEEDED,),
}
UNKNOWN = {
    "described": False,
    "succeeded_per_min": None,
    "failed_per_min": None,
    "ran_s": None,
    "peak_memory_bytes": None,
}


async def look(site: Site, visit: Visit) -> Mapping[str, Any]:
    figures = {row["name"]: row for row in await site.answers.tasks.get()}
    counts = _by_task(await site.answers.job_counts.get())
    workers = await site.database.run(store.list_workers())
    names = sorted({*figures, *counts})
    rows = [
        {
            **figures.get(name, UNKNOWN),
            "name": name,
            **_counted(counts.get(name, {})),
            "workers": _serving(name, workers),
        }
        for name in names[:MOST_TASKS]
    ]
    return {
        "title": "Tasks",
        "tasks": rows,
        "states_of": SHOWN,
        "most": MOST_TASKS if len(names) > MOST_TASKS else None,
    }


def _by_task(counts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Count]]:
    """How many jobs of each task are in each state, in whichever queue and of whichever source."""
    found: dict[str, dict[str, Count]] = {}
    for row in counts:
        states = found.setdefault(row["task"], {})
        before = states.get(row["state"], Count(0))
        states[row["state"]] = Count(before.jobs + row["jobs"], estimated=before.estimated or row["estimated"])
    return found


def _counted(states: Mapping[str, Count]) -> dict[str, Count]:
    found = {column: [states[one] for one in several if one in states] for column, several in SHOWN.items()}
    return {
        column: Count(sum(one.jobs for one in parts), estimated=any(one.estimated for one in parts))
        for column, parts in found.items()
    }


def _serving(task: str, workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """The active workers that have the task. Those of other languages don't say which they have."""
    return [row["name"] for row in workers if row["state"] == "active" and task in (row["tasks"] or ())]
