"""`outlive demo`: runs the coin example on a temporary Postgres, while jobs and a worker are killed.

`play` runs it, `snapshot` reads the database, `verdict` checks the result, and `show` prints everything.
"""

import importlib.util
import sys
from pathlib import Path

import outlive
from outlive.cli import dashboard
from outlive.errors import ConfigError

NEEDED = ("httpx2", "selectolax")


def main(*, json: bool = False, quick: bool = False, keep: bool = False) -> int:
    """0 only if every check holds."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the demo needs {' and '.join(missing)}: pip install 'outlive[demo]' installs them")
    if keep:
        dashboard.expect_installed()
    if str(example()) not in sys.path:
        sys.path.insert(0, str(example()))
    from outlive.lab.demo import play  # It imports the example.

    return play.main(json=json, quick=quick, keep=keep)


def example() -> Path:
    """The directory that `import coins` needs on its path: in the repository, or in the wheel."""
    package = Path(outlive.__file__).resolve().parent
    for place in (package / "examples", package.parents[1] / "examples"):
        if (place / "coins" / "tasks.py").exists():
            return place
    raise ConfigError("the demo runs the coin example, which this installation lacks: install the wheel again")
