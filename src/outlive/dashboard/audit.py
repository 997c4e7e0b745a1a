"""The audit: who did what, and to how many jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from outlive import store
from outlive.dashboard.visits import Visit

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

PAGE = 50


async def look(site: Site, visit: Visit) -> Mapping[str, Any]:
    try:
        past = None if visit.get("past") is None else UUID(visit.get("past"))
    except ValueError:
        past = None
    rows = await site.database.run(store.list_audit(past=past, limit=PAGE + 1))
    for row in rows:
        row["what"] = _words(msgspec.json.decode(row["what"]))
    return {"title": "Audit", "rows": rows[:PAGE], "past": rows[PAGE - 1]["id"] if len(rows) > PAGE else None}


def _words(what: Any) -> str:
    if not isinstance(what, dict):
        return str(what)
    return ", ".join(
        f"{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}" for key, value in what.items()
    )
