"""The command: play every pair in shares, several at a time, keep what was played, and tell what was found."""

from __future__ import annotations

import functools
import hashlib
import itertools
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec
import psycopg.conninfo

from outlive import db, migrate, sql
from outlive.errors import ConfigError
from outlive.temporary.program import stopped_by_sigterm
from outlive.temporary.server import temporary_home, temporary_server
from outlive_lab.gameday.report import progress
from outlive_lab.pairs import cuts, shapes
from outlive_lab.pairs.actions import ACTIONS, Action
from outlive_lab.pairs.scenes import BUILT, PLAYED, SCENES, Scene
from outlive_lab.pairs.sessions import OPEN, Ring, connect
from outlive_lab.pairs.trials import Order, Stage

SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum_naptime": "5s"}
ROUNDS = {"once": "each pair once", "all": "all other orders", "both": "a stop in both", "triples": "triples"}
"""Each round is begun when the one before is over. The last two are for the long run."""
FOUND = (
    "queued: pause the queue / block J",
    "queued: pause the queue / replace J",
    "caught: release J / release K",
    "suspended: give up silent / claim J",
)
"""The pairs in which something was found. In the long run a third action joins them."""


class Options(msgspec.Struct, frozen=True):
    only: str = ""
    long: bool = False
    minutes: float = inf
    seed: int = 1
    processes: int = 2
    state: Path | None = None
    """Where the shares are kept that were played. A run that finds some there goes on after them."""


class Share(NamedTuple):
    """The pairs of an action in a scene with those that come after it in the list, either of them first."""

    round: str
    scene: str
    action: str


class Tally(msgspec.Struct):
    """What was played of a share."""

    share: Share
    pairs: int = 0
    orders: int = 0
    seconds: float = 0.0
    whole: bool = False
    repeats: Counter[str] = msgspec.field(default_factory=Counter)
    findings: list[str] = []


@contextmanager
def theatre() -> Iterator[str]:
    """The address of a scratch database, in which functions have cuts."""
    with temporary_home("pairs") as home, temporary_server(home, SETTINGS) as url:
        with db.connect(url) as connection:
            connection.execute("create database pairs")
        url = psycopg.conninfo.make_conninfo(url, dbname="pairs")
        with db.connect(url) as connection:
            migrate.migrate(connection)
            cuts.install(connection)
            shapes.install(connection)
        yield url


class Company:
    """The sessions of one process, in a database, and its scenes, each built when it is first played."""

    def __init__(self, url: str, options: Options) -> None:
        self.url, self.options = url, options
        self.ring = Ring(url, PLAYED.isoformat())
        self.stages: dict[str, Stage] = {}

    def stage(self, name: str) -> Stage:
        if name not in self.stages:
            made = {one.__name__: one for one in SCENES}
            with connect(self.url, BUILT.isoformat()) as connection, connect(self.url, BUILT.isoformat()) as other:
                shapes.clear(connection)
                scene = Scene(name, connection, other)
                made[name](scene)
                shapes.keep(connection, name)
            self.stages[name] = Stage(scene, self.ring)
        return self.stages[name]

    def play(self, share: Share, until: float = inf) -> Tally:
        """Play a share to its end, unless the time is over before."""
        tally, began = Tally(share), time.monotonic()
        if began > until:
            return tally
        stage = self.stage(share.scene)
        stage.repeats = tally.repeats
        for actions in self._played(stage, share):
            tally.pairs += 1
            for order in orders(stage, actions, share.round, self.options.seed):
                if time.monotonic() > until:
                    return tally
                if finding := stage.play(actions, order):
                    tally.findings.append(str(finding))
                tally.orders += 1
                tally.seconds = time.monotonic() - began
        stage.forget()
        tally.whole = True
        return tally

    def _played(self, stage: Stage, share: Share) -> Iterator[Sequence[Action]]:
        """The pairs of a share of which both do something, in the long run also one after the other; its triples."""
        thoroughly = share.round == "both"
        for first, second in pairs(share, self.options):
            one, two = (first, second) if first.name == share.action else (second, first)
            if share.round == "triples":
                yield from ((first, second, third) for third in ACTIONS if stage.acts(third))
            elif not thoroughly and not stage.acts(one):
                return
            else:
                acting = stage.acts(one), stage.acts(two)
                if all(acting) or (thoroughly and any(acting) and stage.matters(first, second)):
                    yield first, second


def orders(stage: Stage, actions: Sequence[Action], round: str, seed: int) -> list[Order]:
    first, second, *_ = actions
    every = list(one_stop(stage, first, second))
    random.Random(f"{seed} {first.name} / {second.name}").shuffle(every)
    if round == "both":
        return [*stops_in_both(stage, first, second), *([] if stage.acts(first) and stage.acts(second) else every)]
    return {"once": every[:1], "all": every[1:], "triples": every}[round]


def one_stop(stage: Stage, first: Action, second: Action) -> Iterator[Order]:
    """Every order of a pair in which one of them stops."""
    for stop in stage.stops(first, serializable=False):
        yield Order(stop)
    yield Order(OPEN, rolls_back=True)
    if first.of_client or second.of_client:
        levels = (first.of_client, second.of_client)
        for stop in stage.stops(first, serializable=first.of_client):
            if first.of_client or stop == OPEN:
                yield Order(stop, serializable=levels)


def stops_in_both(stage: Stage, first: Action, second: Action) -> Iterator[Order]:
    for gate in stage.gates(first):
        yield Order(None, gate=gate)
    both = itertools.product(stage.stops(first, False), stage.stops(second, False))
    for (one, two), later in itertools.product(both, (False, True)):
        yield Order(one, two, second_first=later)


def pairs(share: Share, options: Options) -> Iterator[tuple[Action, Action]]:
    """Each pair of a share in both orders, which end alike one after the other."""
    names = [action.name for action in ACTIONS]
    here = [action for action in ACTIONS if action.belongs_to(share.scene)]
    for one in (action for action in here if action.name == share.action):
        for other in here:
            if names.index(other.name) >= names.index(one.name):
                for first, second in dict.fromkeys([(one, other), (other, one)]):
                    name = f"{share.scene}: {first.name} / {second.name}"
                    if options.only in name and (share.round != "triples" or name in FOUND):
                        yield first, second


def shares(options: Options) -> list[Share]:
    found = []
    for round in list(ROUNDS)[: None if options.long else 2]:
        scenes = (one.__name__ for one in SCENES)
        some = itertools.starmap(Share, itertools.product([round], scenes, (action.name for action in ACTIONS)))
        played = [share for share in some if next(pairs(share, options), None)]
        random.Random(options.seed).shuffle(played)
        found += played
    return found


_company: Company


def _enter(url: str, options: Options) -> None:
    """Begin a process: it plays in a database of its own."""
    global _company
    name = f"pairs_{os.getpid()}"
    with db.connect(psycopg.conninfo.make_conninfo(url, dbname="postgres")) as connection:
        connection.execute(f"create database {name} template pairs".encode())
    _company = Company(psycopg.conninfo.make_conninfo(url, dbname=name), options)


def _play(share: Share, until: float) -> Tally:
    return _company.play(share, until)


def kept(options: Options) -> list[Tally]:
    """What earlier runs have played. The file begins with what must not change between them."""
    if options.state is None:
        return []
    digest = hashlib.sha256("".join([migrate.script(), *sql.texts().values()]).encode()).hexdigest()[:16]
    head = f"seed {options.seed}, statements {digest}, only {options.only!r}"
    if not options.state.exists():
        options.state.write_text(head + "\n", encoding="utf-8")
    first, *lines = options.state.read_text(encoding="utf-8").splitlines()
    if first != head:
        raise ConfigError(f"{options.state} is of a run with {first}, and this one has {head}: name another file")
    return [msgspec.json.decode(line, type=Tally, dec_hook=lambda type, value: type(value)) for line in lines]


def keep(options: Options, tally: Tally) -> None:
    if tally.whole and options.state:
        with options.state.open("ab") as file:
            file.write(msgspec.json.encode(tally) + b"\n")


def main(options: Options, report: Path | None = None) -> int:
    """0 if every pair is right, 1 if one is not."""
    tallies = kept(options)
    every = shares(options)
    left = [share for share in every if share not in {tally.share for tally in tallies}]
    until = time.monotonic() + options.minutes * 60
    spawn = multiprocessing.get_context("spawn")
    with (
        stopped_by_sigterm(),
        theatre() as url,
        progress() as shown,
        spawn.Pool(options.processes, _enter, (url, options)) as pool,
    ):
        for tally in pool.imap_unordered(functools.partial(_play, until=until), left):
            tallies.append(tally)
            for finding in tally.findings:
                shown.say(finding)
            keep(options, tally)
            shown.see(len(tallies) / len(every), lambda: line(tallies, every))
    print(line(tallies, every))
    if report is not None:
        report.write_text(page(options, tallies, every), encoding="utf-8")
    return int(any(tally.findings for tally in tallies))


def line(tallies: Sequence[Tally], every: Sequence[Share]) -> str:
    whole, wrong = sum(tally.whole for tally in tallies), sum(len(tally.findings) for tally in tallies)
    orders = sum(tally.orders for tally in tallies)
    return f"{whole:,} of {len(every):,} shares, {orders:,} orders, {f'{wrong} WRONG' if wrong else 'all right'}"


def page(options: Options, tallies: Sequence[Tally], every: Sequence[Share]) -> str:
    """The report."""
    scenes = sorted({share.scene for share in every})
    rounds = list(dict.fromkeys(share.round for share in every))
    whole = Counter(tally.share.round for tally in tallies if tally.whole)
    there = Counter(share.round for share in every)
    parts = ", ".join(f"{ROUNDS[round]}: {whole[round]:,} of {there[round]:,} shares" for round in rounds)
    findings = [finding for tally in tallies for finding in tally.findings]
    return "\n".join(
        [
            _HEAD.format(
                words=f"{' --long' * options.long} --seed {options.seed}",
                actions=len(ACTIONS),
                statements=len({one.statement for one in ACTIONS}),
                scenes=len(scenes),
                parts=parts,
            ),
            f"| scene | pairs | {' | '.join(ROUNDS[round] for round in rounds)} | deadlocks, repeated | wrong | time |",
            f"|---|{'---:|' * (len(rounds) + 4)}",
            *(_row(name, [one for one in tallies if one.share.scene == name], rounds) for name in scenes),
            _row("all", tallies, rounds),
            *(["", "## Wrong", "", "```", *findings, "```"] if findings else []),
            "",
        ]
    )


_HEAD = """# Every two statements at once

`./run pairs{words}`: {actions} actions by {statements} statements, in {scenes} scenes.

A pair is two actions of which each does something in the scene. An order says where the first one stops, at a
statement inside or before its commit, while the second one runs, and at which level of isolation. First each pair is
played in one order, which the seed chooses, then in all others. A long run also stops both, locks rows in the way of
the first, and lets a third action join where a pair once was wrong. A share is the pairs of one action in a scene.

Played to the end: {parts}. The table counts what was played, and nothing else.
"""


def _row(name: str, tallies: Sequence[Tally], rounds: Sequence[str]) -> str:
    played = [sum(one.orders for one in tallies if one.share.round == round) for round in rounds]
    pairs = sum(one.pairs for one in tallies if one.share.round == rounds[0])
    deadlocks, wrong = (sum(one.repeats["40P01"] for one in tallies), sum(len(one.findings) for one in tallies))
    cells = [name, *(f"{count:,}" for count in (pairs, *played, deadlocks, wrong))]
    return f"| {' | '.join(cells)} | {sum(one.seconds for one in tallies):.0f} s |"
