"""Taste that a machine can check: sizes, words, no mocks, no sleeping, nothing of one machine only."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlive
from tests.tidy.reading import EXAMPLES, LAB, ROOT, SOURCE, TESTS, TOOLS, modules, shown, syntax, texts

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400
REASON = re.compile(r"\b(longer than|executed by path)\b")
"""How the docstring of a longer file gives its reason; a program that is executed by path can import no other file."""

NOT_OUR_WORDS = {"manager", "handler", "helper", "util", "utils", "broker", "message"}
EVERYWHERE = {
    "bin",
    "dev",
    "etc",
    "home",
    "lib",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
}


@pytest.mark.parametrize("path", modules(SOURCE, LAB, EXAMPLES, TOOLS), ids=shown)
def test_functions_fit_on_a_screen_and_files_in_a_head(path: Path) -> None:
    tree = syntax(path)
    if REASON.search(ast.get_docstring(tree) or ""):
        return
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES, f"{shown(path)} has {lines} lines, and its docstring does not say why"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{shown(path, node.lineno)}: {node.name} has {length} lines"


def names_made(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a file gives to something: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


@pytest.mark.parametrize("path", modules(SOURCE, LAB), ids=shown)
def test_words_that_say_nothing_name_nothing(path: Path) -> None:
    assert not words_of(path.stem) & NOT_OUR_WORDS
    for line, name in names_made(syntax(path)):
        if name in {"message", "messages"}:  # What an error says, and a job's progress; no queue has messages here.
            continue
        if path.name == "logs.py" and name == "handler":  # The word of the standard library's logging.
            continue
        assert not words_of(name) & NOT_OUR_WORDS, f"{shown(path, line)}: {name}"


@pytest.mark.parametrize("path", modules(SOURCE, LAB, EXAMPLES, TOOLS), ids=shown)
def test_every_module_says_what_lives_in_it(path: Path) -> None:
    assert ast.get_docstring(syntax(path))


@pytest.mark.parametrize("path", modules(*TESTS), ids=shown)
def test_no_test_mocks_or_sleeps(path: Path) -> None:
    for node in ast.walk(syntax(path)):
        match node:
            case ast.Import(names=names):
                assert not any(alias.name.startswith(("unittest", "mock")) for alias in names), shown(path, node.lineno)
            case ast.ImportFrom(module=module, names=names):
                assert not (module or "").startswith(("unittest", "mock")), shown(path, node.lineno)
                assert module not in {"time", "asyncio"} or "sleep" not in {alias.name for alias in names}
            case ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"):
                allowed = {
                    "tests/waiting.py",
                    "tests/faults.py",
                    "tests/guarantees/calling.py",
                    "tests/guarantees/keyed.py",
                    "tests/processes/talking.py",
                }  # Jobs may sleep; tests may not.
                assert shown(path) in allowed, f"{shown(path, node.lineno)}: wait with eventually"


@pytest.mark.parametrize("path", [path for path in modules(*TESTS) if path.name.startswith("test_")], ids=shown)
def test_the_names_of_tests_are_sentences(path: Path) -> None:
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert node.name.count("_") >= 3, shown(path, node.lineno)


def test_no_file_names_a_path_of_this_machine() -> None:
    """The folder that this clone is in, and one that only this machine has at its root."""
    here = [str(ROOT)] if ROOT.parts[1] in EVERYWHERE else [str(ROOT), f"/{ROOT.parts[1]}/"]
    told = re.compile("|".join(rf"(?<![\w.-]){re.escape(path)}" for path in here))
    for path in texts():
        if path.suffix not in {".png", ".svg"}:
            assert not told.search(path.read_text(encoding="utf-8")), shown(path)


def test_the_version_is_the_same_everywhere() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == outlive.__version__


def test_no_file_leaves_work_for_later() -> None:
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
    for path in texts():
        if path.suffix in {".py", ".sql", ".toml", ""}:
            assert not marks.search(path.read_text(encoding="utf-8")), shown(path)
