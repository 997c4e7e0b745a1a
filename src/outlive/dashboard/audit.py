"""The audit: who did what, and to how many jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from outlive import store
from outlive.dashboard.rendering import Links
from outlive.dashboard.visits import Visit
from outlive.operations.selection import in_words
from outlive.operations.verbs import VERBS

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

PAGE = 50
SHOWN_IDS = 10


async def look(site: Site, visit: Visit) -> Mapping[str, Any]:
    try:
        past = None if visit.get("past") is None else UUID(visit.get("past"))
    except ValueError:
        past = None
    rows = await site.database.run(store.list_audit(past=past, limit=PAGE + 1))
    for row in rows:
        row["what"] = list(_chosen(msgspec.json.decode(row["what"]), visit.links))
        verb = VERBS.get(row["action"])
        row["word"] = verb.word if verb else row["action"].capitalize()
    return {"title": "Audit", "rows": rows[:PAGE], "past": rows[PAGE - 1]["id"] if len(rows) > PAGE else None}


def _chosen(what: Any, at: Links) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """What it was done to: labels, words, and links to jobs and batches."""
    if not isinstance(what, dict):
        yield "", str(what), []
        return
    for key, value in what.items():
        label, words = in_words(key, value)
        if key == "ids" and isinstance(value, list):
            more = f"and {len(value) - SHOWN_IDS} more" if len(value) > SHOWN_IDS else ""
            yield "", more, [(str(id), at("jobs", id)) for id in value[:SHOWN_IDS]]
        elif key == "batch":
            yield label.capitalize(), "", [(words, at("batches", words))]
        else:
            yield label.capitalize(), words, []
