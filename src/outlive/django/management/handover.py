"""How `manage.py` hands over to a command of outlive, on the database of a backend."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser

from outlive import embedded, program
from outlive.django.addresses import address
from outlive.django.api import task_backends
from outlive.django.backend import OutliveBackend


def take_backend(parser: CommandParser) -> None:
    parser.add_argument("--backend", default="default", help="The alias in TASKS. Default: default.")


def database_of(backend: str) -> str:
    if backend not in task_backends.settings or not isinstance(task_backends[backend], OutliveBackend):
        raise CommandError(f"TASKS has no backend of outlive named {backend!r}: set --backend to its alias")
    database: str = task_backends[backend].database
    return database


def refuse_to_replace_a_caller(command: BaseCommand) -> None:
    """`call_command` runs it in a process that has other work to do, such as that of a test."""
    if not command._called_from_command_line:
        name = command.__module__.rpartition(".")[2]
        raise CommandError(
            f"{name} replaces its process, so call_command can't run it: start `manage.py {name}` as a process "
            "of its own. In a test, outlive_jobs.run() of outlive's pytest plugin runs the jobs"
        )


def environment(backend: str) -> dict[str, str]:
    """What a command knows of the project: most, such as `doctor`, import no app."""
    database = database_of(backend)
    known = {"OUTLIVE_DATABASE_URL": address(database), program.VARIABLE: f"{backend}:{database}"}
    session_url = os.environ.get("OUTLIVE_SESSION_URL") or task_backends[backend].settings.get("session_url")
    return known | ({"OUTLIVE_SESSION_URL": session_url} if session_url else {})


def become(*words: str, backend: str, pythonpath: str | None) -> NoReturn:
    """Replace this process by the command, which finds the project's modules where `manage.py` does."""
    told = environment(backend)
    paths = [pythonpath, sys.path[0], os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    os.environ.update(told)  # Jobs don't see the addresses.
    embedded.keep_on_exec()  # The settings may have started the server, and the program does not read them.
    os.execv(sys.executable, [sys.executable, "-m", "outlive", *words])
