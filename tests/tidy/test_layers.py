"""Imports only go down the layers of the code, and a job's process can't touch the queue."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.reading import SOURCE, modules, shown, syntax

LAYERS = [
    {"__init__", "__main__", "cli", "dashboard", "django", "fastapi", "pytest"},
    {"operations"},
    {"client", "worker", "child"},
    {"store", "migrate", "metrics", "telemetry"},
    {"db", "columns", "sql", "embedded", "temporary", "ticks", "callers"},
    {
        "statement",
        "search_path",
        "textual",
        "states",
        "model",
        "policy",
        "errors",
        "config",
        "wire",
        "annotations",
        "arguments",
        "protocol",
        "job_gateway",
        "kernel",
        "validation",
        "foreign_options",
        "logs",
        "output",
        "importing",
        "program",
        "wording",
        "stacks",
    },
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
APART = {"client", "worker", "child"}
"""They never import each other."""


def part_of(path: Path) -> str:
    """The part of outlive that a file belongs to: a module or a folder right under it."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, with the line."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{shown(path, node.lineno)}: imports are absolute"
            if node.module == "outlive":
                for alias in node.names:
                    yield node.lineno, f"outlive.{alias.name}"
            else:
                yield node.lineno, node.module or ""


def parts_imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every part of outlive that a file imports; names of `outlive` itself are the whole of it."""
    for line, name in imported(path):
        first, _, rest = name.partition(".")
        if first == "outlive":
            part = rest.partition(".")[0]
            yield line, part if part in LEVEL else "__init__"


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_imports_only_go_down(path: Path) -> None:
    mine = part_of(path)
    assert mine in LEVEL, f"which layer is {mine} in?"
    for line, part in parts_imported(path):
        place = f"{shown(path, line)}: {mine} imports {part}"
        assert LEVEL[part] >= LEVEL[mine], place
        assert part == mine or not {part, mine} <= APART, place
        assert mine != "child" or part not in {"db", "store", "migrate", "sql", "embedded"}, place


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_outlive_imports_nothing_of_the_laboratory(path: Path) -> None:
    for line, name in imported(path):
        assert name.partition(".")[0] != "outlive_lab", shown(path, line)


@pytest.mark.parametrize("path", [path for path in modules() if LEVEL.get(part_of(path)) == len(LAYERS) - 1], ids=shown)
def test_the_ground_layer_needs_nothing_but_the_standard_library_and_msgspec(path: Path) -> None:
    for line, name in imported(path):
        first = name.partition(".")[0]
        assert first in {"outlive", "msgspec"} or first in sys.stdlib_module_names, shown(path, line)


@pytest.mark.parametrize("path", modules(SOURCE / "embedded"), ids=shown)
def test_the_embedded_server_needs_nothing_but_the_standard_library_and_our_errors(path: Path) -> None:
    for line, name in imported(path):
        ours = name in {"outlive.errors", "outlive.embedded"} or name.startswith("outlive.embedded.")
        assert ours or name.partition(".")[0] in sys.stdlib_module_names, shown(path, line)
