"""The tasks: how many jobs each has, how they ended in the last hour, and which workers serve it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outlive import store
from outlive.dashboard.answers import MOST_TASKS
from outlive.dashboard.visits import Visit
from outlive.operations.selection import count_in
from outlive.states import State
from outlive.store import JobFilter

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
    counts: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await site.answers.job_counts.get():
        counts[row["task"]].append(row)
    workers = await site.database.run(store.list_workers())
    names = sorted({*figures, *counts})
    rows = [
        {
            **figures.get(name, UNKNOWN),
            "name": name,
            **{column: count_in(counts[name], JobFilter(states=states)) for column, states in SHOWN.items()},
            "workers": _serving(name, workers),
        }
        for name in names[:MOST_TASKS]
    ]
    most = MOST_TASKS if len(names) > MOST_TASKS else None
    return {"title": "Tasks", "tasks": rows, "states_of": SHOWN, "most": most}


def _serving(task: str, workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """The active workers that have the task. Those of other languages don't say which they have."""
    return [row["name"] for row in workers if row["state"] == "active" and task in (row["tasks"] or ())]
