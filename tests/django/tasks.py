"""Tasks for the tests of the backend. Importing this module opens a connection, as careless modules do."""

from __future__ import annotations

import os
import signal
from typing import Any

from django.contrib.auth.models import User
from django.db import connections
from django.dispatch import receiver

import outlive.django
from outlive.django.api import TaskContext, TaskResult, task_finished
from tests.django.decorator import task


def session_of(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


INHERITED = session_of("kept") if os.environ.get("TASKS_CONNECT") else 0
"""The connection of the process that has imported this module."""


class Refused(Exception):
    """An exception that is not of Python's own."""


@task
def add(a: float, b: float = 1) -> float:
    return a + b


@task(queue_name="mail", priority=50)
def anything(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
async def count_users() -> int:
    return int(await User.objects.acount())


@task(takes_context=True)
@outlive.django.options(max_attempts=2, backoff=[0.05])
def second_try(context: TaskContext) -> list[Any]:
    result = context.task_result
    if context.attempt == 1:
        raise Refused("not yet\nand not soon")
    return [context.attempt, len(result.errors), result.status, len(set(result.worker_ids))]


@task(takes_context=True)
def later(context: TaskContext, page: int = 1) -> int:
    if context.attempt == 1:
        raise outlive.Snooze("10ms")
    if page == 1:
        outlive.current().restart(page + 1)
    return page


@task
def refuse() -> None:
    raise ValueError("no: never")


@task
@outlive.django.options(max_attempts=2, backoff=[0.05], fail_on=KeyError)
def give_up(how: str) -> None:
    raise {"fail": outlive.Fail("no"), "final": KeyError("no"), "retry": outlive.Retry(after=0)}[how]


@receiver(task_finished)
def note_end(task_result: TaskResult, **_: Any) -> None:
    print(f"ended: {task_result.id} {task_result.status}")


@task
def return_a_set() -> Any:
    return {1, 2}


@task
@outlive.django.options(max_crashes=1)
def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@task
@outlive.django.options(recycle_after=10)
def sessions() -> dict[str, Any]:
    """The sessions that this process has with the server, and what it had before."""
    had = connections["default"].connection is not None
    here = {alias: session_of(alias) for alias in ("default", "kept")}
    pool = connections["pooled"].pool
    session_of("pooled")
    pool.wait()  # Until what it opens by itself is there.
    return {"process": os.getpid(), "had": had, "zygote": INHERITED, "pooled": pool.get_stats()["pool_size"], **here}


@task
def order_more(number: int) -> str:
    """Enqueue another job from within a job."""
    return str(add.enqueue(number).id)


@task(queue_name="mail", priority=50, takes_context=True)
@outlive.django.schedule("0 3 1 1 *", name="new year", args=["Ada"])
@outlive.django.schedule(every="7d", args={"name": "Bob"}, timezone="UTC")
def greet(context: TaskContext, name: str) -> str:
    return f"hello {name}"
