"""`manage.py outlive_worker`: becomes `outlive worker` for a backend of the project."""

from __future__ import annotations

import argparse
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from typer.main import get_command

from outlive import cli
from outlive.django.api import task_backends
from outlive.django.management.handover import become, database_of, refuse_to_replace_a_caller, take_backend
from outlive.django.management.reloading import reload_on_changes
from outlive.django.schema import problem


class _Celerys(argparse.Action):
    """An option that people who come from Celery type."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, value: object, option: str | None = None) -> None:
        parser.error(f"{option} is an option of Celery: write --slots {value}")


class Command(BaseCommand):
    help = "Run the tasks of Django, each in its own process, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        take_backend(parser)
        for option in _options():
            action = "store_true" if option.is_flag else "append" if option.multiple else "store"
            parser.add_argument(option.opts[0], dest=option.name, help=option.help, action=action)
        parser.add_argument("--exclude-queues", help="Which of QUEUES not to serve, separated by commas.")
        parser.add_argument("-c", "--concurrency", action=_Celerys, help=argparse.SUPPRESS)
        parser.add_argument(
            "--noreload", action="store_true", help="Don't reload the code when it changes, with DEBUG."
        )

    def handle(self, *_: Any, backend: str, pythonpath: str | None, **given: Any) -> None:
        if wrong := problem(database_of(backend)):
            raise CommandError(wrong, returncode=5)  # The code of `outlive worker`.
        refuse_to_replace_a_caller(self)
        known = task_backends[backend].queues
        for flag in ("queues", "exclude_queues"):
            self._doubt_queues(f"--{flag.replace('_', '-')}", given[flag] or "", known)
        if given["exclude_queues"]:
            given["queues"] = _others(given["queues"], given["exclude_queues"], known)
        words = [word for option in _options() for word in _words(option.opts[0], given[option.name])]
        if settings.DEBUG and not given["noreload"]:
            reload_on_changes()
        # This process has imported the project. The supervisor of a worker starts without it.
        become("worker", f"outlive.django.worker:{backend}", *words, backend=backend, pythonpath=pythonpath)

    def _doubt_queues(self, flag: str, named: str, known: set[str]) -> None:
        """Warn of queues that no task can have. Without QUEUES, all can be."""
        unknown = sorted({name.strip() for name in named.split(",")} - {"", *known}) if known else []
        if unknown:
            said = f"{flag} names {', '.join(unknown)}: not in QUEUES, so no job is there"
            self.stderr.write(self.style.WARNING(said))


def _others(named: str | None, excluded: str, known: set[str]) -> str:
    """The queues that are left. A worker is told which queues it serves."""
    if named:
        raise CommandError("--queues and --exclude-queues are both given: give only one of them")
    if not known:
        raise CommandError("--exclude-queues needs QUEUES in TASKS: list all queues there")
    left = known - {name.strip() for name in excluded.split(",")}
    if not left:
        raise CommandError("--exclude-queues leaves no queue of QUEUES to serve")
    return ",".join(sorted(left))


def _options() -> list[Any]:
    """The options of `outlive worker`, except the database: Django names that."""
    group: Any = get_command(cli.load(["worker"]))
    found = group.commands["worker"].params
    return [one for one in found if one.param_type_name == "option" and one.name != "database_url"]


def _words(flag: str, value: object) -> list[str]:
    """An option as it is typed."""
    if isinstance(value, list):
        return [word for one in value for word in _words(flag, one)]
    if value is None or value is False:
        return []
    return [flag] if value is True else [flag, str(value)]
