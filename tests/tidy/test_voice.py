"""The voice of outlive: log lines, errors, help, docstrings and the names of tests name their subject, in plain
English."""

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.reading import EXAMPLES, LAB, ROOT, SOURCE, TESTS, TOOLS, modules, shown, syntax

RIDDLES = re.compile(r"\b(somebody|nobody|anybody|whoever|anew|is none|are none|has not|have not)\b", re.IGNORECASE)
"""Words that hide the subject of a sentence: name the worker, the reaper or the caller instead."""

ACCOUNT = "nobody"
"""In embedded/, and in backticks on a page, this is an account, which every Unix has."""


def strings(path: Path) -> list[tuple[int, str]]:
    """Each string of a module, docstrings among them, and its line."""
    constants = (node for node in ast.walk(syntax(path)) if isinstance(node, ast.Constant))
    found = [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]
    return [(line, text.replace(ACCOUNT, "")) for line, text in found] if path.parent.name == "embedded" else found


@pytest.mark.parametrize("path", [*modules(SOURCE, LAB, TOOLS), *sorted(SOURCE.rglob("*.sql"))], ids=shown)
def test_no_text_hides_its_subject(path: Path) -> None:
    if path.suffix == ".sql":
        texts = list(enumerate(path.read_text(encoding="utf-8").splitlines(), start=1))
    else:
        texts = strings(path)
    for line, text in texts:
        assert not RIDDLES.search(text), f"{shown(path, line)}: {text!r:.200}"


HELD = [path for path in modules(*TESTS) if path != Path(__file__)]


@pytest.mark.parametrize("path", HELD, ids=shown)
def test_no_test_hides_its_subject(path: Path) -> None:
    functions = (node for node in ast.walk(syntax(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    names = [(node.lineno, node.name.replace("_", " ")) for node in functions]
    for line, text in [*names, *strings(path)]:
        assert not RIDDLES.search(text), f"{shown(path, line)}: {text!r:.200}"


PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "reports"),
    *sorted(EXAMPLES.rglob("*.md")),
]


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_no_page_hides_its_subject(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").replace(f"`{ACCOUNT}`", "").split())
    assert RIDDLES.findall(text) == []
