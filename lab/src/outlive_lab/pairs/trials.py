"""A pair of statements in all its orders, and what is wrong with each.

The first statement stops at one of its cuts, or between its end and its commit. Then the second one runs until it is
done, stops at one of its own cuts, or waits for a lock. Then both go on, in either order. What they leave behind must
be what one after the other leaves behind, and must keep the rules. In a triple a third one runs after the second.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import psycopg

from outlive import db, states
from outlive_lab.pairs import rules, shapes
from outlive_lab.pairs.actions import Action
from outlive_lab.pairs.scenes import Scene, settle
from outlive_lab.pairs.sessions import BEGUN, OPEN, Act, Actor, How, LeftWaiting, Place, Ring
from outlive_lab.pairs.shapes import Shape

Stop = int | str | None
_SOURCES = ("count_outcomes", "ask_source", "pause_source", "resume_source", "set_source")
TOLERATED = {
    # A step that is kept as its job begins again stays. A worker sends the end of an attempt when all its steps are
    # written (`hold` in outlive/worker/attempts/progress.py), and a client in another language waits for each answer.
    *(frozenset({"restart", step}) for step in ("keep_steps", "keep_step")),
    # Ends of the protocol don't wait for a source that is locked, and are not counted there (`patient` in
    # outlive/sql/schema/functions/sources.sql).
    *(frozenset({end, lock}) for end in ("succeed", "fail") for lock in _SOURCES),
    # A job that a worker takes as it is declared dead is reaped with the others. A claim reads its worker's row without
    # a lock, which would cost each claim a write; a death counts what it sees (`died_with`).
    *(frozenset({take, "give_up_silent"}) for take in ("resume", "claim J")),
}
"""Actions that may end in another way than one after the other: only the rules tell whether they are right."""
RECORD = -1
GATES = (
    *(("jobs", "id"), ("waiting", "id"), ("running", "id"), ("held", "id"), ("dedupe_keys", "id"), ("batches", "id")),
    *(("dependencies", "job_id"), ("keyed_jobs", "job_id"), ("key_locks", "bucket"), ("expiring", "job_id")),
    *(("workers", "id"), ("sources", "name"), ("schedules", "name")),
)
"""The tables whose rows statements lock, and what a row is found by."""


@dataclass(frozen=True, slots=True)
class Order:
    """Where the first stops, where the second does, and which of them goes on first."""

    first: Stop
    second: Stop = None
    second_first: bool = False
    rolls_back: bool = False
    serializable: tuple[bool, bool] = (False, False)
    gate: str | None = None
    """A row that another transaction holds meanwhile, in the way of the first."""


@dataclass(frozen=True, slots=True)
class Result:
    """What statements have left behind, and what each has answered."""

    shape: Shape
    answers: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Finding:
    actions: str
    order: Order
    words: Sequence[str]

    def __str__(self) -> str:
        return "\n    ".join((f"{self.actions}: {self.order}", *self.words))


@dataclass(slots=True)
class Stage:
    """A scene, played again and again in one database."""

    scene: Scene
    ring: Ring
    repeats: Counter[str] = field(default_factory=Counter)
    _cuts: dict[str, list[str]] = field(default_factory=dict)
    _gates: dict[str, list[str]] = field(default_factory=dict)
    _serial: dict[tuple[str, ...], Result] = field(default_factory=dict)
    _before: dict[str, states.State] = field(default_factory=dict)

    def restore(self) -> None:
        shapes.restore(self.ring.watcher, self.scene.name)
        if not self._before:
            self._before = shapes.judge(self.ring.watcher).states

    def act(self, action: Action) -> Act:
        return lambda connection: action.act(connection, self.scene.tokens)

    # Without cuts

    def serial(self, *actions: Action) -> Result:
        """One after the other; those that pass by what is locked once more at the end."""
        names = tuple(action.name for action in actions)
        if names not in self._serial:
            self.restore()
            answers = [self._alone(self.ring.first, action) for action in actions]
            self._serial[names] = Result(self._afterwards(actions), _told(answers, actions))
        return self._serial[names]

    def forget(self) -> None:
        """Forget how pairs end one after the other."""
        self._serial = {names: result for names, result in self._serial.items() if len(names) < 2}

    def _alone(self, actor: Actor, action: Action, how: How | None = None) -> object:
        answer = self.ring.start(actor, self.act(action), how or How())
        self.ring.finish()
        return answer.result()

    def _afterwards(self, actions: Sequence[Action]) -> Shape:
        self._settle()
        for action in actions:
            if action.passes:
                self._alone(self.ring.first, action)
                self._settle()
        return shapes.read(self.ring.watcher)

    def _settle(self) -> None:
        if shapes.left_over(self.ring.watcher):
            settle(self.ring.watcher)

    def cuts(self, action: Action) -> list[str]:
        """The cuts that a statement passes when it runs alone, at most two of each place."""
        if action.name not in self._cuts:
            self.restore()
            self._alone(self.ring.first, action, How(RECORD))
            self._cuts[action.name] = self.ring.first.passed
        return self._cuts[action.name]

    def stops(self, action: Action, serializable: bool) -> Iterator[Stop]:
        seen: Counter[str] = Counter()
        for number, place in enumerate(self.cuts(action), 1):
            seen[place] += 1
            if seen[place] <= 2 and number > 1:  # Before its first statement nothing has happened.
                yield number
        if serializable:
            yield BEGUN
        yield OPEN

    def gates(self, action: Action) -> list[str]:
        """The rows for which a statement waits if another transaction has locked them."""
        if action.name not in self._gates:
            self._gates[action.name] = [gate for gate in self._rows() if self._stops_at(gate, action)]
        return self._gates[action.name]

    def _rows(self) -> list[str]:
        self.restore()
        found = []
        for table, column in GATES:
            rows = self.ring.watcher.execute(f"select distinct {column}::text from outlive.{table}".encode())
            found += [f"select from outlive.{table} where {column} = '{key}' for update" for (key,) in rows]
        return found

    def _stops_at(self, gate: str, action: Action) -> bool:
        self.restore()
        ring = self.ring
        with ring.keeper.transaction(force_rollback=True):
            ring.keeper.execute(gate.encode())
            ring.start(ring.first, self.act(action), How())
            waits = ring.first.place is Place.ACTING
        ring.finish()
        return waits

    # With cuts

    def acts(self, action: Action) -> bool:
        """Whether a statement does something in this scene."""
        return action.acts_unseen(self.scene.name) or self.serial(action).shape != self.serial().shape

    def matters(self, first: Action, second: Action) -> bool:
        """Whether the one that does nothing alone does something after the other, or undoes it."""
        alone = self.serial(first if self.acts(first) else second).shape
        return {self.serial(first, second).shape, self.serial(second, first).shape} != {alone}

    def play(self, actions: Sequence[Action], order: Order) -> Finding | None:
        self.restore()
        words: list[str] = []
        answers: list[object] = []
        ring = self.ring
        try:
            answers = self._run(actions, order)
        except (LeftWaiting, psycopg.Error) as error:
            words.append(f"{type(error).__name__}: {db.summary(error)}")
        self.repeats.update(code for actor in ring.actors for code in actor.repeats)
        self._settle()
        judged = shapes.judge(ring.watcher)
        words += judged.broken
        words += self._illegal(judged.states, actions)
        if not words and not any(one.many for one in actions) and not _tolerated(actions):
            done, answers = (actions[1:], answers[1:]) if order.rolls_back else (actions, answers)
            found = Result(self._afterwards(done), _told(answers, done))
            expected = [self.serial(*some) for some in itertools.permutations(done)]
            if found not in expected:
                shape = shapes.difference(found.shape, [one.shape for one in expected])
                words += ["differs from all serial orders", *shape]
                words += [] if shape else [f"answers {found.answers}, not {[one.answers for one in expected]}"]
        names = " / ".join(action.name for action in actions)
        return Finding(f"{self.scene.name}: {names}", order, words) if words else None

    def _run(self, actions: Sequence[Action], order: Order) -> list[object]:
        ring = self.ring
        hows = [How(order.first, order.serializable[0], order.rolls_back), How(order.second, order.serializable[1])]
        futures: list[Future[object]] = []
        if order.gate:
            ring.keeper.execute("begin")
            ring.keeper.execute(order.gate.encode())
        try:
            for actor, action, how in zip(ring.actors, actions, [*hows, How()], strict=False):
                futures.append(ring.start(actor, self.act(action), how))
            for actor in (ring.second, ring.first) if order.second_first else (ring.first, ring.second):
                if order.gate and actor is ring.first:
                    ring.keeper.execute("rollback")
                ring.let_go(actor)
                ring.await_(actor)
        finally:
            if order.gate:
                ring.keeper.execute("rollback")
            ring.finish()
        return [future.result() for future in futures]

    def _illegal(self, after: dict[str, states.State], actions: Sequence[Action]) -> list[str]:
        events = {event for action in actions for event in action.events}
        found = []
        for job in self._before.keys() | after.keys():
            before = self._before.get(job)
            if after.get(job) not in rules.reachable(before, events):
                found.append(f"{job} went from {before} to {after.get(job)}, which is not legal")
        return found


def _tolerated(actions: Sequence[Action]) -> bool:
    named = [(action.statement, action.name) for action in actions]
    pairs = (pair for one, two in itertools.combinations(named, 2) for pair in itertools.product(one, two))
    return any(frozenset(pair) in TOLERATED for pair in pairs)


def _told(answers: Sequence[object], actions: Sequence[Action]) -> list[tuple[str, str]]:
    """What callers were told. A statement that passes by what is locked may have told less."""
    told = zip(answers, actions, strict=True)
    return sorted((action.name, shapes.named(str(answer))) for answer, action in told if not action.passes)
