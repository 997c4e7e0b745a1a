"""The output of a game: its progress, the verdict, and a report."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import rich.progress
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlive.cli import screen
from outlive.humanize import plain
from outlive_lab.gameday.options import BUSY
from outlive_lab.gameday.verdict import Verdict

LINE_S = 10.0
BAR_S = 0.1
STYLES = {"held": "green", "missed": "bold red"}
SHOWN = 5
"""How many breaches of a rule are shown; JSON has more."""


class Progress:
    """Shows on standard error how far the game is: as a bar on a terminal, elsewhere as a line from time to time."""

    def __init__(self, bar: rich.progress.Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=1.0)
        self._shown_at = time.monotonic()

    def say(self, words: str) -> None:
        self._bar.console.print(words, soft_wrap=True)

    def see(self, part: float, standing: Callable[[], str]) -> None:
        if time.monotonic() - self._shown_at < (LINE_S if self._bar.disable else BAR_S):
            return
        self._shown_at = time.monotonic()
        if self._bar.disable:
            self.say(standing())
        else:
            self._bar.update(self._task, completed=part, description=standing())


@contextmanager
def progress() -> Iterator[Progress]:
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
        refresh_per_second=4,
        disable=not sys.stderr.isatty(),
    ) as bar:
        yield Progress(bar)


def show(verdict: Verdict) -> None:
    out = screen.console()
    for title, head, rows in _tables(verdict):
        made = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        made.add_column(title, no_wrap=True)
        for name in head:
            made.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            made.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
        out.print(made)
    for rule, count in Counter(breach.rule for breach in verdict.breaches).items():
        out.print(Text(f"{rule}: {count:,}", style="bold red"))
        for breach in verdict.broken(rule)[:SHOWN]:
            out.print(Text(f"  {plain(breach.subject)}  {plain(breach.words)}"), soft_wrap=True)
    out.print(Text(closing(verdict), style="bold green" if verdict.right else "bold red"), soft_wrap=True)


def _tables(verdict: Verdict) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """The title of the first column, the other titles, and the rows."""
    yield "faults", ["times"], [(name, f"{count:,}") for name, count in verdict.faults().items()]
    yield "jobs", [""], [(name, f"{count:,}") for name, count in verdict.counts().items()]
    yield (
        "how long it took",
        ["times", "p50", "p99", "max", "must", ""],
        [
            (
                one.name,
                f"{len(one.samples_s):,}",
                *(_duration(one.percentile(part)) for part in (0.5, 0.99, 1.0)),
                one.words,
                {True: "held", False: "missed", None: ""}[one.held],
            )
            for one in verdict.times
        ],
    )


def closing(verdict: Verdict) -> str:
    """The last line: whether the game is right, and the bound that it proves."""
    history = verdict.history
    if history.stopped:
        head = "stopped, and right so far" if verdict.right else "stopped, and wrong"
    else:
        drained = f"everything was finished {history.drain_s:.1f} s after the last fault"
        head = f"right: {drained}" if verdict.right else "wrong"
    taken = f"; all times are without the {lost:.0%} that the host took" if (lost := verdict.stolen) >= 0.01 else ""
    return f"{head}; {verdict.bound} (seed {verdict.options.seed}, {verdict.seconds:.0f} s{taken})"


def _duration(value: float | None) -> str:
    return "" if value is None else f"{value * 1000:,.0f} ms"


def write(verdict: Verdict, summary: Mapping[str, Any], directory: Path) -> Path:
    """Write gameday-SEED.md, .json and .png. Returns the path of the page."""
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / f"gameday-{'ha' if verdict.options.ha else verdict.options.seed}.md"
    text = msgspec.json.format(msgspec.json.encode(summary), indent=0 if len(summary["marks"]) > 500 else 1)
    page.with_suffix(".json").write_bytes(text + b"\n")
    from outlive_lab.gameday.plot import draw  # Not at the top: most games draw no picture.

    picture = page.with_suffix(".png")
    draw(summary, picture)
    page.write_text(_markdown(verdict, summary, picture), encoding="utf-8")
    return page


def _markdown(verdict: Verdict, summary: Mapping[str, Any], picture: Path) -> str:
    options, versions = verdict.options, summary["versions"]
    busy = (" --ha" if options.ha else "") + (" --busy" if options.bounds == BUSY else "")
    length = f"--minutes {options.minutes:g}" if options.minutes is not None else f"--kills {options.kills}"
    lines = [
        "# Gameday of a highly available Postgres" if options.ha else f"# Gameday, seed {options.seed}",
        "",
        f"`./run gameday {length} --rate {options.rate:g} --workers {options.workers} --slots {options.slots} "
        f"--seed {options.seed}{busy}` on {summary['cpu_count']} cores: outlive {versions['outlive']}, PostgreSQL "
        f"{versions['postgres']}, Python {versions['python']}, psycopg {versions['psycopg']}; {verdict.seconds:.0f} s.",
        "",
        f"**{closing(verdict)[0].upper()}{closing(verdict)[1:]}.**",
        "",
        "The seed determines the order of the faults and of the jobs; which fault hits which job depends on the "
        "machine. SIGKILLs of processes of a worker count as kills; the other faults happen in between.",
        "",
        f"![throughput, faults and times]({picture.name})",
        "",
    ]
    faults, jobs, times = (_markdown_table(*table) for table in _tables(verdict))
    lines += [*faults, "", *jobs, "", *_bounds(verdict), "", *times]
    if verdict.breaches:
        lines += ["", "| broken | by | how |", "|---|---|---|"]
        lines += [f"| {one.rule} | {one.subject} | {one.words} |" for one in verdict.breaches[:100]]
    return "\n".join(lines) + "\n"


def _markdown_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join([title, *head])} |", f"|---|{'---:|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |".replace(" missed |", " **missed** |") for row in rows]


def _bounds(verdict: Verdict) -> list[str]:
    """The limits of every death, and the slowest one."""
    most, worst = verdict.options.bounds, verdict.worst_death
    seen = f"; the slowest took {worst.percentile(1.0):.1f} s ({worst.name})" if worst else ""
    return [
        f"**Every single death must be in the database within {most.any_death_s:g} s{seen}.** This is the time from "
        "the kill to the commit that frees or ends the last attempt of the process. It holds even if Postgres is away "
        "or read-only, no other worker lives, the supervisor is frozen or a foreign transaction has locked the job. "
        f"The table lists such deaths apart. No death may be missing for {most.on_end_s:g} s while the database is "
        "there without a break.",
        f"For all other deaths, p99 must be at most {most.worker_death_s:g} s for a worker, {most.zygote_death_s:g} s "
        f"for a zygote and {most.child_death_s:g} s for a child. No process may survive its supervisor by more than "
        f"{most.orphans_s:g} s, and everything must be finished {most.drain_s:g} s after the last fault.",
    ]
