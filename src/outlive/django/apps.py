"""The app of Django: `manage.py migrate` installs outlive's schema, and `manage.py flush` removes the jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.management.base import CommandError
from django.db import connections, router
from django.db.models.signals import post_migrate, pre_migrate

from outlive import db, migrate, program, sql
from outlive.django.addresses import address
from outlive.django.schema import problem
from outlive.errors import OutliveError


class OutliveConfig(AppConfig):
    name = "outlive.django"
    label = "outlive"
    verbose_name = "outlive"

    def ready(self) -> None:
        from outlive.django import backend  # noqa: F401  # This import registers the checks of backends.

        checks.register(_check_schema, checks.Tags.database)
        checks.register(_check_tasks)
        os.environ.setdefault(program.VARIABLE, "default:default")
        router.routers.insert(0, NotCopied())
        pre_migrate.connect(_bring_schema, sender=self)
        post_migrate.connect(_remove_jobs, sender=self)


class NotCopied:
    """A router of Django, by which `dumpdata` leaves out the jobs, and `loaddata` too: views can't be written."""

    def allow_migrate(self, db: str, app_label: str, **_: object) -> bool | None:
        return False if app_label == OutliveConfig.label else None


def used_databases() -> set[str]:
    """The aliases of the databases in which backends keep their jobs."""
    from outlive.django.backend import backends

    return {one.database for one in backends().values()}


def _check_schema(*, databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """`manage.py check --database …`, and `migrate` with `--check` or `--plan`. `migrate` itself brings the schema."""
    migrates = sys.argv[1:2] == ["migrate"]
    if migrates and not {"--check", "--plan"}.intersection(sys.argv):
        return []
    found = [wrong for alias in databases or () if alias in used_databases() and (wrong := problem(alias))]
    if migrates and "--check" in sys.argv:
        return [checks.Error(wrong, id="outlive.E007") for wrong in found]
    return [checks.Warning(wrong, id="outlive.W001") for wrong in found]


def _check_tasks(**_: Any) -> list[checks.CheckMessage]:
    """`manage.py check` alone: other commands have no need to import all tasks."""
    from outlive.django import discovery
    from outlive.django.backend import backends
    from outlive.django.checks import check_address

    if sys.argv[1:2] != ["check"]:
        return []
    usable = [one for one in backends().values() if not [*one.check()]]
    found = [wrong for one in usable for wrong in discovery.problems(one)]
    return [*check_address(usable), *found, *discovery.strays()]


def _bring_schema(*, using: str, verbosity: int, stdout: Any = None, **_: object) -> None:
    """Install the schema or upgrade it. It comes before Django's own migrations, which may enqueue jobs."""
    if using not in used_databases():
        return
    try:
        with db.translated_errors(), db.connect(address(using)) as connection:
            before, after = migrate.migrate(connection)
    except OutliveError as error:
        raise CommandError(f"outlive's schema: {error}{_advice(error, using)}") from error
    if verbosity and before != after:
        (stdout or sys.stdout).write(f"outlive: schema version {after} is installed in the database {using!r}\n")


def _advice(error: OutliveError, using: str) -> str:
    if "permission denied for database" not in str(error):
        return ""
    with db.connect(address(using)) as connection:
        text = "select pg_catalog.format('create on database %I to %I', current_database(), current_user)"
        grant = connection.execute(text)
        return f"; let the owner of the database run `grant {grant.fetchall()[0][0]}`"


def _remove_jobs(*, using: str, **given: object) -> None:
    """`flush` sends this signal too, without a plan. It truncates only tables of Django's own models."""
    if "plan" not in given and using in used_databases():
        with connections[using].cursor() as cursor:
            cursor.execute(sql.read("schema/flush.sql"))
