"""The replay of a history finds what the models do not allow: each rule is broken once, in rows of a game."""

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outlive_lab.gameday import replay
from outlive_lab.gameday.replay import Replay

NEVER = {"failures": 0, "crashes": 0, "losses": 0}


def at(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


@dataclass
class Told:
    """A history. Each step is a transaction of its own, one second after the one before."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    n: int = 0
    token: int = 0

    def job(self, id: str = "a", **about: Any) -> None:
        self.lines.append({"is": "job", "id": id, "task": "pay", "key": None, "limit": None, "kills": False, **about})

    def kill(self, worker: str = "w") -> None:
        fault = {"is": "fault", "kind": "tree killed", "worker": worker, "of": "worker", "at_s": float(self.n)}
        self.lines.append(fault)

    def step(self, *rows: tuple[str, str, dict[str, Any]], late_s: float = 0.0) -> None:
        self.n += 1
        about = {"is": "step", "n": self.n, "transaction": self.n, "began_s": self.n - late_s, "at_s": float(self.n)}
        self.lines += [{**about, "table": table, "change": change, "row": row} for table, change, row in rows]

    def worker(self, change: str = "insert", id: str = "w", **values: Any) -> None:
        row = {"id": id, "name": id, "state": "active", "watched": True, "stop_requested_at": None, **values}
        self.step(("workers", change, row))

    def waits(self, id: str = "a", **values: Any) -> dict[str, Any]:
        return {"id": id, "queue": "q", "ready_at": at(0), "attempt": 0, **NEVER, **values}

    def runs(self, id: str = "a", **values: Any) -> dict[str, Any]:
        lease = {"lease_until": at(self.n + 100), "alone": False, "begun": True}
        return self.waits(id, attempt=1) | {"token": self.token, "worker": "w", **lease} | values

    def held(self, why: str, id: str = "a", **values: Any) -> dict[str, Any]:
        return self.waits(id, why=why, step=None, parked_by=None, unmet=None) | values

    def ended(self, outcome: str = "succeeded", id: str = "a", **values: Any) -> dict[str, Any]:
        row = {"job_id": id, "token": self.token, "worker": "w", "outcome": outcome, "state": outcome, "loss": None}
        return row | {"attempt": 1, **NEVER} | values

    def enqueue(self, id: str = "a") -> None:
        self.step(("waiting", "insert", self.waits(id)))

    def claim(self, id: str = "a", *, late_s: float = 0.0, **values: Any) -> dict[str, Any]:
        self.token += 1
        row = self.runs(id) | values
        self.step(("running", "insert", row), ("waiting", "delete", self.waits(id)), late_s=late_s)
        return row

    def end(self, row: dict[str, Any], *more: tuple[str, str, dict[str, Any]], **values: Any) -> None:
        end = self.ended(id=row["id"], token=row["token"]) | values
        self.step(("attempts", "insert", end), ("running", "delete", row), *more)

    def lose(self, row: dict[str, Any], **values: Any) -> None:
        again = self.waits(row["id"], attempt=1, losses=1)
        self.end(row, ("waiting", "insert", again), outcome="lost", state="pending", losses=1, **values)

    def broken(self) -> list[str]:
        return [one.rule for one in Replay(self.lines).run()]


@pytest.fixture
def told() -> Told:
    made = Told()
    made.job()
    made.job("b")
    made.worker()
    made.enqueue()
    return made


def test_a_right_history_has_no_illegal_step(told):
    row = told.claim()
    renewed = {**row, "lease_until": at(500)}
    told.step(("running", "update", renewed))
    told.kill()
    told.worker("update", state="dead")
    told.lose(renewed)
    told.worker(id="v")
    again = told.runs(token=2, worker="v", attempt=2, losses=1)
    told.step(("running", "insert", again), ("waiting", "delete", told.waits(attempt=1, losses=1)))
    told.end(again, token=2, worker="v", attempt=2, losses=1)
    assert told.broken() == []


def _end_again(told: Told) -> None:
    row = told.claim()
    told.end(row)
    told.step(("attempts", "insert", told.ended(token=9, attempt=2)))


def _wake(told: Told, **values: Any) -> None:
    row = told.claim()
    held = told.held("suspended", step="sleep", ready_at=at(1000), attempt=1) | values
    told.step(("running", "delete", row), ("held", "insert", held))
    told.step(("held", "delete", held), ("waiting", "insert", told.waits(attempt=1)))


def _receive(told: Told, *values: str) -> None:
    row = told.claim()
    for number, value in enumerate(values):
        kept = {"job_id": "a", "name": f"receive:go#{number}", "value": value, "attempt": 1}
        told.step(("steps", "insert", kept), ("running", "update", row))


def _release(told: Told, on_failure: str = "block") -> None:
    told.step(
        ("dependencies", "insert", {"job_id": "b", "needs": "a", "on_failure": on_failure}),
        ("held", "insert", told.held("dependent", "b")),
    )
    told.step(("held", "delete", told.held("dependent", "b")), ("waiting", "insert", told.waits("b")))


def _keep(told: Told) -> None:
    step = {"job_id": "a", "name": "take", "value": 1, "attempt": 1}
    told.claim()
    told.step(("steps", "insert", step))
    told.step(("steps", "update", step | {"value": 2}))


def _bury(told: Told) -> None:
    told.kill()
    told.worker("update", state="dead")


def _rise(told: Told) -> None:
    _bury(told)
    told.worker("update")


def _pause(told: Told) -> None:
    told.step(("queues", "insert", {"name": "q", "paused_at": at(1)}))
    told.n += 10
    told.claim()


def _crowd(told: Told) -> None:
    for id in "cd":
        told.job(id, key="k", limit=1)
        told.enqueue(id)
    told.claim("c")
    told.claim("d")


def _gather(told: Told) -> None:
    told.step(("dependencies", "insert", {"job_id": "a", "needs": "b", "on_failure": "proceed"}))
    _wake(told, unmet=1, ready_at=at(0))


def _claim_hidden(told: Told) -> None:
    told.worker("update", watched=False)
    told.claim()


def _claim_dead(told: Told) -> None:
    _bury(told)
    told.claim()


def _charge(told: Told) -> None:
    row = told.claim(begun=False)
    _bury(told)
    told.lose(row)


def _fail(told: Told, on_failure: str = "block") -> None:
    told.end(told.claim(), outcome="failed", state="failed", failures=1)
    _release(told, on_failure)


BROKEN: dict[str, tuple[Callable[[Told], object], str]] = {
    "in two places": (lambda t: t.step(("held", "insert", t.held("key"))), "OnePlace"),
    "in no place": (lambda t: t.step(("waiting", "delete", t.waits())), "OnePlace"),
    "ended twice": (_end_again, "OneEnd"),
    "ended with an old token": (lambda t: t.end(t.claim(), token=0), "NoStaleEnd"),
    "ended by another worker": (lambda t: t.end(t.claim(), worker="v"), "NoForeignEnd"),
    "gone without an end": (
        lambda t: t.step(("running", "delete", t.claim()), ("waiting", "insert", t.waits(attempt=1))),
        "End",
    ),
    "claimed by the dead": (_claim_dead, "Claim"),
    "claimed before its time": (lambda t: t.claim(late_s=500), "Claim"),
    "claimed before its worker has shown life": (_claim_hidden, "show life before the first claim"),
    "claimed from a paused queue": (_pause, "paused"),
    "over the limit of its key": (_crowd, "limit"),
    "a shorter lease": (lambda t: t.step(("running", "update", {**t.claim(), "lease_until": at(1)})), "Renew"),
    "lost by the living": (lambda t: t.lose(t.claim()), "NoLossOfTheLiving"),
    "charged before it began": (_charge, "NoLossWithoutADeath"),
    "charged for a success": (lambda t: t.end(t.claim(), losses=1), "NoLossWithoutADeath"),
    "a crash that is not counted": (lambda t: t.end(t.claim(), outcome="crashed"), "EveryDeathIsCounted"),
    "quarantined without a reason": (
        lambda t: t.end(t.claim(), ("held", "insert", t.held("quarantined", attempt=1)), state="quarantined"),
        "NoInnocentIsConvicted",
    ),
    "a living worker is declared dead": (
        lambda t: t.worker("update", state="dead"),
        "NoLivingWorkerIsDeclaredDead",
    ),
    "the dead rise": (_rise, "Declare"),
    "released too early": (_release, "ReleasedAfterTheEnds"),
    "released after a failure": (_fail, "ReleasedAfterTheEnds"),
    "woken too early": (_wake, "EndWait"),
    "woken while a job that it gathers goes on": (_gather, "EndWait"),
    "a signal received twice": (lambda t: _receive(t, "x", "x"), "NoSignalTwice"),
    "a signal lost": (
        lambda t: t.step(("signals", "delete", {"job_id": "a", "number": 1, "value": "x"})),
        "NoSignalLost",
    ),
    "a step changed": (_keep, "CodeKnowsItsSteps"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_first_illegal_step_is_named(told, what):
    break_it, rule = BROKEN[what]
    break_it(told)
    assert told.broken()[:1] == [rule]


def test_a_release_after_a_failure_is_legal_if_the_job_is_to_proceed(told):
    _fail(told, "proceed")
    assert told.broken() == []


def test_a_job_may_be_released_and_claimed_by_the_statement_that_ends_another(told):
    told.step(
        ("dependencies", "insert", {"job_id": "b", "needs": "a", "on_failure": "block"}),
        ("held", "insert", told.held("dependent", "b")),
    )
    claimed = told.runs("b", token=2)
    told.end(
        told.claim(),
        ("waiting", "insert", told.waits("b")),
        ("held", "delete", told.held("dependent", "b")),
        ("running", "insert", claimed),
        ("waiting", "delete", told.waits("b")),
    )
    assert told.broken() == []


def test_the_replay_shares_no_code_with_outlive():
    tree = ast.parse(Path(replay.__file__).read_text(encoding="utf-8"))
    names = {one.module or "" for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
    names |= {name.name for one in ast.walk(tree) if isinstance(one, ast.Import) for name in one.names}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
