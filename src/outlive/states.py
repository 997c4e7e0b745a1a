"""The whole life of a job on one page: its states, the events, and every legal transition.

A job's state is the place of its row (see sql/schema/tables.sql); no column stores it. Each event is done by one
named, fenced SQL statement, which may serve several: `end_and_claim` does most. Claims are three, by what is claimed.
An event that is not legal in a state changes nothing. The tests try every event in every state and compare with this
page, and tools/docs makes docs/reference/states.md from it.
"""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """The state of a job. The last three are ends; a quarantined job goes on only if a person releases it."""

    PENDING = "pending"
    RETRYABLE = "retryable"
    RUNNING = "running"
    BLOCKED = "blocked"
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
    after: tuple[State | None, ...]
    statement: str
    when: str


P, T, R, B, Q, S, F, C = State  # pending, retryable (T: to be tried again), running, blocked, quarantined, …
FINISHED = frozenset({S, F, C})
OVER = FINISHED | {Q}
"""A client that waits for the result waits no longer: a quarantined job goes on only if a person releases it."""

TRANSITIONS = (
    Transition("enqueue", (None,), (P,), "enqueue", "a client enqueues it"),
    Transition("enqueue_after", (None,), (B,), "enqueue", "a client enqueues it to wait for other jobs"),
    Transition("enqueue_after", (None,), (C,), "enqueue", "one of these has failed already: as abandon"),
    Transition("unblock", (B,), (P,), "end_and_claim", "the last job that it waits for succeeds, or ends: proceed"),
    Transition("abandon", (B,), (C,), "end_and_claim", "a job that it waits for ends without success: cancel"),
    Transition("claim", (P, T), (R,), "end_and_claim", "a worker takes it; by `claim_sourced`, if it has a source"),
    Transition("claim", (T,), (Q,), "end_and_claim", "its crash limit was lowered to its crashes: it is not started"),
    Transition("claim_suspect", (P,), (R,), "claim_suspect", "a worker with nothing else to do takes a suspect"),
    Transition("claim_suspect", (P,), (Q,), "claim_suspect", "its crash limit was lowered, as for claim"),
    Transition("renew", (R,), (R,), "renew", "its worker renews the lease"),
    Transition("succeed", (R,), (S,), "end_and_claim", "a result arrived, without records and spawns"),
    Transition(
        "complete", (R,), (S,), "complete_with_records", "it ended in its own transaction, or has records or spawns"
    ),
    # An attempt that ends without a result cancels the job, if an operator has asked for that.
    Transition("fail", (R,), (T, F, C), "end_and_claim", "it raised: retried, or failed at max_attempts or by Fail"),
    Transition("time_out", (R,), (T, F, C), "end_and_claim", "it took too long, or stalled: as fail"),
    Transition("exhaust", (R,), (T, F, C), "end_and_claim", "it raised MemoryError: as fail"),
    Transition("overrun", (R,), (T, Q, C), "end_and_claim", "it was killed for its memory: as crash"),
    Transition("crash", (R,), (T, Q, C), "end_and_claim", "its process died: retried, or quarantined at max_crashes"),
    Transition("hand_back", (R,), (P, T, C), "end_and_claim", "its worker drains, reloads, or meets an open breaker"),
    Transition("stop", (R,), (C,), "end_and_claim", "its worker stopped it on request"),
    Transition("expire", (R,), (P, T, Q, F, C), "expire", "its lease expired: lost, and counted against max_losses"),
    Transition(
        "reap", (R,), (P, T, Q, F, C), "reap", "its worker died: lost, as expire; or stopped and left it: released"
    ),
    Transition(
        "convict",
        (R,),
        (Q, C),
        "convict",
        "other jobs with the same task and arguments have reached the crash limit: it is not started",
    ),
    Transition("cancel", (P, T, B, Q), (C,), "cancel", "an operator cancels it"),
    Transition("cancel", (R,), (R,), "cancel", "an operator asks its worker to stop it"),
    Transition("retry", (F, C, T), (P,), "retry", "an operator retries it: all counters are zero"),
    Transition("release", (Q, B), (P, T), "release", "an operator releases it: crashes and losses are zero"),
    Transition("block", (P, T), (B,), "block", "an operator blocks it"),
    Transition("quarantine", (T,), (Q,), "quarantine_killers", "its crash limit was lowered to its crashes"),
    Transition("prune", (S, F, C, Q), (None,), "prune_jobs", "it is deleted"),
)


def legal(event: str, before: State | None) -> tuple[State | None, ...]:
    """The states that an event can lead to from this one; empty if it changes nothing."""
    return tuple(a for t in TRANSITIONS if t.event == event and before in t.before for a in t.after)
