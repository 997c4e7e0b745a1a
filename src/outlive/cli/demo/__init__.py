"""demo: runs the coin example on a temporary Postgres, while jobs and a worker are killed.

`play` runs it, `snapshot` reads the database, `verdict` checks the result, and `show` prints everything.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

import outlive
from outlive.cli.command import Json, app, reported
from outlive.errors import ConfigError

NEEDED = ("httpx2", "selectolax")


@app.command("demo", rich_help_panel="Run")
def demo(
    json: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fetch fewer coins: half a minute instead of one.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave workers, server and a dashboard running at the end, until Ctrl-C.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Watch jobs survive for a minute, on a temporary Postgres.

    Example: outlive demo --quick
    """
    with reported(debug=debug):
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise ConfigError(f"the demo needs {' and '.join(missing)}: pip install 'outlive[demo]' installs them")
        if keep:
            from outlive.cli import dashboard  # Not at the top: it registers its own commands.

            dashboard.expect_installed()
        if str(example()) not in sys.path:
            sys.path.insert(0, str(example()))
        from outlive.cli.demo import play  # It imports the example.

        raise typer.Exit(play.main(json=json, quick=quick, keep=keep))


def example() -> Path:
    """The directory that `import coins` needs on its path: in the repository, or in the wheel."""
    package = Path(outlive.__file__).resolve().parent
    for place in (package / "examples", package.parents[1] / "examples"):
        if (place / "coins" / "tasks.py").exists():
            return place
    raise ConfigError("the demo runs the coin example, which this installation lacks: install the wheel again")
