"""The list of jobs, and the page of one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from outlive import store
from outlive.dashboard import charts, graph, job_steps, postmortem, searches
from outlive.dashboard.job_choice import FIELDS, BadField, filter_of
from outlive.dashboard.overview import tally
from outlive.dashboard.rendering import seconds
from outlive.dashboard.searches import PAGE
from outlive.dashboard.visits import Visit
from outlive.errors import no_job
from outlive.model import Attempt
from outlive.operations import facts, selection
from outlive.operations.selection import Count
from outlive.operations.verbs import VERBS
from outlive.states import FINISHED, State
from outlive.store import Found, JobFilter

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

COUNT_S = 0.03
LONGEST_ARGS = 20_000
SHOWN_ATTEMPTS = 50
ORDERS = {
    "longest": (State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED),
    "errors": (State.FAILED,),
}
"""The orders that no index has, and the states of the jobs that have them."""


async def look(site: Site, visit: Visit) -> Mapping[str, Any]:
    wrong: dict[str, str] = {}
    try:
        wanted = await site.database.do(filter_of(dict(visit.query)))
    except BadField as error:
        wanted, wrong = JobFilter(), {error.field: str(error)}
    run, sort, past = site.database.run, visit.get("sort"), visit.get("past")
    orders = {name: tuple(one for one in of if one in (wanted.states or of)) for name, of in ORDERS.items()}
    if sort == "longest" and wanted.states == (State.RUNNING,):
        sort = "oldest"  # An index has this order.
    sort = sort if sort in ("oldest", "newest") or orders.get(sort or "") else None
    waits = bool(wanted.states) and {*wanted.states} <= {State.PENDING, State.RETRYABLE}
    oldest = sort == "oldest" or (sort is None and waits)  # Those that are due first.
    sought, most = wanted, PAGE
    if sort in ORDERS:
        sought, most = msgspec.structs.replace(wanted, states=orders[sort]), searches.MANY
    found = searches.NOTHING if wrong else await _find(site, sought, past, oldest=oldest, most=most)
    searching = searches.goes_on(found, most)
    ids = await run(store.longest_jobs(found.ids, limit=PAGE)) if sort == "longest" else found.ids
    errors = await run(store.group_errors(found.ids, limit=PAGE)) if sort == "errors" else []
    for row in errors:
        row["text"] = max(row["error"].split("…"), key=len).strip()
    rows = await run(store.list_jobs(ids, wanted.states)) if ids and sort != "errors" else []
    given = {key: visit.get(key) for key in FIELDS}
    by_state, rough = tally(await site.answers.ask(store.count_jobs()))
    verbs = [verb for verb in VERBS.values() if set(wanted.states) <= set(verb.takes)]
    return {
        "title": "Jobs",
        "wrong": wrong,
        "status": 400 if wrong else 200,
        "still": bool(wrong) or (past is not None and wanted.indexed),
        "by_state": by_state,
        "chosen": wanted.states,
        "rough": rough,
        "jobs": rows,
        "given": given,
        "sort": sort,
        "orders": orders,
        "errors": errors,
        "among": len(found.ids) if sort in ORDERS and found.next is not None else None,
        "oldest": oldest,
        "waits": waits,
        "filtered": any(given.values()),
        "verbs": verbs,
        "on_all": [verb for verb in verbs if wanted.states or verb.default],
        "past": past,
        "next": None if sort in ORDERS else found.next,
        "seen": found.seen,
        "searching": searching,
        "stopped": found.next is not None and len(found.ids) < most and not searching,
        "count": None if wrong or searching else await _count(site, sought, found, first=past is None),
    }


async def _find(site: Site, wanted: JobFilter, past: str | None, *, oldest: bool, most: int) -> Found:
    """The jobs whose id begins with the digits that were searched for, or else those that match."""
    if digits := selection.prefix(wanted.text):
        ids = await site.database.run(store.with_prefix("jobs", digits, limit=PAGE))
        if ids:
            return Found(ids, len(ids), 0, None)
    return await site.searches.look(wanted, past, oldest=oldest, most=most)


async def _count(site: Site, wanted: JobFilter, found: Found, *, first: bool) -> Count | None:
    """How many jobs match, on all pages. None while they are searched, and for a text, which is too slow to count."""
    if first and found.next is None:
        return Count(len(found.ids))
    if wanted.by_lane:
        return selection.count_in(await site.answers.ask(store.count_jobs()), wanted)
    if wanted.text is not None or len(found.ids) < PAGE:
        return None
    return await site.database.do(selection.count(wanted, patience_s=COUNT_S))


async def look_at_one(site: Site, visit: Visit) -> Mapping[str, Any]:
    id = visit.id()
    found = await site.database.run(store.job(id))
    if not found:
        raise no_job(id)
    (job,) = found
    attempts = await site.database.run(store.list_attempts(id, SHOWN_ATTEMPTS + 1))
    # What a running job says is written only while it is followed, so this is no read.
    said = await site.writing.run(store.watch(id)) if job["state"] == State.RUNNING else None
    kept = await site.database.run(store.list_steps(id, limit=job_steps.SHOWN))
    steps = job_steps.rows(job, kept, said.steps if said is not None else "")
    linked = await site.database.run(store.linked_jobs(id, limit=graph.MOST + 1))
    return {
        "title": f"{job['task']} {id}",
        "job": job,
        "args": postmortem.pretty(job["args"], LONGEST_ARGS),
        "args_bytes": len(job["args"]),
        "options": postmortem.pretty(job["options"], LONGEST_ARGS),
        "checkpoint": postmortem.pretty(job["checkpoint"], LONGEST_ARGS),
        "attempts": [postmortem.shown(attempt) for attempt in reversed(attempts[-SHOWN_ATTEMPTS:])],
        "more_attempts": len(attempts) > SHOWN_ATTEMPTS,
        "timeline": timeline(job, attempts),
        "steps": steps,
        "more_steps": kept[0]["place"] - 1 if kept else 0,
        "died_in": job_steps.died_in(attempts, kept),
        "value": await _value(site, visit),
        "reruns": job["state"] in job_steps.RERUN_FROM,
        "ended": job["state"] in FINISHED,
        "linked": linked,
        "graph": graph.draw(linked, id, visit.links) if 1 < len(linked) <= graph.MOST else None,
        "facts": facts.of_job(job),
        "now_said": said if said is not None and said.live else None,
        "now_memory": postmortem.memory_chart(said.memory) if said is not None else None,
        "verbs": [verb for verb in VERBS.values() if job["state"] in verb.takes],
    }


async def _value(site: Site, visit: Visit) -> str | None:
    if (name := visit.get("step")) is None:
        return None
    found = await site.database.run(store.step(visit.id(), name))
    return postmortem.pretty(found[0], LONGEST_ARGS) if found else "The job has kept no such step."


def timeline(job: Mapping[str, Any], attempts: Sequence[Attempt]) -> object:
    """The attempts from the first to the last, in proportion to their time; None if there is only one."""
    spans: list[tuple[str, datetime, datetime, str]] = []
    for one in attempts:
        if one.started_at is not None:
            after = seconds((one.ended_at - one.started_at).total_seconds())
            words = f"attempt {one.attempt}: {one.outcome.replace('_', ' ')} after {after}"
            spans.append((str(one.outcome), one.started_at, one.ended_at, words))
    if job["locked_at"]:
        now = max([job["heartbeat_at"] or job["locked_at"], *(end for _, _, end, _ in spans)])
        spans.append(("running", job["locked_at"], now, f"attempt {job['attempt']}: running"))
    if len(spans) < 2:
        return None
    first, last = min(begin for _, begin, _, _ in spans), max(end for _, _, end, _ in spans)
    whole = max(last - first, timedelta(milliseconds=1))
    parts = [(outcome, (begin - first) / whole, (end - first) / whole, words) for outcome, begin, end, words in spans]
    return charts.timeline(parts, about=f"{len(parts)} attempts within {seconds(whole.total_seconds())}")
