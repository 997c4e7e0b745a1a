"""enqueue: imports an app, finds a task of it, and enqueues a job as the app itself would."""

import difflib
from typing import Annotated, Any, cast

import typer

from outlive import importing
from outlive.cli import screen
from outlive.cli.command import CommandContext, Json, Target, app, command, json_arguments
from outlive.cli.job_filter import found_id
from outlive.client.app import App
from outlive.client.options import JobOptions
from outlive.client.task import Task
from outlive.errors import TaskNotFound
from outlive.model import new_job_id


@command(app, example="""enqueue shop.tasks:app fetch '{"url": "https://example.org/"}'""")
def enqueue(
    context: CommandContext,
    where: Target,
    task: Annotated[str, typer.Argument(help="The task's name; its function's name is enough if it is unique.")],
    arguments: Annotated[
        str,
        typer.Argument(
            metavar="[JSON]", help="An object of named arguments, or an array of positional ones; - for standard input."
        ),
    ] = "{}",
    queue: Annotated[str | None, typer.Option(help="Use this queue, not the task's.")] = None,
    source: Annotated[str | None, typer.Option(help="Use this source, not the task's.")] = None,
    priority: Annotated[int | None, typer.Option(help="From 0, the most urgent, to 9. Default: 5.")] = None,
    delay: Annotated[str | None, typer.Option(help="Wait this long before the first attempt, e.g. 5m.")] = None,
    dedupe_key: Annotated[
        str | None, typer.Option(help="A key that only one unfinished job of the task can have.")
    ] = None,
    on_conflict: Annotated[str, typer.Option(help="If the key is taken: skip, raise or replace.")] = "skip",
    after: Annotated[list[str] | None, typer.Option(help="Wait for this job; may be given several times.")] = None,
    on_failure: Annotated[
        str, typer.Option(help="If a job that it waits for does not succeed: block, proceed or cancel.")
    ] = "block",
    concurrency_key: Annotated[str | None, typer.Option(help="A key that limits how many jobs run at a time.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="How many jobs with that key run at a time. Default: 1.")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="Cancel it if it does not start within this time.")] = None,
    deadline: Annotated[str | None, typer.Option(help="Cancel it if it does not end within this time.")] = None,
    json: Json = False,
) -> None:
    """Enqueue a job of a task. It is durable when this command ends."""
    found = cast("App", importing.import_app(where))
    context.config = context.config_of(found.settings)
    found.configure(context.config)
    options: dict[str, object] = {"queue": queue, "source": source, "priority": priority, "delay": delay}
    options |= {"dedupe_key": dedupe_key, "concurrency_key": concurrency_key, "concurrency": concurrency}
    options |= {"expires": expires, "deadline": deadline}
    given = {key: value for key, value in options.items() if value is not None}
    if after:
        given |= {"after": [found_id(context, "job", one) for one in after], "on_failure": on_failure}
    id = new_job_id()
    one = find_task(found, where, task).using(**cast("JobOptions", {"id": id, "on_conflict": on_conflict, **given}))
    args, kwargs = one.codec.unpack(json_arguments(arguments))
    if check := getattr(one.function, "check_arguments", None):  # A task of Django.
        check(args, kwargs)
    try:
        job = one.enqueue(*args, **kwargs)
    finally:
        found.connections.close()
    if json:
        screen.print_json({"id": job.id, "task": one.name, "enqueued": job.id == id})
    else:
        taken = " already has this dedupe key: nothing was enqueued"
        screen.say(f"{job.id}{' is enqueued' if job.id == id else taken}")


def find_task(found: App, where: str, name: str) -> Task[..., Any, Any]:
    """The task of that name. The name of its function is enough if no other task has the same."""
    if task := found.tasks.get(name):
        return task
    short = {full: full.rpartition(".")[2] for full, task in found.tasks.items() if full == task.name}
    fitting = [full for full in short if full.endswith(f".{name}")]
    if len(fitting) == 1:
        return found.tasks[fitting[0]]
    if fitting:
        raise TaskNotFound(f"{len(fitting)} tasks of {where} end in .{name}: use one of {', '.join(fitting)}")
    if not found.tasks:
        raise TaskNotFound(f"{where} has no task {name!r} and no other: import the module that declares the tasks")
    near = difflib.get_close_matches(name, [*short.values(), *short], n=1, cutoff=0.5)
    hint = [full for full in short if near and near[0] in (full, short[full])]
    known = f"did you mean {hint[0]}?" if hint else f"use one of {', '.join(sorted(short)[:10])}"
    raise TaskNotFound(f"{where} has no task {name!r}; {known}")
