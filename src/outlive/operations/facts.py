"""The facts of a job, a batch, an attempt and a schedule. Both surfaces show these, each in its own way.

A fact is a name and some parts: words, times, states, and links, which are things that have a page of the dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from outlive import program, references, timetable
from outlive.errors import BadArguments
from outlive.humanize import counted, duration, labelled, moment, number, size, unserved
from outlive.states import State


class Link(NamedTuple):
    words: str
    page: str
    id: str | None = None
    query: Mapping[str, str] = {}
    command: str = ""
    """What a terminal shows in place of the words."""

    def __str__(self) -> str:
        return self.command or self.words


class InState(NamedTuple):
    state: str

    def __str__(self) -> str:
        return f"({self.state})"


LATE = 1.25
"""So many times its interval after the last one, a heartbeat is late: a busy machine may take some seconds."""
SHOWN = 5
"""How many other jobs a fact names."""
Part = str | datetime | InState | Link
Job = Mapping[str, Any]


def busy(worker: Mapping[str, Any]) -> str:
    """How many slots of a worker are busy, how many jobs run in them, if these are more, and how many wait in it."""
    busy, ahead = worker["busy_slots"], worker["claimed_ahead"]
    jobs = worker["running"] - ahead
    slots = f"{busy} of {counted(worker['slots'], 'slot')}, {number(jobs)} jobs" if jobs > busy else ""
    return (slots or f"{busy} of {worker['slots']}") + (f", {number(ahead)} claimed ahead" if ahead else "")


def late(worker: Mapping[str, Any]) -> bool:
    """Whether an active worker that is connected has missed its last heartbeat: it sends one every `heartbeat_s`, 30
    seconds by default, so the last one is rarely older than that. A worker that is stopped or frozen stays connected.
    """
    return bool(worker["state"] == "active" and worker["time_since_heartbeat_s"] > LATE * worker["heartbeat_s"])


def of_job(job: Job) -> Iterator[tuple[str, list[Part]]]:
    """What is known about a job beside its arguments and attempts."""
    source: list[Part] = [", source ", _source(job)] if job["source"] else []
    queue = Link(job["queue"], "jobs", query={"queue": job["queue"]})
    yield "queue", [queue, *source, f", priority {job['priority']}"]
    if job["needs"]:
        yield "needs", [f"a worker with {labelled(job['needs'])}"]
    if job["dedupe_key"]:
        yield "dedupe key", [job["dedupe_key"]]
    if job["queues"]:
        taken = f"{job['slots_taken']} of {job['concurrency']} taken"
        yield "key", [f"waits for a slot of the key {job['concurrency_key']} ({taken})"]
    elif job["concurrency_key"]:
        yield "key", [f"{job['concurrency_key']}, at most {job['concurrency']} at a time"]
    if job["schedule"]:
        yield "fired by", ["schedule ", Link(job["schedule"], "schedules")]
    if job["repeats"]:
        yield "repeats", ["job ", _job(job["repeats"])]
    if job["gathered_by"]:
        yield "gathered by", ["job ", _job(job["gathered_by"])]
    if job["batch"]:
        yield "batch", [Link(str(job["batch"]), "batches", str(job["batch"]))]
    if references.MARK in job["args"] and job["after"]:
        yield "results", [*_results(job)]
    if job["on_failed"]:
        yield "on failed", [Link(job["on_failed"], "jobs", query={"task": job["on_failed"]})]
    yield "created", [job["created_at"]]
    if job["expires_at"]:
        yield "expires", [job["expires_at"]]
    if job["deadline"]:
        yield "deadline", [job["deadline"]]
    for parts in _why_it_waits(job):
        yield "waits", parts
    if job["state"] in (State.PENDING, State.RETRYABLE):
        yield "ready" if job["state"] == State.PENDING else "next try", [job["ready_at"]]
    words = (("failures", "failure"), ("crashes", "crash"), ("losses", "loss"))
    if counters := [counted(job[many], one, many) for many, one in words if job[many]]:
        yield "counted", [", ".join(counters)]
    if details := job["held_details"]:
        parts = ["since ", job["held_since"], ": "]
        if job["waits_until"]:  # The words end with this time, in UTC.
            parts += [details.rpartition(" until ")[0], " until ", job["waits_until"]]
        else:
            parts += [details]
        yield "held", parts
    for name in ("waits_for" if job["waits_for"] else "waited_for", "needed_by"):
        if job[name]:
            yield name.replace("_", " "), [*_others(job, name)]
    if job["kills"]:
        times = "once" if job["kills"] == 1 else f"{job['kills']} times"
        last = f"the same task and arguments killed their process {times} as other jobs, last with {job['last_cause']}"
        yield "killer", [f"{last} as job ", _job(job["last_killer"]), " at ", job["last_kill_at"]]
    if job["completed_at"]:
        yield "ended", [job["completed_at"]]


def _why_it_waits(job: Job) -> Iterator[list[Part]]:
    """Why a job does not begin that is ready."""
    if not job["served"]:
        yield ["; ".join(unserved(job["task"], job["queue"], job["lacking"]))]
    if kind := job["paused"]:
        resume = Link("resume it", f"{kind}s", command=program.command(f"{kind}s resume {job[kind]}"))
        yield [f"its {kind} {job[kind]} is paused; ", resume]
    elif until := job["breaker_open_until"]:
        yield ["the breaker of its source ", _source(job), " is open until ", until, "; then one job tries it"]
    elif slots := job["busy_slots"]:
        yield [f"all slots of the workers that serve it are busy ({slots} of {slots})"]


def _source(job: Job) -> Link:
    return Link(job["source"], "sources", query={"name": job["source"]})


def _others(job: Job, name: str) -> Iterator[Part]:
    """The jobs that it waits for, or those that wait for it: how many, and the first of them."""
    first = msgspec.json.decode(job[f"{name}_first"])
    yield f"{counted(job[name], 'job')}: "
    for n, one in enumerate(first):
        yield ", " if n else ""
        yield _job(one if isinstance(one, str) else one["id"])
        if not isinstance(one, str):
            yield " "
            yield InState(one["state"])
    yield ", …" if len(first) < job[name] else ""


def _results(job: Job) -> Iterator[Part]:
    """The jobs whose results are its arguments: "page of 01a1ea35-…"."""
    try:
        sources = references.sources(job["args"])
    except BadArguments:
        return
    for n, (name, places) in enumerate(sources.items()):
        known = [place for place in places if 0 <= place < len(job["after"])][:SHOWN]
        yield f"{', ' if n else ''}{name} of "
        for m, place in enumerate(known):
            yield ", " if m else ""
            yield _job(job["after"][place])
        yield ", …" if len(known) < len(places) else ""


def of_batch(batch: Mapping[str, Any]) -> Iterator[tuple[str, list[Part]]]:
    """How many of its jobs have ended in which way, when it was created, closed and done, and its callbacks."""
    id = str(batch["id"])
    ended: list[Part] = []
    for state in ("succeeded", "failed", "cancelled", "quarantined"):
        ended += [Link(f"{batch[state]:,} {state}", "jobs", query={"batch": id, "state": state}), ", "]
    yield counted(batch["jobs"], "job"), [*ended, f"{batch['unfinished']:,} unfinished"]
    for word in ("created", "closed", "cancelled", "done"):
        if at := batch[f"{word}_at"]:
            yield word, [at]
    for event in ("success", "failure", "done"):
        if job := batch[f"on_{event}"]:
            at = batch[f"{event}_called_at"]
            not_yet = f"job {job}, not enqueued{'' if batch['done_at'] else ' yet'}"
            yield f"on_{event}", ["job ", _job(job), ", enqueued ", at] if at else [not_yet]


def percent(part: float) -> str:
    """Rounded down: 100 % means that nothing is left."""
    return f"{int(part * 100)} %"


def words(parts: list[Part]) -> str:
    return "".join(moment(part) if isinstance(part, datetime) else str(part) for part in parts)


def _job(id: object) -> Link:
    return Link(str(id), "jobs", str(id))


def schedules(rows: list[dict[str, Any]], *, firings: int) -> list[dict[str, Any]]:
    """The schedules with their next firings, and with all times in UTC."""
    for row in rows:
        row |= {key: value.astimezone(UTC) for key, value in row.items() if isinstance(value, datetime)}
        row["next"] = timetable.next_firings(row, row.pop("now"), firings)
    return rows


def state_of_schedule(row: Mapping[str, Any]) -> str:
    if row["trouble"]:
        return "in trouble"
    if row["withdrawn_at"] or row["paused"]:
        return "withdrawn" if row["withdrawn_at"] else "paused"
    return "on" if row["next"] else "ended"


def evidence(attempt: Mapping[str, Any]) -> str:
    """How a process died and what it had used; empty if nothing is known."""
    found = [
        attempt["signal"],
        None if attempt["exit_code"] is None else f"exit code {attempt['exit_code']}",
        attempt["peak_memory_bytes"] and f"peak {size(attempt['peak_memory_bytes'])}",
        attempt["cpu_s"] and f"cpu {duration(attempt['cpu_s'])}",
    ]
    return ", ".join(fact for fact in found if fact)
