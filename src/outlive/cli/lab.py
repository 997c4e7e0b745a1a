"""demo, bench and gameday: commands that show and measure outlive itself. Each imports its code when it runs."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from outlive.cli.command import CommandContext, Json, app, command, reported
from outlive.errors import ConfigError


@app.command()
def demo(
    json: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer coins: half a minute instead of one.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """See jobs survive for a minute, on a Postgres of its own that leaves nothing behind."""
    from outlive.demo import main

    with reported(debug=debug):
        raise typer.Exit(main(json=json, quick=quick))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure what the store can do on this machine (outlive bench --help)."""
    from outlive.bench import main

    with reported(debug=False):
        raise typer.Exit(main(context.args))


@command(app)
def gameday(
    context: CommandContext,
    kills: Annotated[int | None, typer.Option("--kills", help="End after so many SIGKILLs; else 200.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="End after so long instead.")] = None,
    rate: Annotated[float, typer.Option("--rate", help="Faults a second.")] = 2.5,
    workers: Annotated[int, typer.Option("--workers", help="How many workers are kept up.")] = 3,
    slots: Annotated[int, typer.Option("--slots", help="How many jobs each runs at once.")] = 4,
    seed: Annotated[int | None, typer.Option("--seed", help="For the same faults again; else random.")] = None,
    json: Json = False,
    report: Annotated[Path | None, typer.Option("--report", help="Write gameday-SEED.md, .json, .png there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also in a database that has jobs of others.")] = False,
    busy: Annotated[bool, typer.Option("--busy", help="This machine has other work: ask less of the times.")] = False,
) -> None:
    """Kill workers, jobs and sessions for a while, and see that no job is lost or done twice.

    Without a database it makes a Postgres of its own, which is restarted in between and leaves nothing behind.
    """
    from outlive.gameday import main
    from outlive.gameday.asked import BUSY, Asked, Bounds, check

    if kills is not None and minutes is not None:
        raise ConfigError("--kills and --minutes are both given: one of them ends the game")
    asked = Asked(
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        kills=200 if kills is None else kills,
        minutes=minutes,
        rate=rate,
        workers=workers,
        slots=slots,
        json=json,
        report=report,
        force=force,
        bounds=BUSY if busy else Bounds(),
    )
    check(asked)
    raise typer.Exit(main(context.config, asked))
