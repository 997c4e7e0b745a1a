"""Django in the worker that a test starts: it has the settings of the test's process, and the databases that Django
gives to this test. A connection to any other one is refused, because the settings name those of development.

`of_test` is called in the test's process, and `set_up` in the worker, before it imports the tasks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from outlive.client import redirection
from outlive.errors import ConfigError, WrongConnection

_ADDRESS = ("NAME", "HOST", "PORT", "USER", "PASSWORD")
_BY_CODE = (
    "settings.configure() has set Django up in the test, and a worker finds only settings that are a module: name it "
    "in DJANGO_SETTINGS_MODULE"
)
_NONE = "outlive_refuses_this_database"
"""The name of a database that the test may not use: no server has it."""


class Django(msgspec.Struct, frozen=True):
    """What the worker must know of Django in the test's process."""

    settings: str | None
    """Their module. None: code has made them, so the worker has none, and uses no database of Django."""
    debug: bool
    is_test: bool
    """Whether Django's test environment is set up, in which no mail is sent."""
    databases: dict[str, dict[str, str]]
    """The address of each database that Django gives to this test."""
    refused: dict[str, str]
    """Why the test may not use the others."""


def of_test() -> Django | None:
    """Django as the test's process has it; None if it is not set up here."""
    apps = getattr(sys.modules.get("django.apps"), "apps", None)
    if apps is None or not apps.ready:
        return None
    from django.conf import settings
    from django.db import connections

    module = _module(settings._wrapped)
    refused = {alias: why for alias in connections if (why := _why_not(alias))}
    given = {
        alias: {key: str(connections[alias].settings_dict[key] or "") for key in _ADDRESS}
        for alias in connections
        if alias not in refused
    }
    return Django(module, settings.DEBUG, redirection.django_tests(), given, refused)


def _module(settings: Any) -> str | None:
    """The module of the settings, also if the test overrides some. None: code has made them."""
    while (module := getattr(settings, "SETTINGS_MODULE", None)) is None and hasattr(settings, "default_settings"):
        settings = settings.default_settings
    return module


def _why_not(alias: str) -> str | None:
    """Why a worker of this test may not use a database of Django; None: it may."""
    from django.db import connections

    from outlive.django.connecting import expect_access

    if not redirection.django_tests():
        return "no test of Django runs, which would have a database of its own"
    connection: Any = connections[alias]
    try:
        expect_access(alias)
    except Exception as error:  # As pytest-django and Django refuse it, or the database.
        return f"the test may not use it itself: {error}"
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        return "it is in the memory of the test's process"
    if connection.in_atomic_block:
        return "the test is in a transaction, of which no worker sees the rows: use transactional_db"
    return None


def set_up(given: Django) -> None:
    """Set Django up with these databases. Nothing connects before."""
    if given.settings is None:
        _refuse(lambda alias: _BY_CODE)
        return
    os.environ["DJANGO_SETTINGS_MODULE"] = given.settings
    import django
    from django.conf import settings

    _refuse(_replace(settings.DATABASES, given).get)
    django.setup()
    if given.is_test:
        from django.test.utils import setup_test_environment

        setup_test_environment(debug=given.debug)
        # What a job enqueues is for the worker of the test, also in a transaction of Django.
        redirection.database_url = f"dbname={_NONE}"  # The worker alone knows the real one.


@contextmanager
def without_settings() -> Iterator[None]:
    """In this block, what is imported may need settings: the error says why the worker has no settings."""
    from django.core.exceptions import AppRegistryNotReady, ImproperlyConfigured

    try:
        yield
    except (AppRegistryNotReady, ImproperlyConfigured) as error:
        raise ConfigError(f"{error} {_BY_CODE}") from error


def _replace(databases: dict[str, dict[str, Any]], given: Django) -> dict[str, str]:
    """Put the addresses of the test into the settings. Returns why the other databases are refused."""
    refused = {}
    for alias, own in databases.items():
        address = given.databases.get(alias)
        if address is not None and not _is_of_settings(address, own):
            own.update(address)
            continue
        refused[alias] = given.refused.get(alias, "Django has made no test database for it")
        own["NAME"] = _NONE
    return refused


def _is_of_settings(address: Mapping[str, str], own: Mapping[str, Any]) -> bool:
    """Whether the test uses the database of the settings, which do not say that it is one for tests."""
    same = all(str(own.get(key) or "") == address[key] for key in ("NAME", "HOST", "PORT"))
    return same and (own.get("TEST") or {}).get("NAME") != address["NAME"]


def _refuse(why_not: Callable[[str], str | None]) -> None:
    """Let no connection be made to a database for which there is a reason, nor to the server without a database."""
    from django.db.backends.base.base import NO_DB_ALIAS, BaseDatabaseWrapper

    plain = BaseDatabaseWrapper.connect

    def connect(self: Any) -> None:
        if why := why_not(self.alias) or ("it has no name" if self.alias == NO_DB_ALIAS else None):
            raise WrongConnection(f"the worker of this test does not use the database {self.alias!r} of Django: {why}")
        plain(self)

    BaseDatabaseWrapper.connect = connect
