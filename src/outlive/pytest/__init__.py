"""The pytest plugin, which an entry point loads: a database for each test, and what a test does with jobs.

A run that does not use it pays nothing for it: the fixtures import everything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outlive.client.app import App
    from outlive.pytest.databases import Databases
    from outlive.pytest.jobs import Jobs
    from outlive.testing.enqueued import Enqueued
    from outlive.testing.inline import Ran

__all__ = ["Enqueued", "Jobs", "Ran", "outlive_apps", "outlive_db", "outlive_db_setup", "outlive_jobs"]

URL = "outlive_database_url"
VARIABLE = "OUTLIVE_TEST_DATABASE_URL"
_HOMES = {"Enqueued": "outlive.testing.enqueued", "Jobs": "outlive.pytest.jobs", "Ran": "outlive.testing.inline"}


def pytest_addoption(parser: pytest.Parser) -> None:
    about = f"a Postgres on which outlive_db makes databases (default: {VARIABLE}, or else an embedded server)"
    parser.getgroup("outlive").addoption("--outlive-database-url", metavar="URL", help=about)
    parser.addini(URL, about)


@pytest.fixture(scope="session")
def outlive_db_setup() -> Callable[[str], object] | None:
    """Override this to prepare the database of every test: return a function of an address, which is called once."""
    return None


@pytest.fixture(scope="session")
def outlive_apps() -> Sequence[App] | None:
    """Override this to say which apps `outlive_jobs` runs. None: all that the process has."""
    return None


@pytest.fixture(scope="session")
def _outlive_databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    config = request.config
    url = config.getoption(URL) or config.getini(URL) or os.environ.get(VARIABLE)
    databases = _open(url)
    yield databases
    databases.close()


def _open(url: str | None) -> Databases:
    import psycopg

    from outlive import migrate
    from outlive.config import Config
    from outlive.errors import OutliveError
    from outlive.pytest.databases import Databases, embedded_url

    try:
        return Databases(migrate.address(Config(database_url=url)) if url else embedded_url())
    except (psycopg.Error, OutliveError) as error:
        reason = str(error).strip()
    pytest.fail(  # Not in the block above: the message is all that a test's author needs.
        f"outlive_db can make no database: {reason}\nInstall outlive[embedded], or give a Postgres "
        f"whose role may create databases: {VARIABLE}, --outlive-database-url or {URL} in the ini-file",
        pytrace=False,
    )


@pytest.fixture
def outlive_db(
    _outlive_databases: Databases,
    outlive_db_setup: Callable[[str], object] | None,  # Asked for here, so that folders can have different ones.
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[str]:
    """The address of this test's own database, which every app of the process uses during the test."""
    from outlive.client.redirection import redirected
    from outlive.pytest.callers import guarded
    from outlive.pytest.handles import found_in_django

    with _outlive_databases.new(outlive_db_setup) as url:
        monkeypatch.setenv("OUTLIVE_DATABASE_URL", url)  # For commands and processes that the test starts.
        monkeypatch.setenv("OUTLIVE_CACHE_DIR", str(tmp_path / "outlive-cache"))  # No answer comes from another test.
        with redirected(url), guarded(url), found_in_django():
            yield url


@pytest.fixture
def outlive_jobs(outlive_db: str, outlive_apps: Sequence[App] | None) -> Iterator[Jobs]:
    """Runs the jobs of this test, looks at what was enqueued, and moves the clock."""
    from outlive.pytest.jobs import Jobs

    jobs = Jobs(outlive_db, outlive_apps)
    yield jobs
    jobs.close()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The classes for annotations are imported when they are used."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
