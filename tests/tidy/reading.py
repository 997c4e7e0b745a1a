"""The files of this repository, read as text and as syntax, for the tests that hold its style."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "outlive"
EXAMPLES = ROOT / "examples"
TOOLS = ROOT / "tools"
LAB = ROOT / "lab" / "src"
TESTS = (ROOT / "tests", ROOT / "lab" / "tests")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(EXAMPLES.rglob("*.md"))]


def modules(*folders: Path) -> list[Path]:
    """The modules below these folders, or those of outlive itself."""
    found = [path for folder in folders or (SOURCE,) for path in sorted(folder.rglob("*.py"))]
    assert found
    return found


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(read(path), str(path))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for one in ast.walk(syntax(path)) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def strings(path: Path) -> list[tuple[int, str]]:
    """Each line of a file of SQL, or each string of a module, docstrings among them; and its line's number."""
    if path.suffix == ".sql":
        return list(enumerate(read(path).splitlines(), start=1))
    constants = (node for node in ast.walk(syntax(path)) if isinstance(node, ast.Constant))
    return [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]


def shown(path: Path, line: int | None = None) -> str:
    """A place in a file, in the form that editors understand."""
    return f"{path.relative_to(ROOT)}{'' if line is None else f':{line}'}"


def none(offenders: Iterable[str]) -> None:
    """Fail if there are any, and name them all."""
    found = list(offenders)
    assert not found, "\n".join(found)


def texts() -> Iterator[Path]:
    """Every file that people write."""
    for folder in ("src", "lab", "tests", "docs", "examples", "tools", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".png", ".svg"}:
                yield path
    yield from sorted(ROOT.glob("*.md"))
    yield from (ROOT / "run", ROOT / "pyproject.toml", ROOT / "conftest.py")
