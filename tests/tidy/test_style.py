"""Taste that a machine can check: sizes, words, no mocks, no sleeping, nothing of one machine only."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import outlive
from outlive.metrics import catalogue
from tests.tidy.reading import (
    EXAMPLES,
    LAB,
    ROOT,
    SOURCE,
    TESTS,
    TOOLS,
    functions,
    modules,
    none,
    read,
    shown,
    syntax,
    texts,
)

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400
REASON = re.compile(r"\b(longer than|executed by path)\b")
"""How the docstring of a longer file gives its reason; a program that is executed by path can import no other file."""

NOT_OUR_WORDS = {"manager", "handler", "helper", "util", "utils", "broker", "message"}
EVERYWHERE = re.compile("bin|dev|etc|home|lib|mnt|opt|proc|root|run|srv|sys|tmp|usr|var")
MAY_SLEEP = {"waiting.py", "faults.py", "calling.py", "keyed.py", "sharing.py", "talking.py"}
"""Jobs may sleep; tests may not: they wait with `eventually`."""


def test_functions_fit_on_a_screen_and_files_in_a_head():
    """A file whose docstring says why may be longer."""
    paths = modules(SOURCE, LAB, EXAMPLES, TOOLS)
    for path in [one for one in paths if not REASON.search(ast.get_docstring(syntax(one)) or "")]:
        lines = len(read(path).splitlines())
        assert lines <= MAX_FILE_LINES, f"{shown(path)} has {lines} lines, and its docstring does not say why"
        lengths = {one: (one.end_lineno or one.lineno) - one.lineno + 1 for one in functions(path)}
        none(f"{shown(path, one.lineno)}: {n} lines" for one, n in lengths.items() if n > MAX_FUNCTION_LINES)


def names_made(path: Path) -> Iterator[tuple[int, str]]:
    """Every name that a file gives to something: functions, classes, parameters, variables, attributes."""
    yield 1, path.stem
    for node in ast.walk(syntax(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def says_nothing(path: Path, name: str) -> bool:
    if name in {"message", "messages"}:  # What an error says, and a job's progress; no queue has messages here.
        return False
    if path.name == "logs.py" and name == "handler":  # The word of the standard library's logging.
        return False
    return bool({word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)} & NOT_OUR_WORDS)


def test_words_that_say_nothing_name_nothing():
    made = ((path, line, name) for path in modules(SOURCE, LAB) for line, name in names_made(path))
    none(f"{shown(path, line)}: {name}" for path, line, name in made if says_nothing(path, name))


def test_every_module_says_what_lives_in_it():
    none(shown(path) for path in modules(SOURCE, LAB, EXAMPLES, TOOLS) if not ast.get_docstring(syntax(path)))


def mocks_or_sleeps(path: Path, node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(alias.name.startswith(("unittest", "mock")) for alias in names)
        case ast.ImportFrom(module="time" | "asyncio", names=names):
            return "sleep" in {alias.name for alias in names}
        case ast.ImportFrom(module=module):
            return (module or "").startswith(("unittest", "mock"))
        case ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"):
            return path.name not in MAY_SLEEP
    return False


def test_no_test_mocks_or_sleeps():
    nodes = ((path, node) for path in modules(*TESTS) for node in ast.walk(syntax(path)))
    none(shown(path, getattr(node, "lineno", None)) for path, node in nodes if mocks_or_sleeps(path, node))


def test_the_names_of_tests_are_sentences():
    named = ((path, one) for path in modules(*TESTS) for one in functions(path) if one.name.startswith("test_"))
    none(f"{shown(path, one.lineno)}: {one.name}" for path, one in named if one.name.count("_") < 3)


def test_no_file_names_a_path_of_this_machine():
    """The folder that this clone is in, and one that only this machine has at its root."""
    here = [str(ROOT)] if EVERYWHERE.fullmatch(ROOT.parts[1]) else [str(ROOT), f"/{ROOT.parts[1]}/"]
    told = re.compile("|".join(rf"(?<![\w.-]){re.escape(path)}" for path in here))
    none(shown(path) for path in texts() if told.search(read(path)))


def test_the_version_is_the_same_everywhere():
    assert tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["version"] == outlive.__version__


def test_no_file_leaves_work_for_later():
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
    none(shown(path) for path in texts() if path.suffix in {".py", ".sql", ".toml", ""} and marks.search(read(path)))


def test_the_metrics_follow_the_conventions_of_prometheus():
    for metric in [*catalogue.OF_WORKER, *catalogue.OF_PROCESS, *catalogue.OF_DATABASE]:
        assert metric.name.startswith("outlive_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        assert metric.name.endswith("_seconds") or metric.kind != "histogram", metric
        assert metric.help.endswith("."), metric
        assert len(metric.help) > 10, metric
        assert not metric.always or len(metric.labels) == 1, metric
