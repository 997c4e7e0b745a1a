"""docs/reference/api.md: every public name of `outlive`, from its signature and docstring, with every option.

Options and fields are explained by the string below them, which only the syntax tree has.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import outlive
from outlive import fastapi, policy, pytest
from outlive.client import cache, declaring, looking, options, schedule

SECTIONS: dict[str, list[str]] = {
    "Apps and tasks": ["App", "Task", "BoundJob"],
    "Jobs and their results": [
        "baggage",
        "Job",
        "JobInfo",
        "JobProgress",
        "Attempt",
        "gather",
        "agather",
        "Queue",
        "QueueInfo",
        "ScheduleHandle",
        "ScheduleInfo",
        "Worker",
        "WorkerInfo",
    ],
    "Jobs that belong together": ["result_of", "chain", "achain", "group", "agroup", "Group", "Batch", "BatchCounts"],
    "Inside a job": [
        "current",
        "Context",
        "step",
        "Step",
        "Retry",
        "Snooze",
        "NotReceived",
        "Fail",
        "Cancel",
        "Stopped",
        "NoJob",
    ],
    "Sources and records": ["Source", "Request", "Cache", "SourcePaused", "SourceBusy", "Record", "dedupe_key"],
    "States": ["State", "Outcome"],
    "Tests: outlive.pytest": ["Jobs", "Ran", "Enqueued"],
    "FastAPI and Starlette: outlive.fastapi": [
        *("lifespan", "in_session", "in_async_session", "Enqueue", "AsyncEnqueue"),
    ],
}
"""Every name, in the order of the page. Errors that are not listed here follow in a section of their own."""
BESIDE: dict[str, Any] = {
    "Cache": cache.Cache,
    **{name: getattr(pytest, name) for name in ("Jobs", "Ran", "Enqueued")},
    **{name: getattr(fastapi, name) for name in SECTIONS["FastAPI and Starlette: outlive.fastapi"]},
}
"""What `outlive` itself does not name: a class that takes long to import, and modules for other libraries."""
OPTIONS: dict[str, list[Any]] = {
    "App.task": [declaring.TaskOptions, policy.LimitOptions],
    "Task.using": [options.JobOptions, policy.LimitOptions],
    "App.schedule": [schedule.ScheduleOptions, schedule.ScheduleFields],
    "App.add_schedule": [schedule.NewSchedule, schedule.ScheduleFields],
    "ScheduleHandle.set": [schedule.ScheduleChanges, schedule.ScheduleFields],
    "App.jobs": [looking.JobFilters],
}
"""The options behind `**options`."""
HIDDEN = {
    *("App.connections", "App.enqueue_requests", "App.aenqueue_requests", "App.check", "App.decode_result"),
    *("Cache.of", "Request.ask", "Request.give_back", "Request.send", "Request.paid_by_claim", "Request.pause_s"),
    *("Request.report_of", "Request.report", "Jobs.close", "App.traced", "Context.journal"),
}
"""Methods that other modules of outlive use, and apps don't."""
QUOTED = re.compile(r"(: |-> )'((?:[^'\\]|\\.)*)'")
"""An annotation as a signature prints it."""
MADE = {"App": "app = ", "Retry": "raise ", "Snooze": "raise "}
"""What apps make themselves, and how."""
TWIN = "The async twin of"
HEAD = """\
# The API

Made from signatures and docstrings; `./run docs --generate` writes this page. Import the names from `outlive`, if no
other module is named.
Durations are seconds, texts such as `"90s"`, `"10m"` or `"1h30m"`, or a `timedelta`. Sizes are bytes, or texts such as
`"512MB"`.

"""


def as_markdown() -> str:
    """The page."""
    lines = []
    for title, names in contents().items():
        lines += [f"## {title}", "", *(line for name in names for line in _entry(name, names))]
    return HEAD + "\n".join(lines).rstrip() + "\n"


def contents() -> dict[str, list[str]]:
    """The names of each section. What `outlive` exports and no section lists is an error, or is missed here."""
    listed = {name for names in SECTIONS.values() for name in names}
    rest = [name for name in outlive.__all__ if name not in listed]
    strange = [name for name in rest if not _is_error(getattr(outlive, name))]
    if strange:
        raise ValueError(f"put {', '.join(strange)} into a section of tools/docs/api.py")
    return {**SECTIONS, "Errors": sorted(rest, key=lambda name: name != "OutliveError")}


def silent() -> list[str]:
    """Every public name, method, option and field that nothing explains."""
    missing = []
    for name in (name for names in contents().values() for name in names):
        thing = _named(name)
        if not _doc(thing):
            missing.append(name)
        if inspect.isclass(thing):
            missing += [f"{name}.{one}" for one, method in _methods(name, thing) if not _doc(method)]
            missing += [f"{name}.{one}" for one, _, why in _fields(thing) if not why]
    for owner, kinds in OPTIONS.items():
        missing += [f"{owner}({one}=…)" for kind in kinds for one, _, why in _annotations(kind) if not why]
    return missing


def _entry(name: str, beside: list[str]) -> Iterator[str]:
    thing = _named(name)
    if _doc(thing).startswith(TWIN):
        return
    yield from (f"### {name}", "")
    if inspect.isclass(thing):
        yield from _class(name, thing)
    else:
        twin = (_twin(name), _named(_twin(name))) if _twin(name) in beside else None
        yield from (*_block(name, thing, twin), _doc(thing), "")


def _class(name: str, thing: type[Any]) -> Iterator[str]:
    if issubclass(thing, enum.Enum):
        yield from (_doc(thing), "", ", ".join(f"`{one.value}`" for one in thing), "")
        return
    if name in MADE:
        yield from ("```python", f"{MADE[name]}outlive.{name}{_signature(thing.__init__)}", "```", "")
    elif _is_error(thing):
        yield from ("```python", f"class {name}({', '.join(base.__name__ for base in thing.__bases__)})", "```", "")
    yield from (_doc(thing), "")
    if fields := _fields(thing):
        yield from (*_table(fields), "")
    methods = _methods(name, thing)
    twins = {one for one, method in methods if _doc(method).startswith(TWIN)}
    for one, method in methods:
        if one in twins:
            continue
        twin = next(((other, found) for other, found in methods if other in twins and other == _twin(one)), None)
        title = f"{name}(…)" if one == "__call__" else f"{name}.{one}"
        yield from (f"#### {title}", "", *_block(one, method, twin), _doc(method), "")
        for kind in OPTIONS.get(f"{name}.{one}", []):
            inherited = "The limits that a task sets and a job can override:" if kind is policy.LimitOptions else ""
            yield from (*([inherited, ""] if inherited else []), *_table(_annotations(kind)), "")


def _twin(name: str) -> str:
    return "await_" if name == "wait" else f"a{name}"


def _block(name: str, thing: Any, twin: tuple[str, Any] | None = None) -> list[str]:
    """The signature of a function, and that of its async twin; of a property, its type."""
    if isinstance(thing, property) or hasattr(thing, "func"):
        getter = getattr(thing, "fget", None) or thing.func
        return [f"`{name}: {inspect.signature(getter).return_annotation}`", ""]
    lines = [f"{_def(one)} {word}{_signature(one)}" for word, one in [(name, thing), *([twin] if twin else [])]]
    return ["```python", *lines, "```", ""]


def _def(function: Any) -> str:
    return "async def" if inspect.iscoroutinefunction(function) else "def"


def _signature(function: Any) -> str:
    """The signature, on several lines if it is long, without `self` and with annotations as they are written."""
    found = inspect.signature(function)
    parameters = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    text = QUOTED.sub(r"\1\2", str(found.replace(parameters=parameters)))
    text = re.sub(r"^\(/, ", "(", text).replace(" -> None", "")
    if len(text) <= 100:
        return text
    inside, _, after = text[1:].rpartition(")")
    return "(\n" + "".join(f"    {one.strip()},\n" for one in _split(inside)) + ")" + after


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _methods(name: str, thing: type[Any]) -> list[tuple[str, Any]]:
    """The public methods and properties that the class itself defines."""
    found = []
    for one, member in vars(thing).items():
        member = getattr(member, "__func__", member)
        is_method = inspect.isfunction(member) or isinstance(member, property) or hasattr(member, "func")
        if is_method and (not one.startswith("_") or one == "__call__") and f"{name}.{one}" not in HIDDEN:
            found.append((one, member))
    return [] if _is_error(thing) or issubclass(thing, enum.Enum) else found


def _fields(thing: type[Any]) -> list[tuple[str, str, str]]:
    """The public fields of a struct or dataclass."""
    is_data = hasattr(thing, "__struct_fields__") or hasattr(thing, "__dataclass_fields__")
    if not is_data or thing is options.BoundJob:
        return []
    return [field for field in _annotations(thing) if not field[0].startswith("_")]


def _annotations(thing: type[Any]) -> list[tuple[str, str, str]]:
    """Name, type and explanation of each annotated name of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(tree, ast.ClassDef)
    found: list[tuple[str, str, str]] = []
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                found.append((name, ast.unparse(kind), ""))
            case ast.Expr(value=ast.Constant(value=str(why))) if found:
                found[-1] = (*found[-1][:2], " ".join(inspect.cleandoc(why).split()))
    return found


def _table(rows: list[tuple[str, str, str]]) -> list[str]:
    cells = [(f"`{name}`", f"`{kind}`".replace("|", "\\|"), why.replace("|", "\\|")) for name, kind, why in rows]
    return ["| name | type | meaning |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in cells)]


def _named(name: str) -> Any:
    return BESIDE[name] if name in BESIDE else getattr(outlive, name)


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def _doc(thing: Any) -> str:
    """The docstring of the thing itself. A dataclass or an enum without one would have that of its base."""
    thing = getattr(thing, "func", thing)
    doc = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return inspect.cleandoc(doc) if doc and not doc.startswith(f"{getattr(thing, '__name__', '')}(") else ""
