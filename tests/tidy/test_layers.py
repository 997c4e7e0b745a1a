"""Imports only go down the layers of the code, and a job's process can't touch the queue."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.tidy.reading import SOURCE, modules, none, shown, syntax

LAYERS = [
    {"__init__", "__main__", "cli", "dashboard", "django", "celery", "fastapi", "pytest", "testing"},
    {"operations"},
    {"client", "worker", "child"},
    {"store", "migrate", "metrics", "telemetry"},
    {"db", "binary", "sql", "embedded", "temporary", "timetable", "caller_connections", "pooling"},
    {
        *("statement", "search_path", "states", "model", "policy", "errors", "config", "wire"),
        *("encoding", "annotations", "arguments", "references", "protocol", "job_gateway", "linux", "validation"),
        *("foreign_options", "logs", "output", "json_lines", "luggage", "importing", "program", "humanize", "stacks"),
        *("described",),
    },
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
GROUND = len(LAYERS) - 1
APART = {"client", "worker", "child"}
"""They never import each other."""
CLOSED_TO_JOBS = {"db", "store", "migrate", "sql", "embedded"}


def part_of(path: Path) -> str:
    """The part of outlive that a file belongs to: a module or a folder right under it."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules_in(node: ast.AST, path: Path) -> list[str]:
    """The modules that a statement imports; of a name that a module of outlive has, that module with the name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, f"{shown(path, node.lineno)}: imports are absolute"
    whole = node.module is not None and node.module.partition(".")[0] == "outlive"
    return [f"{node.module}.{alias.name}" for alias in node.names] if whole else [node.module or ""]


def imports() -> Iterator[tuple[str, str, str]]:
    """Every module that a file of outlive imports: the place, the part of outlive that imports it, and its name."""
    for path in modules():
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from ((shown(path, node.lineno), part_of(path), name) for name in modules_in(node, path))


IMPORTS = [(place, part, name, name.partition(".")[0]) for place, part, name in imports()]


def imported(name: str) -> str:
    """The part that a module of outlive belongs to; a name of `outlive` itself belongs to the whole of it."""
    part = name.split(".")[1] if "." in name else "__init__"
    return part if part in LEVEL else "__init__"


def test_imports_only_go_down():
    assert {part_of(path) for path in modules()} <= LEVEL.keys()
    ours = [(place, mine, imported(name)) for place, mine, name, first in IMPORTS if first == "outlive"]
    none(f"{place}: {mine} imports {part}" for place, mine, part in ours if LEVEL[part] < LEVEL[mine])
    none(f"{place}: {mine} imports {part}" for place, mine, part in ours if mine != part and {mine, part} <= APART)
    none(f"{place}: child imports {part}" for place, mine, part in ours if mine == "child" and part in CLOSED_TO_JOBS)


def test_no_modules_import_each_other_when_they_run():
    """Imports inside functions count. Those for types do not, nor does that of a module's own package."""
    paths = {".".join(("outlive", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in modules()}
    known = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        blocks = [node for node in ast.walk(syntax(path)) if isinstance(node, ast.If)]
        of_types = [block for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING"]
        hidden = {node for block in of_types for one in block.body for node in ast.walk(one)}
        found = [one for node in ast.walk(syntax(path)) if node not in hidden for one in modules_in(node, path)]
        needed = {one if one in known else one.rpartition(".")[0] for one in found}
        graph[name] = {one for one in needed & known.keys() if not f"{name}.".startswith(f"{one}.")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        none([" imports ".join(reversed(error.args[1]))])


def test_outlive_imports_nothing_of_the_laboratory():
    none(place for place, _, _, first in IMPORTS if first == "outlive_lab")


def test_the_ground_layer_needs_nothing_but_the_standard_library_and_msgspec():
    known = {"outlive", "msgspec", *sys.stdlib_module_names}
    none(place for place, mine, _, first in IMPORTS if LEVEL[mine] == GROUND and first not in known)


def test_the_embedded_server_needs_nothing_but_the_standard_library_and_our_errors():
    theirs = [(place, name, first) for place, mine, name, first in IMPORTS if mine == "embedded"]
    foreign = [(place, name) for place, name, first in theirs if first not in sys.stdlib_module_names]
    none(place for place, name in foreign if not f"{name}.".startswith(("outlive.errors.", "outlive.embedded.")))
