"""The list of jobs, and the page of one job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from outlive import store
from outlive.dashboard import charts, postmortem
from outlive.dashboard.actions import VERBS
from outlive.dashboard.choosing import FIELDS, BadField, ends, filter_of, prefix
from outlive.dashboard.rendering import seconds
from outlive.dashboard.visits import NotFound, Visit
from outlive.model import Attempt
from outlive.states import State, legal
from outlive.store import Found, JobFilter

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

PAGE = 50
LOOK_S = 0.03
LOOK, TEXT_LOOK = 4000, 1500
"""How many jobs one statement looks at: some milliseconds."""
LONGEST_ARGS = 20_000
SHOWN_ATTEMPTS = 50


async def look(site: Site, visit: Visit) -> Mapping[str, Any]:
    wrong: dict[str, str] = {}
    try:
        wanted = filter_of(dict(visit.query))
    except BadField as error:
        wanted, wrong = JobFilter(), {error.field: str(error)}
    ids = [] if wrong else await _with_id(site, wanted.text)
    if wrong or ids:
        found = Found(ids, len(ids), 0, None)
    else:
        found = await _page_of(site, wanted, visit.get("past"))
    rows = await site.database.run(store.list_jobs(found.ids)) if found.ids else []
    given = {key: visit.get(key) for key in FIELDS}
    verbs = [verb for verb in VERBS if not wanted.states or legal(verb, wanted.states[0])]
    return {
        "title": "Jobs",
        "wrong": wrong,
        "status": 400 if wrong else 200,
        "still": bool(wrong) or (found.next is not None and (wanted.text is not None or visit.get("past") is not None)),
        "jobs": rows,
        "given": given,
        "filtered": any(given.values()),
        "verbs": [(verb, VERBS[verb].word) for verb in verbs],
        "on_all": [(verb, VERBS[verb].word) for verb in verbs if wanted.states or VERBS[verb].states],
        "past": visit.get("past"),
        "next": found.next,
        "seen": found.seen,
        "full": len(rows) >= PAGE,
        "cut": found.cut,
    }


async def _with_id(site: Site, text: str | None) -> list[UUID]:
    """The jobs whose id was searched for: by its first digits, its last ones, or both as the pages show them."""
    digits, both = prefix(text), ends(text)
    ids = await site.database.run(store.with_prefix("jobs", digits, limit=PAGE)) if digits else []
    return ids or (await site.database.run(store.with_ending(*both, limit=PAGE)) if both else [])


async def _page_of(site: Site, wanted: JobFilter, past: str | None) -> Found:
    """The next jobs that match. Where few do, a page takes what it has found after some time."""
    ids: list[UUID] = []
    began = time.monotonic()
    look, most = 4 * PAGE, LOOK if wanted.text is None else TEXT_LOOK
    while True:
        found = await site.database.run(store.find_jobs(wanted, past=past, limit=PAGE - len(ids), look=look))
        look = min(4 * look, most)  # Few are enough where most of them match.
        ids += found.ids
        past = found.next
        if past is None or len(ids) >= PAGE or time.monotonic() - began > LOOK_S:
            return Found(ids, len(ids), found.seen, past, found.cut)


async def look_at_one(site: Site, visit: Visit) -> Mapping[str, Any]:
    id = visit.id()
    found = await site.database.run(store.job(id))
    if not found:
        raise NotFound(f"There is no job {id}: it was pruned, or it is in another database.")
    (job,) = found
    attempts = await site.database.run(store.list_attempts(id))
    # What a running job says is written only while it is followed, so this is no read.
    said = await site.actions.run(store.watch(id)) if job["state"] == State.RUNNING else None
    args, args_bytes = postmortem.pretty(job["args"], LONGEST_ARGS)
    return {
        "title": f"{job['task']} {id}",
        "job": job,
        "args": args,
        "args_bytes": args_bytes,
        "cut": len(args) > LONGEST_ARGS,
        "options": postmortem.pretty(job["options"], LONGEST_ARGS)[0],
        "checkpoint": postmortem.pretty(job["checkpoint"], LONGEST_ARGS)[0],
        "attempts": [postmortem.told(attempt) for attempt in reversed(attempts[-SHOWN_ATTEMPTS:])],
        "more_attempts": max(0, len(attempts) - SHOWN_ATTEMPTS),
        "timeline": timeline(job, attempts),
        "waits_for": msgspec.json.decode(job["waits_for_first"] or b"[]"),
        "now_said": said if said is not None and said.live else None,
        "verbs": [(verb, VERBS[verb].word) for verb in VERBS if legal(verb, State(job["state"]))],
        "needed_by": msgspec.json.decode(job["needed_by_first"] or b"[]"),
    }


def timeline(job: Mapping[str, Any], attempts: Sequence[Attempt]) -> object:
    """The attempts from the first to the last, in proportion to their time; None if there is only one."""
    ran = [one for one in attempts if one.started_at is not None]
    begins = [one.started_at for one in ran] + ([job["locked_at"]] if job["locked_at"] else [])
    if len(begins) < 2:
        return None
    first = min(begin for begin in begins if begin is not None)
    last = max([one.ended_at for one in ran] + ([job["heartbeat_at"]] if job["heartbeat_at"] else []))
    whole_s = max(0.001, (last - first).total_seconds())
    spans = [
        (
            str(one.outcome),
            (one.started_at - first).total_seconds() / whole_s,
            (one.ended_at - first).total_seconds() / whole_s,
            f"attempt {one.attempt}: {one.outcome.replace('_', ' ')} after "
            f"{seconds((one.ended_at - one.started_at).total_seconds())}",
        )
        for one in ran
        if one.started_at is not None
    ]
    if job["locked_at"]:
        begin = (job["locked_at"] - first).total_seconds() / whole_s
        spans.append(("running", begin, 1.0, f"attempt {job['attempt']}: running"))
    return charts.timeline(spans, about=f"{len(spans)} attempts within {seconds(whole_s)}")
