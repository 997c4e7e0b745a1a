"""Every metric: its name, its labels, and what it means. docs/reference/metrics.md is made from this page."""

from __future__ import annotations

from typing import Literal, NamedTuple

from outlive.states import State

BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""The upper bounds of the histograms, from a millisecond to an hour."""


class Metric(NamedTuple):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    """The values of the only label that are there even if the figure is 0."""


JOBS_ENDED = Metric(
    "outlive_jobs_ended_total",
    "counter",
    "Attempts that ended in this worker, by how they ended.",
    ("task", "queue", "outcome"),
)
JOB_WAIT = Metric(
    "outlive_job_wait_seconds",
    "histogram",
    "How long jobs waited from the time at which they could run until a worker claimed them, by the clock of the "
    "database. A job that is retried waits from its next time on; one whose worker was lost keeps its place, and its "
    "time.",
    ("task",),
)
JOB_RUN = Metric("outlive_job_run_seconds", "histogram", "How long jobs ran, whatever their outcome.", ("task",))
CRASHES = Metric(
    "outlive_crashes_total",
    "counter",
    "Attempts whose process died or had to be killed for its memory, by signal; none: it exited by itself.",
    ("task", "signal"),
)
SLOTS = Metric("outlive_slots", "gauge", "How many jobs this worker can run at once.")
SLOTS_BUSY = Metric("outlive_slots_busy", "gauge", "How many slots have a job now.")
RENEWALS = Metric("outlive_lease_renewals_total", "counter", "Leases that this worker has renewed.")
FENCED = Metric(
    "outlive_stale_writes_fenced_total",
    "counter",
    "Ends that were not written because their attempts no longer belonged to this worker: it was declared dead, or "
    "could not renew its leases.",
)
WORKER = Metric(
    "outlive_worker_info", "gauge", "Always 1; its labels say which worker this is.", ("name", "id", "version")
)
OF_WORKER = (JOBS_ENDED, JOB_WAIT, JOB_RUN, CRASHES, SLOTS, SLOTS_BUSY, RENEWALS, FENCED, WORKER)
"""Workers serve these. Sum them over all workers."""

QUARANTINED = Metric(
    "outlive_quarantined_total",
    "counter",
    "Jobs that went into quarantine and were announced by this process. Each is announced once, by any worker or "
    "reaper, so the sum over all processes is right.",
    ("task",),
)
REAPED = Metric(
    "outlive_attempts_reaped_total",
    "counter",
    "Attempts that the reaper of this process has ended, because their worker was dead or their lease had expired.",
)
ROUND_TRIPS = Metric(
    "outlive_database_round_trips_total",
    "counter",
    "Statements of this process that the database has answered.",
    ("statement",),
)
UP = Metric(
    "outlive_database_up", "gauge", "1 if the database has answered this process within the last ten seconds, else 0."
)
OF_PROCESS = (QUARANTINED, REAPED, ROUND_TRIPS, UP)
"""Workers and `outlive reap` serve these."""

OF_DATABASE = (
    Metric(
        "outlive_jobs",
        "gauge",
        "Jobs in the database, by state. More than 5,000 of a state are estimated from a sample.",
        ("state",),
        tuple(State),
    ),
    Metric(
        "outlive_queue_waiting_jobs",
        "gauge",
        "Jobs that wait to be claimed, also those whose time is yet to come. More than 5,000 in all are estimated.",
        ("queue",),
    ),
    Metric("outlive_queue_ready_jobs", "gauge", "Jobs among these that could run now.", ("queue",)),
    Metric("outlive_queue_running_jobs", "gauge", "Jobs that run.", ("queue",)),
    Metric(
        "outlive_queue_oldest_ready_seconds",
        "gauge",
        "How long the oldest job that could run now has waited; 0 if no job could.",
        ("queue",),
    ),
    Metric("outlive_queue_paused", "gauge", "1 if an operator has paused the queue, else 0.", ("queue",)),
    Metric("outlive_queue_workers", "gauge", "Active workers that serve the queue.", ("queue",)),
    Metric("outlive_stuck_jobs", "gauge", "Running jobs whose lease has expired and that no reaper has ended yet."),
    Metric("outlive_suspect_jobs", "gauge", "Jobs that have lost several workers and will run alone."),
    Metric(
        "outlive_workers",
        "gauge",
        "Workers by state. Dead and stopped ones are kept for a week.",
        ("state",),
        ("active", "stale", "draining", "dead", "stopped"),
    ),
    Metric(
        "outlive_sources",
        "gauge",
        "Sources by the state of their breaker.",
        ("breaker",),
        ("closed", "half-open", "open"),
    ),
    Metric(
        "outlive_source_tokens", "gauge", "Requests that the rate of the source would allow at once now.", ("source",)
    ),
    Metric(
        "outlive_source_breaker_open",
        "gauge",
        "1 if the breaker of the source is open or half-open, else 0.",
        ("source",),
    ),
    Metric(
        "outlive_source_paused",
        "gauge",
        "1 if the source admits no job, because an operator or its breaker has paused it, else 0.",
        ("source",),
    ),
    Metric(
        "outlive_schedule_behind_seconds",
        "gauge",
        "How late the next firing of the schedule is; 0 if it is in time. Paused schedules have no figure.",
        ("schedule",),
    ),
    Metric("outlive_schedules_in_trouble", "gauge", "Schedules that can't fire; `outlive schedules` says why."),
)
"""Workers, `outlive reap` and the dashboard serve these, and all of them say the same: don't sum them, take the max."""


def as_markdown() -> str:
    """The tables of docs/reference/metrics.md."""
    parts = {
        "Of each worker": OF_WORKER,
        "Of each worker and `outlive reap`": OF_PROCESS,
        "Of the whole database": OF_DATABASE,
    }
    return "\n".join(_section(title, metrics) for title, metrics in parts.items())


def _section(title: str, metrics: tuple[Metric, ...]) -> str:
    lines = [f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(lines) + "\n"
