"""What operators do to one queue, source, worker, schedule or batch, and how that is written to the audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from outlive import store
from outlive.operations import By, Steps
from outlive.statement import Statement
from outlive.validation import count, identifier, names, positive, refused

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Control:
    """`action` is what the audit calls it. `make` takes the name of the thing, and to set it the new values."""

    action: str
    done: str
    make: Callable[..., Statement[Any]]
    note: str
    question: str = "{verb} the {noun} {name}?"

    @property
    def noun(self) -> str:
        return self.action.partition(" ")[2]

    def asked(self, name: str) -> str:
        return self.question.format(verb=self.action.partition(" ")[0].capitalize(), noun=self.noun, name=name)

    def result(self, name: str) -> str:
        return f"{self.noun} {name} is {self.done}" if self.done != "enqueued" else f"a job of {name} is enqueued"


_PAUSED = "No worker claims its jobs until it is resumed. Running jobs continue."
_ALL = (
    Control("pause queue", "paused", store.pause_queue, _PAUSED),
    Control("resume queue", "resumed", store.resume_queue, "Its jobs are claimed again."),
    Control("pause source", "paused", store.pause_source, _PAUSED),
    Control("resume source", "resumed", store.resume_source, "Its jobs are claimed again, and its breaker is closed."),
    Control(
        "remove source", "removed", store.remove_source, "It comes back if a worker declares it or a job names it."
    ),
    Control(
        "set source",
        "set",
        store.set_source,
        "This overrides what the app declares, for all workers and at once. An empty field: as the app declares it.",
        "Set the limits of the {noun} {name}?",
    ),
    Control("drain worker", "told to drain", store.drain_workers, "It finishes the jobs that it runs, and stops."),
    Control(
        "reload worker",
        "told to reload",
        store.reload_workers,
        "It imports its code again. Jobs that run go on with the old code.",
    ),
    Control(
        "set worker",
        "set",
        store.set_worker,
        "This holds until the worker stops: the next one has what it is started with. Jobs that run go on.",
        "Set the slots and the queues of the {noun} {name}?",
    ),
    Control(
        "pause schedule", "paused", store.pause_schedule, "It does not fire until it is resumed. Its jobs continue."
    ),
    Control(
        "resume schedule", "resumed", store.resume_schedule, "It fires again. Its option missed says what it makes up."
    ),
    Control(
        "run schedule",
        "enqueued",
        store.run_schedule,
        "A job of it is enqueued now, beside its firings.",
        "Run the schedule {name} now?",
    ),
    Control(
        "set schedule",
        "set",
        store.set_schedule,
        "This overrides what the app declares, also after deploys, until the schedule is reset.",
        "Change the {noun} {name}?",
    ),
    Control(
        "reset schedule",
        "as its app declares it",
        store.reset_schedule,
        "What operators have changed of it is taken back: the declaration of its app applies again.",
    ),
    Control("remove schedule", "removed", store.remove_schedule, "It fires no more. The jobs that it has made stay."),
)
CONTROLS = {one.action.replace(" ", "_"): one for one in _ALL}

SETTABLE = ("rate_limit_per_minute", "burst", "max_concurrency", "breaker_failures", "breaker_pause_s")
_WHOLE = frozenset({"burst", "max_concurrency", "breaker_failures"})


def limit_of_source(key: str, text: str) -> float | None:
    """A limit that an operator has written; None, if it is empty: what the app declares applies."""
    try:
        return positive(key, int(text) if key in _WHOLE else float(text)) if text else None
    except ValueError:
        raise refused(key, text, f"a {'whole ' if key in _WHOLE else ''}number") from None


def size_of_worker(slots: str | None, queues: str | None) -> dict[str, Any]:
    """The slots and queues that an operator has written, those that are given; without a queue in it: all queues."""
    values: dict[str, Any] = {}
    if slots is not None:
        values["slots"] = count("slots", int(slots) if slots.isdecimal() else slots)
    if queues is not None:
        values["queues"] = [identifier("queues", one) for one in names("queues", queues)] if queues.strip() else []
    return values


def audited(statement: Statement[T], by: By, action: str, what: object, *, jobs: int = 0) -> Steps[T]:
    """Do it in one transaction, which also writes the audit, unless nothing was done."""
    done: T = yield statement
    if done is None or done:
        yield store.write_audit(by.entry, who=by.who, action=action, what=what, jobs=jobs)
    return done


def cancel_jobs_of(batch: UUID) -> Steps[None]:
    """Cancel the jobs of a batch that is closed, a portion at a time."""
    past = yield store.cancel_batch(batch)
    while past is not None:
        past = yield store.cancel_batch(batch, past)
