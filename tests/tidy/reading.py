"""The files of this repository, read as text and as syntax, for the tests that hold its style."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "outlive"
EXAMPLES = ROOT / "examples"
TOOLS = ROOT / "tools"
LAB = ROOT / "lab" / "src"
TESTS = (ROOT / "tests", ROOT / "lab" / "tests")


def modules(*folders: Path) -> list[Path]:
    """The modules below these folders, or those of outlive itself."""
    found = [path for folder in folders or (SOURCE,) for path in sorted(folder.rglob("*.py"))]
    assert found
    return found


def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path, line: int | None = None) -> str:
    """A place in a file, in the form that editors understand."""
    return f"{path.relative_to(ROOT)}{'' if line is None else f':{line}'}"


def texts() -> Iterator[Path]:
    """Every file that people write."""
    for folder in ("src", "lab", "tests", "docs", "examples", "tools", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
    yield from sorted(ROOT.glob("*.md"))
    yield from (ROOT / "run", ROOT / "pyproject.toml", ROOT / "conftest.py")
