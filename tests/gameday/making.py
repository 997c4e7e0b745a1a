"""Histories as a right game leaves them, for tests that then break them in one place."""

from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from outlive.lab.gameday.checker import check
from outlive.lab.gameday.history import Answer, Ask, Attempt, Effect, Fault, Found, History, Kind
from outlive.lab.gameday.options import Bounds

STEADY, VICTIM = "steady", "victim"
STEP_S = 10.0


@dataclass
class Story:
    """Both sides of a game, told attempt by attempt."""

    history: History = field(default_factory=History)
    jobs: dict[UUID, str] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    places: list[tuple[UUID, str]] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    workers: dict[str, str] = field(default_factory=lambda: dict.fromkeys((STEADY, VICTIM), "stopped"))
    token: int = 0

    def job(self, *outcomes: str, task: str = "pay", worker: str = STEADY) -> UUID:
        """A job that was acknowledged, with attempts that ended like this; a success has its effect."""
        id = uuid4()
        self.jobs[id] = task
        self.history.asks.append(Ask(id, Answer.OK))
        for outcome in outcomes:
            self.attempt(id, outcome, worker=worker)
        return id

    def attempt(self, id: UUID, outcome: str, *, worker: str = STEADY) -> Attempt:
        self.token += 1
        before = [one for one in self.attempts if one.job == id]
        counts = {
            kind: sum(one.outcome == kind for one in before) + (outcome == kind)
            for kind in ("failed", "crashed", "lost")
        }
        made = Attempt(
            id,
            len(before) + 1,
            self.token,
            worker,
            outcome,
            "succeeded" if outcome == "succeeded" else "retryable",
            "SIGKILL" if outcome == "crashed" else None,
            self.token * STEP_S,
            self.token * STEP_S + 1.0,
            *counts.values(),
        )
        self.attempts.append(made)
        self.starts.append((self.token, 1000 + self.token))
        if outcome == "succeeded":
            self.effects.append(Effect(id, self.token))
        return made

    def fault(self, kind: Kind, *, at_s: float, worker: str = VICTIM, pid: int = 0) -> None:
        self.history.faults.append(Fault(kind=kind, at_s=at_s, worker=worker, pid=pid))

    def change(self, attempt: Attempt, **values: object) -> None:
        self.attempts[self.attempts.index(attempt)] = replace(attempt, **values)  # type: ignore[arg-type]

    def found(self) -> Found:
        return Found(
            jobs=self.jobs,
            places=self.places,
            attempts=self.attempts,
            starts=self.starts,
            effects=self.effects,
            fenced=self.fenced,
            workers=self.workers,
            completing={"pay", "post"},
        )

    def broken(self) -> set[str]:
        """The rules that the checker finds broken."""
        return {breach.rule for breach in check(self.history, self.found(), Bounds())}
