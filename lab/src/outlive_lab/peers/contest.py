"""Runs all systems in turn, several rounds of them, and gathers the samples. A system that fails gives a reason."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outlive.errors import OutliveError
from outlive.temporary.server import temporary_home
from outlive_lab.bench.databases import described, server
from outlive_lab.peers import environments
from outlive_lab.peers.environments import Missing, redis_server
from outlive_lab.peers.plan import OURS, System, systems
from outlive_lab.peers.session import Amounts, Place, measure

ROUNDS = 3
FULL = Amounts(part=1.0, seconds=2.0, pickups=100)
QUICK = Amounts(part=0.1, seconds=0.3, pickups=10)


@dataclass(slots=True)
class Outcome:
    """The samples of all sessions, and why some gave none."""

    systems: Sequence[System]
    samples: dict[str, list[float]] = field(default_factory=dict)
    """By system, mode and what was measured, as in `pgqueuer tuned drain`."""
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    installed: dict[str, list[str]] = field(default_factory=dict)
    circumstances: dict[str, object] = field(default_factory=dict)

    def of(self, what: str) -> list[float]:
        return self.samples.get(what, [])


def hold(*, quick: bool, url: str | None, only: Sequence[str] = ()) -> Outcome:
    """Each round begins with outlive, and after the last round outlive runs once more."""
    chosen = [system for system in systems() if not only or system.name in only or system.name == OURS]
    outcome = Outcome(chosen)
    rounds = 1 if quick else ROUNDS
    order = [(system, mode) for _ in range(rounds) for system in chosen for mode in system.modes]
    order += [(chosen[0], mode) for mode in chosen[0].modes]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began_s = monotonic()
    with ExitStack() as stack:
        progress = stack.enter_context(
            Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2)
        )
        task = progress.add_task("installing the peers", total=len(order))
        _install(outcome)
        admin, postgres = stack.enter_context(server(url))
        redis = stack.enter_context(redis_server(stack.enter_context(temporary_home("redis"))))
        place = Place(admin, postgres, redis)
        for system, mode in order:
            progress.update(task, description=f"{system.title}, {mode}")
            if (system.name, mode) not in outcome.reasons:
                session(outcome, system, mode, place, QUICK if quick else FULL)
            progress.advance(task)
        outcome.circumstances = {
            "rounds": rounds,
            "took_s": round(monotonic() - began_s, 1),
            "redis": _redis_version(),
            **described(admin),
        }
    return outcome


def _install(outcome: Outcome) -> None:
    for system in outcome.systems:
        if system.install:
            try:
                outcome.installed[system.name] = environments.installed(system)
            except Missing as missing:
                outcome.reasons |= {(system.name, mode): str(missing) for mode in system.modes}


def session(outcome: Outcome, system: System, mode: str, place: Place, amounts: Amounts) -> None:
    try:
        figures = measure(system, system.modes[mode], place, amounts)
    except (OutliveError, OSError, subprocess.SubprocessError) as error:
        outcome.reasons[system.name, mode] = " ".join(str(error).split())[-300:]
        return
    for name, value in figures.items():
        outcome.samples.setdefault(f"{system.name} {mode} {name}", []).append(value)


def _redis_version() -> str | None:
    if (program := shutil.which("redis-server")) is None:
        return None
    words = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()
    return next((word.removeprefix("v=") for word in words if word.startswith("v=")), None)
