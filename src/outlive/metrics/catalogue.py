"""Every metric: its name, its labels, and what it means. docs/reference/metrics.md is made from this page."""

from __future__ import annotations

from typing import Literal, NamedTuple

from outlive.states import State

BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""The upper bounds of the histograms, from a millisecond to an hour."""


DATABASE = "database"
"""The label that every figure has: the name and the place of the database, without user and password."""


class Metric(NamedTuple):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    """The values of the only label that are there even if the figure is 0."""


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"outlive_{name}_total", "counter", help, labels)


def _gauge(name: str, help: str, *labels: str, always: tuple[str, ...] = ()) -> Metric:
    return Metric(f"outlive_{name}", "gauge", help, labels, always)


def _histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"outlive_{name}_seconds", "histogram", help, labels)


JOBS_ENDED = _counter(
    "jobs_ended", "Attempts that ended in this worker, by how they ended.", "task", "queue", "outcome"
)
JOB_WAIT = _histogram(
    "job_wait",
    "How long jobs waited from the time at which they could run until a worker claimed them, by the clock of the "
    "database. A job that is retried waits from its next time on; one whose worker was lost keeps its place, and its "
    "time.",
    "task",
)
JOB_RUN = _histogram("job_run", "How long jobs ran, whatever their outcome.", "task")
CRASHES = _counter(
    "crashes",
    "Attempts whose process died or had to be killed for its memory, by signal; none: it exited by itself.",
    "task",
    "signal",
)
SLOTS = _gauge("slots", "How many jobs this worker can run at once. Those that share a process count as one.")
SLOTS_BUSY = _gauge("slots_busy", "How many slots have a job now, or many jobs that share a process.")
RUNNING = _gauge("running_jobs", "How many jobs run in this worker now: more than slots are busy, if jobs share some.")
RENEWALS = _counter("lease_renewals", "Leases that this worker has renewed.")
FENCED = _counter(
    "stale_writes_fenced",
    "Ends that were not written because their attempts no longer belonged to this worker: it was declared dead, or "
    "could not renew its leases.",
)
WORKER = _gauge("worker_info", "Always 1; its labels say which worker this is.", "name", "id", "version")
OF_WORKER = (JOBS_ENDED, JOB_WAIT, JOB_RUN, CRASHES, SLOTS, SLOTS_BUSY, RUNNING, RENEWALS, FENCED, WORKER)
"""Workers serve these. Sum them over all workers."""

QUARANTINED = _counter(
    "quarantined",
    "Jobs that went into quarantine and were announced by this process. Each is announced once, by any worker or "
    "reaper, so the sum over all processes is right.",
    "task",
)
REAPED = _counter(
    "attempts_reaped",
    "Attempts that the reaper of this process has ended, because their worker was dead or their lease had expired.",
)
ROUND_TRIPS = _counter(
    "database_round_trips", "Statements of this process that the database has answered.", "statement"
)
UP = _gauge("database_up", "1 if the database has answered this process within the last ten seconds, else 0.")
OF_PROCESS = (QUARANTINED, REAPED, ROUND_TRIPS, UP)
"""Workers and `outlive reap` serve these."""

OF_DATABASE = (
    _gauge(
        "jobs",
        "Jobs in the database, by state. More than 10,000 of a lane are estimated from a sample.",
        "state",
        always=tuple(State),
    ),
    _gauge(
        "queue_waiting_jobs",
        "Jobs that wait to be claimed, also those whose time is yet to come. More than 10,000 of a lane are estimated.",
        "queue",
    ),
    _gauge(
        "queue_ready_jobs",
        "Jobs among these that could run now. More than 10,000 ready jobs of a lane are estimated.",
        "queue",
    ),
    _gauge("queue_running_jobs", "Jobs that run.", "queue"),
    _gauge(
        "queue_oldest_ready_seconds",
        "How long the oldest job that could run now has waited; 0 if no job could.",
        "queue",
    ),
    _gauge("queue_paused", "1 if an operator has paused the queue, else 0.", "queue"),
    _gauge("queue_paused_seconds", "For how long the queue is paused; 0 if it is not.", "queue"),
    _gauge("queue_workers", "Active workers that serve the queue.", "queue"),
    _gauge("queue_slots", "Slots of the active workers that serve the queue and have what its tasks need.", "queue"),
    _gauge("queue_busy_slots", "Slots in which jobs of the queue run, except those of workers that drain.", "queue"),
    _gauge(
        "queue_wanted_slots",
        "Slots that would be busy if the ready jobs ran too; some 5,000 ready jobs are counted in all.",
        "queue",
    ),
    _gauge(
        "waits",
        "Jobs that are suspended, by what they wait for: a time, a signal, or jobs that they have enqueued. Many are "
        "estimated from a sample.",
        "kind",
        always=("time", "signal", "jobs"),
    ),
    _gauge("stuck_jobs", "Running jobs whose lease has expired and that no reaper has ended yet."),
    _gauge("suspect_jobs", "Jobs that have lost several workers and will run alone."),
    _gauge(
        "workers",
        "Workers by state. Dead and stopped ones are kept for a week.",
        "state",
        always=("active", "stale", "draining", "dead", "stopped"),
    ),
    _gauge("recent_worker_deaths", "Workers that were declared dead in the last ten minutes."),
    _gauge("recent_failures", "Jobs that failed for good in the last ten minutes; at most 10,000 are counted."),
    _gauge("recent_quarantines", "Jobs that went into quarantine in the last ten minutes and are still there."),
    _gauge("sources", "Sources by the state of their breaker.", "breaker", always=("closed", "half-open", "open")),
    _gauge("source_tokens", "Requests that the rate of the source would allow at once now.", "source"),
    _gauge("source_breaker_open", "1 if the breaker of the source is open or half-open, else 0.", "source"),
    _gauge(
        "source_paused",
        "1 if the source admits no job, because an operator or its breaker has paused it, else 0.",
        "source",
    ),
    _gauge(
        "schedule_behind_seconds",
        "How late the next firing of the schedule is; 0 if it is in time. Paused schedules have no figure.",
        "schedule",
    ),
    _gauge("schedules_in_trouble", "Schedules that can't fire; `outlive schedules` says why."),
)
"""Workers, `outlive reap` and the dashboard serve these, and all of them say the same: don't sum them, take the max."""
