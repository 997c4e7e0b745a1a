"""`manage.py outlive_worker`: becomes `outlive worker` for a backend of the project."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from typer.main import get_command

from outlive import cli, db, migrate
from outlive.django.addresses import address
from outlive.django.backend import in_django
from outlive.django.management.becoming import become, database_of, take_backend
from outlive.errors import OutliveError, SchemaMismatch


class Command(BaseCommand):
    help = "Run the tasks of Django, each in its own process, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        take_backend(parser)
        for option in _options():
            kind: dict[str, Any] = {"action": "store_true"} if option.is_flag else {}
            parser.add_argument(option.opts[0], dest=option.name, help=option.help, **kind)

    def handle(self, *_: Any, backend: str, pythonpath: str | None, **given: Any) -> None:
        database = database_of(backend)
        _expect_schema(database)
        words = [word for option in _options() for word in _words(option.opts[0], given[option.name])]
        # This process has imported the project. The supervisor of a worker starts without it.
        become("worker", f"outlive.django.worker:{backend}", *words, database=database, pythonpath=pythonpath)


def _expect_schema(database: str) -> None:
    """CommandError if the schema is missing: the worker itself would name a command that does not read DATABASES."""
    try:
        with db.translated_errors(), db.connect(address(database)) as connection:
            migrate.check(connection)
    except SchemaMismatch as error:
        raise CommandError(in_django(error, database), returncode=5) from error  # The code of `outlive worker`.
    except OutliveError:
        pass  # The worker says it, and has an exit code for it.


def _options() -> list[Any]:
    """The options of `outlive worker`, except the database: Django names that."""
    group: Any = get_command(cli.load(["worker"]))
    found = group.commands["worker"].params
    return [one for one in found if one.param_type_name == "option" and one.name != "database_url"]


def _words(flag: str, value: object) -> list[str]:
    """An option as it is typed."""
    if value is None or value is False:
        return []
    return [flag] if value is True else [flag, str(value)]
