"""Every state of a job, and every legal transition with the SQL statement that makes it, on one page.

A job's state is the place of its row (see sql/schema/tables.sql); no column stores it. What a worker does to a running
job is fenced by the attempt. An event that is not legal in a state changes nothing: tests/store/test_transitions.py
tries every event in every state, and compares what the SQL does with this page. tools/docs makes
docs/reference/states.md from it.
"""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """The state of a job. The last three are ends; a quarantined job goes on only if a person releases it."""

    PENDING = "pending"
    RETRYABLE = "retryable"
    RUNNING = "running"
    BLOCKED = "blocked"
    SUSPENDED = "suspended"
    QUARANTINED = "quarantined"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    LOST = "lost"
    RELEASED = "released"
    CANCELLED = "cancelled"


FAULTS = frozenset(Outcome) - {Outcome.SUCCEEDED, Outcome.RELEASED, Outcome.CANCELLED}
"""The outcomes that metrics and traces report as errors."""


class Transition(NamedTuple):
    event: str
    before: tuple[State | None, ...]  # None: there is no job
    after: State | None
    statement: str
    when: str


PENDING, RETRYABLE, RUNNING, BLOCKED, SUSPENDED, QUARANTINED, SUCCEEDED, FAILED, CANCELLED = State
FINISHED = frozenset({SUCCEEDED, FAILED, CANCELLED})
OVER = FINISHED | {QUARANTINED}  # A client that waits for the result waits no longer.
ASKED_TO_CANCEL = "It ends so after an operator has asked to cancel it."

# fmt: off
TRANSITIONS = (
    # A client enqueues a job.
    Transition("enqueue", (None,), PENDING, "enqueue", "A client enqueues the job."),
    Transition("enqueue_after", (None,), BLOCKED, "enqueue", "A client enqueues it to wait for other jobs."),
    Transition("enqueue_after", (None,), CANCELLED, "enqueue",
        "One of these jobs has already ended without success, and the new one has `on_failure=cancel`."),

    # The jobs that it waits for end.
    Transition("unblock", (BLOCKED,), PENDING, "end_and_claim",
        "The last of these jobs succeeds. With `on_failure=proceed` it may end in any way."),
    Transition("abandon", (BLOCKED,), CANCELLED, "end_and_claim",
        "One of these jobs ends without success, and this one has `on_failure=cancel`."),

    # A worker claims it.
    Transition("claim", (PENDING, RETRYABLE), RUNNING, "end_and_claim", "A worker takes it, if its source admits it."),
    Transition("claim", (RETRYABLE,), QUARANTINED, "end_and_claim",
        "Its task's `max_crashes` was lowered, and it has crashed that often: it is not started."),
    Transition("claim_suspect", (PENDING,), RUNNING, "claim_suspect",
        "It is a suspect, and a worker with nothing else to do takes it."),
    Transition("claim_suspect", (PENDING,), QUARANTINED, "claim_suspect",
        "It is a suspect, and has crashed as often as a lowered `max_crashes` allows: it is not started."),
    Transition("convict", (RUNNING,), QUARANTINED, "convict",
        "Other jobs with the same task and arguments have reached `max_crashes`: it is not started."),
    Transition("renew", (RUNNING,), RUNNING, "renew", "Its worker renews the lease."),

    # Its worker reports the end.
    Transition("succeed", (RUNNING,), SUCCEEDED, "end_and_claim",
        "Its function returned, and it has neither records nor spawned jobs."),
    Transition("complete", (RUNNING,), SUCCEEDED, "complete_with_records",
        "It has records or spawned jobs, or it ended in its own transaction."),
    Transition("fail", (RUNNING,), RETRYABLE, "end_and_claim", "Its function raised."),
    Transition("fail", (RUNNING,), FAILED, "end_and_claim", "The same in the last of `max_attempts`, or by `Fail`."),
    Transition("time_out", (RUNNING,), RETRYABLE, "end_and_claim", "It took too long or stalled."),
    Transition("time_out", (RUNNING,), FAILED, "end_and_claim", "The same at the last attempt, or by `fail_on`."),
    Transition("exhaust", (RUNNING,), RETRYABLE, "end_and_claim", "Its function raised MemoryError."),
    Transition("exhaust", (RUNNING,), FAILED, "end_and_claim", "The same in the last of `max_attempts`."),
    Transition("overrun", (RUNNING,), RETRYABLE, "end_and_claim", "It was killed for its memory."),
    Transition("overrun", (RUNNING,), QUARANTINED, "end_and_claim", "The same, for the last of `max_crashes` times."),
    Transition("crash", (RUNNING,), RETRYABLE, "end_and_claim", "Its process died."),
    Transition("crash", (RUNNING,), QUARANTINED, "end_and_claim", "The same, for the last of `max_crashes` times."),
    Transition("hand_back", (RUNNING,), PENDING, "end_and_claim",
        "Its worker drains or reloads, or its source's breaker is open. The attempt does not count."),
    Transition("hand_back", (RUNNING,), RETRYABLE, "end_and_claim", "The same, and an earlier attempt has failed."),
    Transition("restart", (RUNNING,), PENDING, "restart",
        "It wants to begin again with new arguments: it has called `restart`."),
    Transition("stop", (RUNNING,), CANCELLED, "end_and_claim",
        "Its worker stopped it because an operator asked for that, or its function raised `Cancel`."),

    # Its code waits, and it holds no slot meanwhile.
    Transition("suspend", (RUNNING,), SUSPENDED, "suspend",
        "It waits for a time, for a signal or for other jobs: it has called `sleep`, `receive` or `gather`."),
    Transition("resume", (SUSPENDED,), RUNNING, "resume",
        "The wait is over, and its worker has kept the process: that goes on where it is."),
    Transition("end_wait", (SUSPENDED,), PENDING, "end_due",
        "The wait is over, and no worker has its process any more. If the signal ends it, the statement is `send`."),

    # The reaper finds it.
    Transition("expire", (RUNNING,), PENDING, "expire", "Its lease expired, and the attempt is lost."),
    Transition("expire", (RUNNING,), RETRYABLE, "expire", "The same, and an earlier attempt has failed."),
    Transition("expire", (RUNNING,), QUARANTINED, "expire", "The same, and its losses convict it (`max_losses`)."),
    Transition("expire", (RUNNING,), FAILED, "expire", "The same, and it has `on_worker_death=fail`."),
    Transition("reap", (RUNNING,), PENDING, "reap",
        "Its worker died: the attempt is lost. Or its worker stopped and left it: the attempt is released."),
    Transition("reap", (RUNNING,), RETRYABLE, "reap", "The same, and an earlier attempt has failed."),
    Transition("reap", (RUNNING,), QUARANTINED, "reap", "Its worker died, and its losses convict it (`max_losses`)."),
    Transition("reap", (RUNNING,), FAILED, "reap", "Its worker died, and it has `on_worker_death=fail`."),
    Transition("quarantine", (RETRYABLE,), QUARANTINED, "quarantine_killers",
        "Its task's `max_crashes` was lowered, and it has crashed that often."),

    # It ends without a result, after an operator has asked to cancel it.
    *(Transition(event, (RUNNING,), CANCELLED, "end_and_claim", ASKED_TO_CANCEL)
        for event in ("fail", "time_out", "exhaust", "overrun", "crash", "hand_back")),
    *(Transition(event, (RUNNING,), CANCELLED, event, ASKED_TO_CANCEL)
        for event in ("restart", "convict", "expire", "reap")),

    # An operator acts on it.
    Transition("cancel", (PENDING, RETRYABLE, BLOCKED, SUSPENDED, QUARANTINED), CANCELLED, "cancel",
        "An operator cancels it."),
    Transition("cancel", (RUNNING,), RUNNING, "cancel", "An operator asks its worker to stop it."),
    Transition("retry", (FAILED, CANCELLED, RETRYABLE), PENDING, "retry",
        "An operator retries it. All of its counters become zero."),
    Transition("retry", (FAILED, CANCELLED), BLOCKED, "retry",
        "An operator retries it, and jobs that it needs are under way: it waits for them again."),
    Transition("rerun", (SUCCEEDED, FAILED, CANCELLED, QUARANTINED, RETRYABLE), PENDING, "rerun",
        "An operator lets it begin again at a step that it has kept. All of its counters become zero."),
    Transition("rerun", (FAILED, CANCELLED), BLOCKED, "rerun",
        "The same, and jobs that it needs are under way: it waits for them again."),
    Transition("repeat", (SUCCEEDED,), SUCCEEDED, "repeat",
        "An operator runs it again: a new job, which is pending, has its task, its arguments and its options."),
    Transition("release", (QUARANTINED, BLOCKED), PENDING, "release",
        "An operator releases it. Its crashes and losses become zero."),
    Transition("release", (QUARANTINED, BLOCKED), RETRYABLE, "release", "The same, and an earlier attempt has failed."),
    Transition("block", (PENDING, RETRYABLE), BLOCKED, "block", "An operator blocks it."),
    Transition("prune", (SUCCEEDED, FAILED, CANCELLED, QUARANTINED), None, "prune_jobs",
        "An operator deletes it. Finished jobs are also deleted by the reaper, with `prune_finished`."),
)
# fmt: on


def legal(event: str, before: State | None) -> tuple[State | None, ...]:
    """The states that an event can lead to from this one; empty if it changes nothing."""
    return tuple(t.after for t in TRANSITIONS if t.event == event and before in t.before)
