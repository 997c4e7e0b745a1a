"""--version, and commands that hand over to a module of their own, imported only then: demo, bench."""

from typing import Annotated

import typer

import outlive
from outlive.cli.common import Json, app, reported


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"outlive {outlive.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Jobs outlive their workers: a PostgreSQL job system for work that kills processes."""


@app.command()
def demo(
    json: Json = False, debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False
) -> None:
    """See jobs survive, on a Postgres of its own that leaves nothing behind."""
    from outlive.demo import main

    with reported(debug=debug):
        raise typer.Exit(main(json=json))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure what the store can do on this machine (outlive bench --help)."""
    from outlive.bench import main

    with reported(debug=False):
        raise typer.Exit(main(context.args))
