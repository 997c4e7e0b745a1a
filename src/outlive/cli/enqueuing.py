"""enqueue: import somebody's app, find the task, and ask for a run of it as the app itself would."""

import difflib
import importlib
import os
import sys
import traceback
from typing import Annotated, Any, cast

import msgspec
import typer
from rich.text import Text

from outlive import wire
from outlive.cli import screen
from outlive.cli.common import Desk, Json, app, command
from outlive.client.app import App
from outlive.client.task import Task, Using
from outlive.errors import AppNotFound, BadArguments, OutliveError, TaskNotFound
from outlive.model import new_job_id


@command(app)
def enqueue(
    desk: Desk,
    where: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, e.g. shop.tasks:app.")],
    task: Annotated[str, typer.Argument(help="The task's name; the function's alone if no other ends so.")],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help="An object of named arguments, or an array of positional ones.")
    ] = "{}",
    queue: Annotated[str | None, typer.Option("--queue", help="Another queue than the task's.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Another source than the task's.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="0, the most urgent, to 9; else 5.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Not before so long, e.g. 5m.")] = None,
    dedupe_key: Annotated[str | None, typer.Option("--dedupe-key", help="No two unfinished jobs have it.")] = None,
    on_conflict: Annotated[str, typer.Option("--on-conflict", help="skip, raise or replace.")] = "skip",
    json: Json = False,
) -> None:
    """Ask for a run of a task. When this returns, the job is durable."""
    found = find_app(where)
    args, kwargs = wire.unpack(_decoded(arguments))
    if desk.chosen:
        found.config = desk.config
    said = {"queue": queue, "source": source, "priority": priority, "delay": delay, "dedupe_key": dedupe_key}
    given = {key: value for key, value in said.items() if value is not None}
    id = new_job_id()
    one = find_task(found, where, task).using(**cast("Using", {"id": id, "on_conflict": on_conflict, **given}))
    try:
        job = one.enqueue(*args, **kwargs)
    finally:
        found.connections.close()
    if json:
        screen.print_json({"id": job.id, "task": one.name, "enqueued": job.id == id})
    elif job.id == id:
        screen.say(Text(f"{job.id} is enqueued"))
    else:
        screen.say(Text(f"{job.id} has that dedupe key already: nothing was enqueued"))


def _decoded(text: str) -> object:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadArguments(f"the arguments are not JSON: {error}; quote them like '{{\"a\": 1}}'") from None
    if not isinstance(value, dict | list):
        raise BadArguments(f"the arguments are JSON, but neither an object nor an array: {text[:50]}")
    return value


def find_app(where: str) -> App:
    """Import pkg.module:app. AppNotFound says what was tried, and where."""
    name, _, attribute = where.partition(":")
    attribute = attribute or "app"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _imported(name)
    if not hasattr(module, attribute):
        apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
        has = f"its apps are {', '.join(apps)}" if apps else "it has no outlive.App at all"
        raise AppNotFound(f"the module {name} has nothing named {attribute}: {has}")
    if not isinstance(found := getattr(module, attribute), App):
        raise AppNotFound(f"{name}:{attribute} is of type {type(found).__name__}, not an outlive.App")
    return found


def _imported(name: str) -> object:
    if not name or "/" in name or name.endswith(".py"):
        right = name.removesuffix(".py").strip("./").replace("/", ".") or "pkg.module"
        raise AppNotFound(f"{name!r} is not the name of a module: write it like {right}:app")
    try:
        return importlib.import_module(name)
    except OutliveError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise AppNotFound(
                f"the module {name} was found, but it imports {error.name}, which is not there"
            ) from error
        missing = f"there is no module {error.name}" + ("" if error.name == name else f" (for {name})")
        raise AppNotFound(
            f"{missing}: tried {os.getcwd()} (the current directory) and {len(sys.path) - 1} more places of sys.path, "
            f"first {sys.path[0] or os.getcwd()}; run it where the module is, or set PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise AppNotFound(
            f"importing {name} failed: {type(error).__name__}: {error} ({last.filename}, line {last.lineno}); "
            f"--debug shows how it came to that"
        ) from error


def find_task(found: App, where: str, name: str) -> Task[..., Any, Any]:
    """The task of that name; a function's name alone is enough when only one task ends so."""
    if task := found.tasks.get(name):
        return task
    short = {full: full.rpartition(".")[2] for full in found.tasks}
    fitting = [full for full in found.tasks if full.endswith(f".{name}")]
    if len(fitting) == 1:
        return found.tasks[fitting[0]]
    if fitting:
        raise TaskNotFound(f"{len(fitting)} tasks of {where} end in .{name}: {', '.join(fitting)}")
    if not found.tasks:
        raise TaskNotFound(
            f"{where} has no task {name!r}: it has none at all; is the module that declares them imported?"
        )
    near = difflib.get_close_matches(name, [*short.values(), *found.tasks], n=1, cutoff=0.5)
    hint = [full for full in found.tasks if near and near[0] in (full, short[full])]
    known = f"did you mean {hint[0]}?" if hint else f"it has {', '.join(sorted(found.tasks)[:10])}"
    raise TaskNotFound(f"{where} has no task {name!r}; {known}")
