"""The commands bench, gameday, deaths and pairs. Each imports its code when it runs."""

import secrets
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from outlive.cli.command import CommandContext, Json, command, reported
from outlive.errors import ConfigError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


def main() -> None:
    app(prog_name="./run")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure the speed of the store and a worker on this machine (./run bench --help).

    Example: ./run bench --quick
    """
    from outlive_lab.bench.command import main

    with reported(debug=False):
        raise typer.Exit(main(context.args))


@command(app)
def gameday(
    context: CommandContext,
    kills: Annotated[int | None, typer.Option(help="Stop after this many SIGKILLs. Default: 200.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time instead.")] = None,
    rate: Annotated[float, typer.Option(help="Faults per second.")] = 2.5,
    workers: Annotated[int, typer.Option(help="How many workers run.")] = 3,
    slots: Annotated[int, typer.Option(help="How many jobs each worker runs at once.")] = 4,
    seed: Annotated[int | None, typer.Option(help="Repeat the faults of this seed. Default: a random seed.")] = None,
    json: Json = False,
    report: Annotated[
        Path | None, typer.Option(help="Write gameday-SEED.md, .json and .png to this directory.")
    ] = None,
    ha: Annotated[bool, typer.Option("--ha", help="Play on three nodes under Patroni, and kill primaries.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Play even in a database that has other jobs.")] = False,
    busy: Annotated[bool, typer.Option("--busy", help="Allow more time: this machine has other work.")] = False,
) -> None:
    """Kill workers, jobs and sessions for a while, and check that no job is lost or done twice.

    Without a database it starts a temporary Postgres, and restarts it during the game.

    Example: ./run gameday --kills 50 --seed 7
    """
    from outlive_lab.gameday.command import main
    from outlive_lab.gameday.options import BUSY, Bounds, Options, check

    if kills is not None and minutes is not None:
        raise ConfigError("--kills and --minutes are both given: give only one of them")
    if ha and kills is None and minutes is None:
        minutes = 10.0
    options = Options(
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        kills=200 if kills is None else kills,
        minutes=minutes,
        rate=rate,
        workers=workers,
        slots=slots,
        json=json,
        report=report,
        ha=ha,
        force=force,
        bounds=BUSY if busy else Bounds(),
    )
    check(options)
    raise typer.Exit(main(context.config, options))


@command(app)
def deaths(
    context: CommandContext,
    deaths: Annotated[int, typer.Option(min=1, help="Stop after this many deaths of workers.")] = 10_000,
    seed: Annotated[int | None, typer.Option(help="Repeat the lives of this seed. Default: a random seed.")] = None,
    json: Json = False,
    report: Annotated[Path | None, typer.Option(help="Write deaths-SEED.md, .json and .png to this directory.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the report of this seed there.")] = False,
) -> None:
    """Let many virtual workers die, and check that no job is lost, ended twice or wrongly blamed.

    A virtual worker is a session that runs the statements of a worker, without processes. Without a database it starts
    a temporary Postgres, which crashes in every other round.

    Example: ./run deaths --deaths 5000 --seed 7
    """
    from outlive_lab.deaths.command import Options, main

    if resume and (report is None or seed is None):
        raise ConfigError("--resume needs --report and --seed: they name the run that goes on")
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    options = Options(seed=seed, deaths=deaths, report=report, resume=resume, json=json)
    raise typer.Exit(main(context.config, options))


@app.command()
def pairs(
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only pairs that have this text in their name.")] = "",
    minutes: Annotated[float, typer.Option(min=0, help="How long it lasts at most.")] = inf,
    long: Annotated[bool, typer.Option("--long", help="Also with a stop in both, and triples: many hours.")] = False,
    seed: Annotated[int, typer.Option(help="What is played first.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="How many pairs are played at the same time.")] = 2,
    state: Annotated[Path | None, typer.Option(help="Keep here what was played; the next run goes on.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the figures to this page.")] = None,
) -> None:
    """Run every two statements that change a job at the same time, in all orders, and compare what they leave behind.

    Example: ./run pairs --only "cancel J / succeed J"
    """
    from outlive_lab.pairs.command import Options, main

    with reported(debug=False):
        raise typer.Exit(main(Options(only, long, minutes, seed, processes, state), report))
