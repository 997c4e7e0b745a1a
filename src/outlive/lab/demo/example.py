"""Where the coin example is: in the repository's examples, and in the wheel."""

import importlib.util
import sys
from pathlib import Path

import outlive
from outlive.errors import ConfigError

NEEDED = ("httpx2", "selectolax")


def folder() -> Path:
    """The directory that `import coins` needs on its path."""
    package = Path(outlive.__file__).resolve().parent
    for place in (package / "examples", package.parents[1] / "examples"):
        if (place / "coins" / "tasks.py").exists():
            return place
    raise ConfigError("the demo runs the coin example, which this installation lacks: install the wheel again")


def reach() -> None:
    """Make the example importable, or say which packages are missing."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the demo needs {' and '.join(missing)}: pip install 'outlive[demo]' installs them")
    if str(folder()) not in sys.path:
        sys.path.insert(0, str(folder()))
