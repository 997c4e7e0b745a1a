"""Histories as a right game leaves them, for tests that then break them in one place."""

from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from outlive_lab.gameday.checker import check
from outlive_lab.gameday.history import (
    UNLINKED,
    Answer,
    Ask,
    AskedBatch,
    Attempt,
    Callback,
    Effect,
    Fault,
    Found,
    History,
    Kept,
    Kind,
    Links,
    Mark,
    Sent,
    Start,
    Tick,
)
from outlive_lab.gameday.options import Bounds

STEADY, VICTIM = "steady", "victim"
STEP_S = 10.0
FATES = {"give_up": "failed", "kill": "quarantined", "share exit": "quarantined"}


@dataclass
class Story:
    """Both sides of a game, told attempt by attempt."""

    history: History = field(default_factory=History)
    jobs: dict[UUID, str] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    places: list[tuple[UUID, str]] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    workers: dict[str, str] = field(default_factory=lambda: dict.fromkeys((STEADY, VICTIM), "stopped"))
    callbacks: list[Callback] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    schedules: set[str] = field(default_factory=set)
    marks: list[Mark] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    ledger: list[UUID] = field(default_factory=list)
    mixed: list[UUID] = field(default_factory=list)
    token: int = 0

    def job(self, *outcomes: str, task: str = "pay", worker: str = STEADY, links: Links = UNLINKED) -> UUID:
        """A job that was acknowledged, with attempts that ended like this; a success has its effect."""
        id = uuid4()
        self.jobs[id] = task
        self.history.asks.append(Ask(id, Answer.OK, links=links))
        for outcome in outcomes:
            self.attempt(id, outcome, worker=worker)
        return id

    def attempt(self, id: UUID, outcome: str, *, worker: str = STEADY) -> Attempt:
        self.token += 1
        before = [one for one in self.attempts if one.job == id]
        outcomes = [*(one.outcome for one in before), outcome]
        made = Attempt(
            id,
            len(before) + 1,
            self.token,
            worker,
            outcome,
            outcome if outcome in ("succeeded", "cancelled") else FATES.get(self.jobs.get(id, ""), "retryable"),
            "SIGKILL" if outcome == "crashed" else None,
            self.token * STEP_S,
            self.token * STEP_S + 1.0,
            failures=outcomes.count("failed") + outcomes.count("timed_out"),
            crashes=outcomes.count("crashed"),
            losses=outcomes.count("lost"),
        )
        self.attempts.append(made)
        if outcome != "cancelled":
            self.starts.append(Start(self.token, 1000 + self.token, id, made.started_s or 0.0))
        if outcome == "succeeded":
            self.effects.append(Effect(id, self.token, at_s=made.ended_s))
        return made

    def batch(self, *, cancelled: bool = False) -> Links:
        """A batch that was closed. Jobs with these links are in it."""
        asked = AskedBatch(id=uuid4(), cancelled=cancelled, answer=Answer.OK)
        self.history.batches.append(asked)
        return Links(batch=asked.id)

    def call_back(self, batch: UUID | None, event: str) -> UUID:
        id = self.job("succeeded", task="tell")
        self.history.asks.pop()  # No client has enqueued it.
        assert batch
        self.callbacks.append(Callback(id, batch, event))
        return id

    def tick(self, second: int, schedule: str = "every second") -> None:
        self.schedules.add(schedule)
        id = self.job("succeeded", task="tick")
        self.history.asks.pop()
        self.ticks.append(Tick(id, schedule, float(second)))

    def fault(self, kind: Kind, *, at_s: float, worker: str = VICTIM, pid: int = 0) -> None:
        self.history.faults.append(Fault(kind=kind, at_s=at_s, worker=worker, pid=pid))

    def change(self, attempt: Attempt, **values: object) -> None:
        self.attempts[self.attempts.index(attempt)] = replace(attempt, **values)  # type: ignore[arg-type]

    def found(self) -> Found:
        return Found(
            jobs=self.jobs,
            places=self.places,
            members={ask.id: ask.links.batch for ask in self.history.asks if ask.links.batch is not None},
            attempts=self.attempts,
            starts=self.starts,
            effects=self.effects,
            fenced=self.fenced,
            workers=self.workers,
            callbacks=self.callbacks,
            ticks=self.ticks,
            completing={"pay", "post"},
            fates=FATES,
            schedules=self.schedules,
            marks=self.marks,
            kept=self.kept,
            sent=self.sent,
            ledger=self.ledger,
            sharing={"share"},
            mixed=self.mixed,
        )

    def broken(self) -> set[str]:
        """The rules that the checker finds broken."""
        return {breach.rule for breach in check(self.history, self.found(), Bounds())}
