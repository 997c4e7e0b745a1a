"""The command: its options, the run with a progress bar, and the results."""

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
from outlive.lab.bench import backlogs, claims, enqueueing, reads, report, sizes, workloads
from outlive.lab.bench.databases import databases
from outlive.lab.bench.figures import Figure
from outlive.lab.bench.processes import ProbeFailed, Processes
from outlive.lab.bench.run import Benchmark, Run
from outlive.lab.worker_process import stopped_by_sigterm

BENCHMARKS: list[Benchmark] = [
    *enqueueing.BENCHMARKS,
    claims.CLAIM,
    claims.VACUUM,
    *backlogs.BENCHMARKS,
    *reads.BENCHMARKS,
    claims.PRUNE,
    *workloads.BENCHMARKS,
]


def main(arguments: list[str]) -> int:
    """Exit code 0 if everything was measured, whether or not it reached its bound; 1 if something failed."""
    options = _parser().parse_args(arguments)
    out = Console(stderr=options.json == "-")
    if options.plot and find_spec("matplotlib") is None:
        out.print("--plot needs matplotlib, which is not installed: `pip install matplotlib`, or leave --plot out.")
        return 2
    chosen = [one for one in BENCHMARKS if not options.only or one.name in options.only]
    try:
        with stopped_by_sigterm():
            figures, summary = run(options, chosen, Console(stderr=True))
    except (OutliveError, ProbeFailed) as error:
        Console(stderr=True).print(f"bench: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    out.print(report.table(figures))
    if options.json:
        text = json.dumps(summary, indent=2) + "\n"
        sys.stdout.write(text) if options.json == "-" else Path(options.json).write_text(text, encoding="utf-8")
    if options.plot:
        from outlive.lab.bench.plot import draw

        draw(figures, summary, Path(options.plot))
    return 0


def run(
    options: argparse.Namespace, benchmarks: Sequence[Benchmark], console: Console
) -> tuple[list[Figure], dict[str, object]]:
    """Run the benchmarks one after the other."""
    chosen = sizes.QUICK if options.quick else sizes.FULL
    if options.seconds:
        chosen = dataclasses.replace(chosen, seconds=options.seconds)
    figures: list[Figure] = []
    began_s = monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress,
        databases(options.database_url) as made,
        Processes() as processes,
    ):
        task = progress.add_task("", total=sum(one.samples(chosen) for one in benchmarks))
        under_way = Run(made, processes, chosen, lambda: progress.advance(task))
        for benchmark in benchmarks:
            progress.update(task, description=benchmark.about)
            figures += benchmark.figures(under_way)
        return figures, report.as_json(under_way, figures, monotonic() - began_s)


def _parser() -> argparse.ArgumentParser:
    names = [one.name for one in BENCHMARKS]
    parser = argparse.ArgumentParser(
        prog="outlive bench",
        description="Measure the store and a worker on a temporary, durable server.",
        epilog="benchmarks: " + "; ".join(f"{one.name} ({one.about})" for one in BENCHMARKS),
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, default=[], help="only these benchmarks")
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
