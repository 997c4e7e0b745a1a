"""One real Postgres for the whole test run, and a database of its own, cloned from a template, for each test."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outlive import db, embedded, migrate
from tests.reporting import Report

SERVER = "TESTED_SERVER_URL"
TEMPLATE = "outlive_template"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", type=Path, metavar="FILE", help="write what each test has shown as a table")


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the run has the server; pytest-xdist's workers inherit its address."""
    for variable in [name for name in os.environ if name.startswith("OUTLIVE_") and name != "OUTLIVE_VENV"]:
        del os.environ[variable]
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    if path := config.option.report:
        config.pluginmanager.register(Report(path))
    home = Path(tempfile.mkdtemp(prefix="outlive-tests-", dir="/var/tmp"))  # short, and postgres can go there
    home.chmod(0o755)
    config.stash[HOME] = home
    settings = {"fsync": "off", "max_connections": "300", "max_prepared_transactions": "0"}
    url = embedded.ensure(home / "server", settings=settings)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create database {TEMPLATE}")
    with db.connect(make_conninfo(url, dbname=TEMPLATE)) as connection:
        migrate.migrate(connection, roles=True)
    os.environ[SERVER] = url


HOME = pytest.StashKey[Path]()


def pytest_unconfigure(config: pytest.Config) -> None:
    if home := config.stash.get(HOME, None):
        assert embedded.release(home / "server", wait_s=10.0), "the tests' server did not stop"
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def server_url() -> str:
    return os.environ[SERVER]


@pytest.fixture
def new_database(server_url: str) -> Iterator[Callable[[str], str]]:
    """Makes databases from a template; they go with the test."""
    made = []

    def make(template: str) -> str:
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"create database {name} template {template}")
        made.append(name)
        return make_conninfo(server_url, dbname=name)

    yield make
    with psycopg.connect(server_url, autocommit=True) as admin:
        for name in made:
            admin.execute(f"drop database {name} with (force)")


@pytest.fixture
def database_url(new_database: Callable[[str], str]) -> str:
    """A database with the schema of this version and nothing in it."""
    return new_database(TEMPLATE)


@pytest.fixture
def empty_database_url(new_database: Callable[[str], str]) -> str:
    """A database without any schema of ours."""
    return new_database("template0")


@pytest.fixture
def connect(database_url: str) -> Iterator[Callable[[], db.Connection]]:
    """Makes connections to the test's database, with the plans of workers; they are closed with the test."""
    made: list[db.Connection] = []

    def make() -> db.Connection:
        made.append(db.connect(database_url, db.PINNED))
        return made[-1]

    yield make
    for connection in made:
        connection.close()


@pytest.fixture
def connection(connect: Callable[[], db.Connection]) -> db.Connection:
    return connect()
