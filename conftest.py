"""One real Postgres for the whole test run, a database of its own for each test, and real workers."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg.conninfo import make_conninfo

from outlive import db, embedded, migrate
from outlive import pytest as plugin
from outlive.client.redirection import redirected
from tests.driving.databases import SETTABLE_CLOCK, TEMPLATE, new_database, reused_database, worker_connections
from tests.driving.making import Queue
from tests.driving.workers import ROOT, Start, Worker, all_gone
from tests.reporting import Report

# Property tests leave no file behind, and a busy machine does not fail them.
settings.register_profile("quiet", database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quiet")

SERVER = "TESTED_SERVER_URL"
KEPT = ("OUTLIVE_VENV", plugin.VARIABLE)
HOME = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", type=Path, metavar="FILE", help="write a table of the tests and their results")
    parser.addoption("--postgres", type=Path, metavar="DIRECTORY", help="where the programs of the tests' server are")


def pytest_configure(config: pytest.Config) -> None:
    """Start the server in the process that starts the run; pytest-xdist's workers inherit its address."""
    for variable in [name for name in os.environ if name.startswith("OUTLIVE_") and name not in KEPT]:
        del os.environ[variable]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Or each of the many interpreters compiles all that it imports.
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # A run in a shell's background, where commands inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    if path := config.option.report:
        config.pluginmanager.register(Report(path))
    home = Path(tempfile.mkdtemp(prefix="outlive-tests-", dir="/var/tmp"))  # A short path that postgres can read.
    home.chmod(0o755)
    config.stash[HOME] = home
    settings = {"fsync": "off", "max_connections": "400", "max_prepared_transactions": "0"}
    url = embedded.ensure(home / "server", settings=settings, binaries=config.option.postgres)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create database {TEMPLATE}")
    with db.connect(make_conninfo(url, dbname=TEMPLATE)) as connection:
        migrate.migrate(connection, roles=True)
        connection.execute(SETTABLE_CLOCK)
    os.environ[SERVER] = os.environ[plugin.VARIABLE] = url


def pytest_unconfigure(config: pytest.Config) -> None:
    if home := config.stash.get(HOME, None):
        assert embedded.release(home / "server", wait_s=10.0), "the tests' server did not stop"
        shutil.rmtree(home)


def pytest_collection(session: pytest.Session) -> None:
    """Let each process of a whole run import other modules first, so that in a fresh clone one compiles for all."""
    run = getattr(session.config, "workerinput", None)
    if run is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    modules = sorted(Path(__file__).parent.glob("tests/*/test_*.py"), key=lambda path: path.stat().st_size)
    for path in modules[int(run["workerid"].removeprefix("gw")) :: run["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # What is wrong with a module is said when it is collected.
            import_module(f"tests.{path.parent.name}.{path.stem}")


@pytest.fixture(scope="session")
def server_url() -> str:
    return os.environ[SERVER]


@pytest.fixture
def database_url(server_url: str) -> Iterator[str]:
    """A database with the schema of this version and nothing in it."""
    with reused_database(server_url) as url:
        yield url


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database without the schema of outlive."""
    with new_database(server_url, template="template0") as url:
        yield url


@pytest.fixture
def connect(database_url: str) -> Iterator[Callable[[], Queue]]:
    """Opens connections to the test's database, with the plans of workers, and closes them after the test."""
    with worker_connections(database_url) as connect:
        yield connect


@pytest.fixture
def queue(connect: Callable[[], Queue]) -> Queue:
    return connect()


@pytest.fixture
def connection(queue: Queue) -> Queue:
    """The same session, for tests in which a queue is something else."""
    return queue


@pytest.fixture
def apps(database_url: str) -> Iterator[None]:
    """Lets all apps of this process use the test's database, unless a test configures one itself."""
    with redirected(database_url):
        yield


@pytest.fixture
def start(apps: None, database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts workers, and stops them after the test. A process that they leave behind fails the test."""
    made: list[Worker] = []

    def make(
        *,
        slots: int = 4,
        target: str = "tests.faults:app",
        wait: bool = True,
        url: str = database_url,
        within: Sequence[str] = (),
        folder: Path = ROOT,
        **settings: str,
    ) -> Worker:
        log = tmp_path / f"worker-{len(made)}.log"
        worker = Worker(url, log, slots=slots, settings=settings, target=target, within=within, folder=folder)
        made.append(worker)
        return worker.started() if wait else worker

    yield make
    running = [worker for worker in made if worker.process.poll() is None]
    trees = [pid for worker in running for pid in worker.tree()]
    for worker in running:
        worker.send(signal.SIGTERM)
        worker.send(signal.SIGINT)
    for worker in made:
        try:
            worker.process.wait(20)
        except subprocess.TimeoutExpired:
            worker.kill()
    all_gone(trees, within_s=5, what="the processes of the workers are gone")
