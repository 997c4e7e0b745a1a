"""The command: build the scenes on a temporary server, play every pair, and tell what was found."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TypeVar

from outlive import db, migrate
from outlive.temporary.program import stopped_by_sigterm
from outlive.temporary.server import temporary_home, temporary_server
from outlive_lab.gameday.report import progress
from outlive_lab.pairs import cuts, shapes
from outlive_lab.pairs.actions import ACTIONS, Action
from outlive_lab.pairs.scenes import BUILT, PLAYED, SCENES, Scene
from outlive_lab.pairs.sessions import OPEN, Ring, connect
from outlive_lab.pairs.trials import Finding, Order, Stage

SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum_naptime": "5s"}


SHOWN = 20
T = TypeVar("T")
REPEATED = {"40P01": "deadlocks", "40001": "conflicts", "55P03": "locks not had in time"}


@dataclass(frozen=True, slots=True)
class Options:
    only: str = ""
    long: bool = False
    minutes: float = 20.0
    """How long a run lasts that is not long."""

    @property
    def scene_s(self) -> float:
        """How long each scene is played."""
        return inf if self.long else self.minutes * 60 / len(SCENES)


@dataclass(slots=True)
class Tally:
    """What was played in a scene."""

    scene: str
    actions: int = 0
    pairs: int = 0
    played: int = 0
    trials: int = 0
    seconds: float = 0.0
    repeats: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


@contextmanager
def theatre() -> Iterator[str]:
    """The address of a scratch database with every scene."""
    with temporary_home("pairs") as home, temporary_server(home, SETTINGS) as url:
        with db.connect(url) as connection:
            migrate.migrate(connection)
            cuts.install(connection)
            shapes.install(connection)
        yield url


def build(url: str, name: str) -> Scene:
    """Build a scene and keep it."""
    made = {one.__name__: one for one in SCENES}
    with connect(url, BUILT.isoformat()) as connection, connect(url, BUILT.isoformat()) as other:
        shapes.clear(connection)
        scene = Scene(name, connection, other)
        made[name](scene)
        shapes.keep(connection, name)
    return scene


def orders(stage: Stage, first: Action, second: Action, options: Options) -> Iterator[Order]:
    """Every order of a pair: with one stop, and in the long run with a stop in each."""
    for stop in stage.stops(first, serializable=False):
        yield Order(stop)
    yield Order(OPEN, rolls_back=True)
    if first.of_client or second.of_client:
        levels = (first.of_client, second.of_client)
        for stop in stage.stops(first, serializable=first.of_client):
            if first.of_client or stop == OPEN:
                yield Order(stop, serializable=levels)
    if options.long:
        for gate in stage.gates(first):
            yield Order(None, gate=gate)
        both = itertools.product(stage.stops(first, False), stage.stops(second, False))
        for (one, two), later in itertools.product(both, (False, True)):
            yield Order(one, two, second_first=later)


def play(url: str, name: str, options: Options, see: Callable[[float], None] = lambda _: None) -> Tally:
    """Play pairs in a scene: all, or as many as there is time for, each pair once before any is played twice."""
    scene = build(url, name)
    ring = Ring.at(url, PLAYED.isoformat())
    tally, began = Tally(name), time.monotonic()
    try:
        stage = Stage(scene, ring)
        left = {}
        for first, second in _pairs(name, options):
            if stage.matters(first, second, thoroughly=options.long):
                left[first, second] = iter(
                    _shuffled(orders(stage, first, second, options), f"{first.name}{second.name}")
                )
        tally.pairs = len(left)
        while left:
            for pair, some in list(left.items()):
                over = (time.monotonic() - began) / options.scene_s
                see(over)
                if over > 1:
                    left.clear()
                    break
                if (order := next(some, None)) is None:
                    del left[pair]
                elif finding := stage.play(*pair, order):
                    tally.findings.append(finding)
                tally.played += order is not None
        tally.trials, tally.repeats = stage.trials, stage.repeats
    finally:
        ring.close()
    tally.seconds = time.monotonic() - began
    return tally


def _shuffled(found: Iterable[T], seed: str) -> list[T]:
    some = list(found)
    random.Random(seed).shuffle(some)
    return some


def _pairs(scene: str, options: Options) -> list[tuple[Action, Action]]:
    every = itertools.product(ACTIONS, repeat=2)
    found = [(one, two) for one, two in every if options.only in f"{scene}: {one.name} / {two.name}"]
    return _shuffled(found, scene)


def main(options: Options, report: Path | None = None) -> int:
    """0 if every pair is right, 1 if one is not."""
    names = [one.__name__ for one in SCENES]
    tallies: list[Tally] = []
    with stopped_by_sigterm(), theatre() as url, progress() as shown:
        for number, name in enumerate(names):
            tallies.append(
                play(url, name, options, lambda part: shown.see((number + part) / len(names), lambda: name))  # noqa: B023
            )
            shown.say(line(tallies[-1]))
            for finding in tallies[-1].findings[:SHOWN]:
                shown.say("\n    ".join((f"  {finding.first} / {finding.second}: {finding.order}", *finding.words)))
    if report is not None:
        report.write_text(page(options, tallies), encoding="utf-8")
    return int(any(tally.findings for tally in tallies))


def line(tally: Tally) -> str:
    found = f"{len(tally.findings)} WRONG" if tally.findings else "all right"
    return f"{tally.scene}: {tally.pairs:,} pairs, {tally.played:,} orders, {found} ({tally.seconds:.0f} s)"


def page(options: Options, tallies: Sequence[Tally]) -> str:
    """The report."""
    words = " --long" if options.long else f" --minutes {options.minutes:g}"
    rows = [
        f"| {one.scene} | {one.pairs:,} | {one.played:,} | {one.repeats['40P01']:,} | {len(one.findings):,} "
        f"| {one.seconds:.0f} s |"
        for one in tallies
    ]
    dead = sum(one.repeats["40P01"] for one in tallies)
    wrong = sum(len(one.findings) for one in tallies)
    return "\n".join(
        [
            "# Every two statements at once",
            "",
            f"`./run pairs{words}`: {len(ACTIONS)} actions by {len({one.statement for one in ACTIONS})} statements, in "
            f"{len(tallies)} scenes, on a machine that had other work.",
            "",
            "A pair is two actions of which each does something in the scene. An order says where the first one stops, "
            "at a statement inside or before its commit, while the second one runs, and at which level of isolation. A "
            "run that is not long plays as many orders as it has time for, chosen at random: where fewer orders were "
            "played than there are pairs, most pairs were not played.",
            "",
            "| scene | pairs there are | orders played | deadlocks, repeated | wrong | time |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            f"| all | {sum(one.pairs for one in tallies):,} | {sum(one.played for one in tallies):,} | {dead:,} "
            f"| {wrong:,} | {sum(one.seconds for one in tallies):.0f} s |",
            "",
        ]
    )
