"""The command: its options, the run with a progress bar, and the results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from outlive.errors import OutliveError
from outlive.temporary.program import stopped_by_sigterm
from outlive_lab.bench import (
    calls,
    claims,
    fleet,
    growth,
    growth_results,
    many,
    pages,
    report,
    run,
    share,
    steps,
    workloads,
)
from outlive_lab.bench.databases import databases, described
from outlive_lab.bench.figures import Figure, as_markdown, table
from outlive_lab.bench.history import history
from outlive_lab.bench.processes import Processes
from outlive_lab.peers import contest, plan, results

BENCHMARKS: dict[str, tuple[str, run.Benchmark]] = {
    "enqueue": ("one job at a time, beside a bare INSERT", calls.enqueue_one_by_one),
    "enqueue-many": ("many jobs in one call", calls.enqueue_in_bulk),
    "claim": ("end + claim by the size of a claim, on 1, 2 and 8 connections", claims.by_size),
    "vacuum": ("claims while vacuum is held back", claims.vacuum_held_back),
    **{
        name: (f"claims, {backlog.title}", partial(claims.beside_backlog, name=name))
        for name, backlog in claims.backlogs(run.FULL).items()
    },
    "status": ("status of one job among a million", calls.status),  # It reads the jobs of `pending`, the last backlog.
    "find-lanes": ("finding a thousand lanes that have jobs", calls.finding_lanes),
    "prune": ("pruning as fast as a drain finishes jobs", claims.beside_pruning),
    "warm": ("a worker's warm drain", workloads.warm),
    "sources": ("a worker's warm drain of sources", workloads.sources),
    "keys": ("a worker's warm drain of jobs with a key each", workloads.keys),
    "share": ("jobs that share a process, beside PgQueuer, Procrastinate and awa", share.share),
    "slots": ("jobs of a millisecond on 16 to 256 slots", workloads.slots),
    "many": ("many workers, lanes and slots beside few", many.many),
    "fresh": ("a worker's drain with a process per job", workloads.fresh),
    "pick-up": ("how long a job waits for an idle worker", workloads.pick_up),
    "memory": ("memory before and after many jobs", workloads.memory),
    "cli": ("two commands beside a million finished jobs", workloads.commands),
    "killers": ("healthy jobs beside those that kill", workloads.killers),
    "fleet": ("what idle workers cost, and how soon a death is noticed", fleet.fleet),
    "steps": ("steps of durable jobs, beside DBOS and Absurd", steps.steps),
    "dashboard": ("each page of the dashboard beside many jobs", pages.pages),
    "history": ("everything beside ten million finished jobs, and their pruning", history),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What one run found, in every form that it may be asked for."""

    title: str
    tables: Sequence[Table]
    summary: dict[str, object]
    sections: Sequence[str]
    draw: Callable[[Path], None] | None = None


def main(arguments: list[str]) -> int:
    """Exit code 0 if everything was measured, whether or not it reached its bound; 1 if something failed."""
    options = _options(arguments)
    out = Console(stderr=options.json == "-")
    kind = _peers if options.peers else _growth if options.growth else _benchmarks
    try:
        with stopped_by_sigterm():
            found = kind(options)
    except OutliveError as error:
        Console(stderr=True).print(f"bench: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    for one in found.tables:
        out.print(one)
    if options.json:
        text = json.dumps(found.summary, indent=2) + "\n"
        sys.stdout.write(text) if options.json == "-" else Path(options.json).write_text(text, encoding="utf-8")
    if options.report:
        lines = report.head(found.title, found.summary, arguments, plot=options.plot, json=options.json)
        Path(options.report).write_text("\n".join([*lines, *found.sections]) + "\n", encoding="utf-8")
    if options.plot and found.draw:
        found.draw(Path(options.plot))
    return 0


def _benchmarks(options: argparse.Namespace) -> Found:
    sizes = run.QUICK if options.quick else run.FULL
    if options.seconds:
        sizes = dataclasses.replace(sizes, seconds=options.seconds)
    names = [name for name in BENCHMARKS if not options.only or name in options.only]
    figures, summary = measure(names, sizes, options.database_url)

    def draw(path: Path) -> None:
        from outlive_lab.bench.plot import draw

        draw(figures, summary, path)

    return Found("How fast outlive is", [table(figures)], summary, as_markdown(figures), draw)


def _peers(options: argparse.Namespace) -> Found:
    outcome = contest.hold(quick=options.quick, url=options.database_url, only=options.only)
    tables = [results.table(outcome), table(results.figures(outcome))]
    return Found("outlive and its peers", tables, results.as_json(outcome), results.report(outcome))


def _growth(options: argparse.Namespace) -> Found:
    points, summary = grow(
        options.only or list(growth.GROWTHS), growth.QUICK if options.quick else growth.FULL, options
    )
    made = growth_results.figures(points)
    sections = [*growth_results.as_markdown(points), "", *as_markdown(made)]
    draw = partial(growth_results.draw, points, summary)
    return Found("How outlive grows", [growth_results.table(points), table(made)], summary, sections, draw)


def grow(
    names: Sequence[str], sizes: growth.Sizes, options: argparse.Namespace
) -> tuple[list[growth.Point], dict[str, object]]:
    points: list[growth.Point] = []
    began_s = monotonic()
    with _progress() as progress, databases(options.database_url) as (free, loaded), Processes() as processes:
        for name in progress.track(names):
            task = progress.task_ids[0]
            say = partial(_say, progress, task)
            points += growth.GROWTHS[name](run.Run(free, loaded, processes, run.FULL), sizes, say)
        return points, {
            "points": [dataclasses.asdict(point) for point in points],
            "figures": [figure.as_json() for figure in growth_results.figures(points)],
            "took_s": round(monotonic() - began_s, 1),
            "sizes": dataclasses.asdict(sizes),
            **described(free.connection),
        }


def _say(progress: Progress, task: TaskID, text: str) -> None:
    progress.update(task, description=text)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2)


def measure(names: Sequence[str], sizes: run.Sizes, url: str | None) -> tuple[list[Figure], dict[str, object]]:
    """Run the benchmarks one after the other. Returns the figures, and everything as one object."""
    figures: list[Figure] = []
    began_s = monotonic()
    with _progress() as progress, databases(url) as (free, loaded), Processes() as processes:
        for name in progress.track(names):
            about, benchmark = BENCHMARKS[name]
            progress.update(progress.task_ids[0], description=about)
            figures += benchmark(run.Run(free, loaded, processes, sizes))
        return figures, {
            "figures": [figure.as_json() for figure in figures],
            "missed": [figure.name for figure in figures if figure.passed is False],
            "took_s": round(monotonic() - began_s, 1),
            "sizes": dataclasses.asdict(sizes),
            **described(free.connection),
        }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description="Measure the store and a worker on a temporary, durable server.",
        epilog="benchmarks: " + "; ".join(f"{name} ({about})" for name, (about, _) in BENCHMARKS.items()),
    )
    parser.add_argument("--peers", action="store_true", help="measure other job systems beside outlive")
    parser.add_argument("--growth", action="store_true", help="measure curves: how rates change as things grow")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="only these benchmarks, peers or curves")
    parser.add_argument("--quick", action="store_true", help="small sizes: about two minutes")
    parser.add_argument("--seconds", type=_positive, help="the length of one sample (2; with --quick 0.4)")
    parser.add_argument("--database-url", metavar="URL", help="measure on this server, in databases made for it")
    parser.add_argument("--json", metavar="FILE|-", help="write the figures as one object")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the figures")
    parser.add_argument("--report", metavar="FILE.md", help="write the figures as a page")
    options = parser.parse_args(arguments)
    if options.peers and options.growth:
        parser.error("--peers and --growth are two runs: give only one of them")
    peers = [system.name for system in plan.systems()]
    names = peers if options.peers else list(growth.GROWTHS if options.growth else BENCHMARKS)
    if unknown := [name for name in options.only if name not in names]:
        parser.error(f"--only: there is no {' or '.join(unknown)}; choose from {', '.join(names)}")
    return options


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise ValueError
    return value
