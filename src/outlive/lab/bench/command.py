"""The command: what is asked for, the run with its progress bar, and what comes out of it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outlive.errors import OutliveError
from outlive.lab.bench import (
    backlogs,
    claiming,
    enqueueing,
    killing,
    pruning,
    rates,
    reads,
    report,
    sizes,
    vacuum,
    waiting,
    weighing,
)
from outlive.lab.bench.crew import Crew, OrderFailed
from outlive.lab.bench.databases import databases
from outlive.lab.bench.figures import Figure
from outlive.lab.bench.run import Line, Run, named
from outlive.lab.demo.process import stopped_by_sigterm

LINES: list[Line] = [
    *enqueueing.LINES,
    *claiming.LINES,
    *vacuum.LINES,
    *backlogs.LINES,
    *reads.LINES,  # After the last crowd, whose million jobs it looks at.
    *pruning.LINES,
    *rates.LINES,
    *waiting.LINES,
    *weighing.LINES,
    *killing.LINES,
]


def main(arguments: list[str]) -> int:
    """Exit code 0 if everything was measured, whether or not it reached its bound; 1 if something failed."""
    asked = _parser().parse_args(arguments)
    out = Console(stderr=asked.json == "-")
    if asked.plot and not _can_plot():
        out.print("--plot needs matplotlib, which is not installed: `pip install matplotlib`, or leave --plot out.")
        return 2
    try:
        with stopped_by_sigterm():
            figures, summary = run(asked, named(LINES, asked.only), Console(stderr=True))
    except (OutliveError, OrderFailed) as error:
        Console(stderr=True).print(f"bench: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    out.print(report.table(figures))
    if asked.json:
        text = json.dumps(summary, indent=2) + "\n"
        sys.stdout.write(text) if asked.json == "-" else Path(asked.json).write_text(text, encoding="utf-8")
    if asked.plot:
        from outlive.lab.bench.plot import draw

        draw(figures, summary, Path(asked.plot))
    return 0


def run(asked: argparse.Namespace, lines: Sequence[Line], console: Console) -> tuple[list[Figure], dict[str, object]]:
    """Measure the lines one after the other."""
    chosen = sizes.QUICK if asked.quick else sizes.FULL
    if asked.seconds:
        chosen = dataclasses.replace(chosen, seconds=asked.seconds)
    figures: list[Figure] = []
    began_s = monotonic()
    with _progress(console) as progress, databases(asked.database_url) as made, Crew() as crew:
        task = progress.add_task("", total=sum(line.samples(chosen) for line in lines))
        under_way = Run(made, crew, chosen, lambda: progress.advance(task))
        for line in lines:
            progress.update(task, description=line.about)
            figures += line.figures(under_way)
        return figures, report.as_json(under_way, figures, monotonic() - began_s)


def _parser() -> argparse.ArgumentParser:
    names = [line.name for line in LINES]
    parser = argparse.ArgumentParser(
        prog="outlive bench",
        description="Measure the store and a worker on a durable server that is made for it and goes with it.",
        epilog="lines: " + "; ".join(f"{line.name} ({line.about})" for line in LINES),
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, default=[], help="only these lines")
    parser.add_argument("--quick", action="store_true", help="small sizes: about two minutes")
    parser.add_argument("--seconds", type=_positive, help="the length of one sample (2; with --quick 0.4)")
    parser.add_argument("--database-url", metavar="URL", help="measure on this server, in databases made for it")
    parser.add_argument("--json", metavar="FILE|-", help="write the figures as one object")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the figures (needs matplotlib)")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise ValueError
    return value


def _can_plot() -> bool:
    return find_spec("matplotlib") is not None


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=2,
    )
