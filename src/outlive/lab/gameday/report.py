"""What people see of a game: how far it is, the verdict, and a report to keep."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from outlive.cli import screen
from outlive.lab.gameday.game import Audience, Standing
from outlive.lab.gameday.options import BUSY
from outlive.lab.gameday.verdict import Verdict

LINE_S = 10.0
SHOWN = 5
"""How many of those who break a rule are shown; JSON has more."""


class Reader:
    """Reads line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = time.monotonic()

    def say(self, words: str) -> None:
        self._console.print(words, soft_wrap=True)

    def see(self, standing: Standing) -> None:
        if time.monotonic() - self._told >= LINE_S:
            self._told = time.monotonic()
            self.say(_words(standing))


class Watcher:
    """Watches a bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=1.0)
        self._told = 0.0

    def say(self, words: str) -> None:
        self._progress.console.print(words)

    def see(self, standing: Standing) -> None:
        if time.monotonic() - self._told >= 0.1:
            self._told = time.monotonic()
            self._progress.update(self._task, completed=standing.part, description=_words(standing))


def _words(standing: Standing) -> str:
    return f"{standing.kills:,} kills, {standing.finished:,} jobs finished, {standing.up} workers up"


@contextmanager
def audience() -> Iterator[Audience]:
    """On standard error: standard output is for the verdict."""
    console = Console(stderr=True, highlight=False)
    if not sys.stderr.isatty():
        yield Reader(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        yield Watcher(progress)


def show(verdict: Verdict) -> None:
    out = screen.console()
    made = _table("faults", "times")
    for name, count in verdict.faults().items():
        made.add_row(name, f"{count:,}")
    out.print(made)
    made = _table("jobs", "")
    for name, count in verdict.counts().items():
        made.add_row(name, f"{count:,}")
    out.print(made)
    made = _table("how long it took", "times", "p50", "p99", "max", "must", "")
    for one in verdict.times:
        mark = {True: Text("held", "green"), False: Text("missed", "bold red"), None: Text("")}[one.held]
        figures = [_duration(one.percentile(part)) for part in (0.5, 0.99, 1.0)]
        made.add_row(one.name, f"{len(one.samples_s):,}", *figures, one.words, mark)
    out.print(made)
    for rule, count in Counter(breach.rule for breach in verdict.breaches).items():
        out.print(Text(f"{rule}: {count:,}", style="bold red"))
        for breach in verdict.broken(rule)[:SHOWN]:
            out.print(Text(f"  {screen.plain(breach.subject)}  {screen.plain(breach.words)}"), soft_wrap=True)
    out.print(Text(closing(verdict), style="bold green" if verdict.right else "bold red"), soft_wrap=True)


def closing(verdict: Verdict) -> str:
    """The last line: what holds, and the bound that it proves."""
    history = verdict.history
    if history.stopped:
        head = "stopped, and right so far" if verdict.right else "stopped, and wrong"
    else:
        drained = f"everything was finished {history.drain_s:.1f} s after the last fault"
        head = f"right: {drained}" if verdict.right else "wrong"
    return f"{head}; {verdict.bound} (seed {verdict.asked.seed}, {verdict.seconds:.0f} s)"


def _duration(value: float | None) -> str:
    return "" if value is None else f"{value * 1000:,.0f} ms"


def _table(first: str, *others: str) -> Table:
    made = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.add_column(first, no_wrap=True)
    for name in others:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def write(verdict: Verdict, told: Mapping[str, Any], directory: Path) -> Path:
    """gameday-SEED.md, .json and, where matplotlib is, .png."""
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / f"gameday-{verdict.asked.seed}.md"
    text = msgspec.json.format(msgspec.json.encode(told), indent=0 if len(told["marks"]) > 500 else 1)
    page.with_suffix(".json").write_bytes(text + b"\n")
    picture = None
    if can_draw():
        from outlive.lab.gameday.plot import draw

        picture = page.with_suffix(".png")
        draw(told, picture)
    page.write_text(_markdown(verdict, told, picture), encoding="utf-8")
    return page


def _markdown(verdict: Verdict, told: Mapping[str, Any], picture: Path | None) -> str:
    asked, versions = verdict.asked, told["versions"]
    busy = " --busy" if asked.bounds == BUSY else ""
    length = f"--minutes {asked.minutes:g}" if asked.minutes is not None else f"--kills {asked.kills}"
    lines = [
        f"# Gameday, seed {asked.seed}",
        "",
        f"`outlive gameday {length} --rate {asked.rate:g} --workers {asked.workers} --slots {asked.slots} "
        f"--seed {asked.seed}{busy}` on {told['cpu_count']} cores: outlive {versions['outlive']}, PostgreSQL "
        f"{versions['postgres']}, Python {versions['python']}, psycopg {versions['psycopg']}; {verdict.seconds:.0f} s.",
        "",
        f"**{closing(verdict)[0].upper()}{closing(verdict)[1:]}.**",
        "",
        "The seed gives the order of the faults and of the jobs; which of them meet is the machine's doing. Counted as "
        "kills are SIGKILLs of processes of a worker; the other faults came in between.",
        "",
    ]
    if picture is not None:
        lines += [f"![throughput, faults and times]({picture.name})", ""]
    lines += ["| fault | times |", "|---|---:|"]
    lines += [f"| {name} | {count:,} |" for name, count in verdict.faults().items()]
    lines += ["", "| jobs | |", "|---|---:|"]
    lines += [f"| {name} | {count:,} |" for name, count in verdict.counts().items()]
    lines += ["", *_bounds(verdict)]
    lines += ["", "| how long it took | times | p50 | p99 | max | must | |", "|---|---:|---:|---:|---:|---|---|"]
    for one in verdict.times:
        figures = " | ".join(_duration(one.percentile(part)) for part in (0.5, 0.99, 1.0))
        mark = {True: "held", False: "**missed**", None: ""}[one.held]
        lines.append(f"| {one.name} | {len(one.samples_s):,} | {figures} | {one.words} | {mark} |")
    if verdict.breaches:
        lines += ["", "| broken | by | how |", "|---|---|---|"]
        lines += [f"| {one.rule} | {one.subject} | {one.words} |" for one in verdict.breaches[:100]]
    return "\n".join(lines) + "\n"


def _bounds(verdict: Verdict) -> list[str]:
    """What every death must keep, and the worst of them."""
    most, worst = verdict.asked.bounds, verdict.worst_death
    seen = f"; the slowest took {worst.percentile(1.0):.1f} s ({worst.name})" if worst else ""
    return [
        f"**Every single death must be in the database within {most.any_death_s:g} s{seen}.** That is from the kill to "
        "the commit that frees or ends the last attempt of the process, also while Postgres is away or read-only, no "
        "other worker lives, the supervisor is frozen or a stranger has locked the job; such deaths have rows of "
        f"their own. None may be missing for {most.on_end_s:g} s while the database is there without a break.",
        f"Of all others p99 must be at most {most.worker_death_s:g} s for a worker, {most.zygote_death_s:g} s for a "
        f"zygote and {most.child_death_s:g} s for a child. No process may survive its supervisor by more than "
        f"{most.orphans_s:g} s, and everything must be finished {most.drain_s:g} s after the last fault.",
    ]
