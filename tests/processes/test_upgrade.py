"""The upgrade from version 1 of the schema, beside a worker and a client of 0.1: the last commit that had it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.driving import releases
from tests.driving.commands import Cli, ended, started
from tests.driving.making import Queue
from tests.driving.workers import ROOT, Start
from tests.package.test_wheel import install
from tests.waiting import eventually

LAST_OF_VERSION_1 = "b19d8f9e43e4016f717a75b620b6793d683cfa65"
APP = """
import time

import outlive

app = outlive.App()


@app.task
def double(n):
    return 2 * n


@app.task
def wait():
    time.sleep(3600)
"""
SLOW_HEARTBEAT = {"OUTLIVE_HEARTBEAT_S": "600", "OUTLIVE_STALE_S": "1200", "OUTLIVE_DEAD_S": "2400"}
CLIENT = """
import sys

import upgraded

for line in sys.stdin:
    print(upgraded.double.enqueue(int(line)).id, flush=True)
"""


class Old:
    """Commands of the old version, in a folder with an app."""

    def __init__(self, folder: Path, url: str, *, python: Path = Path(sys.executable), path: str = "") -> None:
        self.folder, self._python, self.url = folder, python, url
        kept = {name: text for name, text in os.environ.items() if not name.startswith("OUTLIVE_")}
        self._environ = {**kept, "PYTHONPATH": f"{path}{folder}", "OUTLIVE_DATABASE_URL": url} | SLOW_HEARTBEAT
        (folder / "upgraded.py").write_text(APP)

    def python(self, *words: str, log: Path | None = None) -> "subprocess.Popen[str]":
        with (log or Path(os.devnull)).open("wb") as output:
            return subprocess.Popen(
                [self._python, *words],
                cwd=self.folder,
                env=self._environ,
                text=True,
                stdin=subprocess.PIPE,
                stdout=output if log else subprocess.PIPE,
                stderr=subprocess.STDOUT if log else subprocess.PIPE,
            )


def unpack_old(folder: Path, part: str) -> None:
    archive = subprocess.run(["git", "archive", LAST_OF_VERSION_1, part], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the commit {LAST_OF_VERSION_1[:7]} is not at hand: this is no clone with its history")
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)


@pytest.fixture
def running() -> Iterator[list["subprocess.Popen[str]"]]:
    with started() as commands:
        yield commands


def test_an_upgrade_waits_for_old_workers_and_lets_old_clients_go_on(running, empty_database_url, tmp_path, start):
    unpack_old(tmp_path, "src")
    upgrade(Old(tmp_path, empty_database_url, path=f"{tmp_path / 'src'}:"), running, start)


@pytest.fixture(scope="module")
def python_of_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel of 0.1."""
    folder = tmp_path_factory.mktemp("old")
    unpack_old(folder, ".")
    return install(folder / "built", sys.executable, source=folder)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("major", releases.SUPPORTED)
def test_the_wheel_of_0_1_is_upgraded_on_postgres(
    major: int, python_of_wheel: Path, running: list["subprocess.Popen[str]"], tmp_path: Path, start: Start
) -> None:
    with releases.brought(major) as programs, releases.server(programs) as url:
        upgrade(Old(tmp_path, url, python=python_of_wheel), running, start)
        with psycopg.connect(url) as connection:
            print(f"PostgreSQL {connection.execute('show server_version').fetchone()[0]}")  # type: ignore[index]


def upgrade(old: Old, running: list["subprocess.Popen[str]"], start: Start) -> None:
    assert ended(old.python("-m", "outlive", "migrate", "--roles")).code == 0
    log = old.folder / "old worker.log"
    worker = old.python("-m", "outlive", "worker", "upgraded:app", "--name", "old one", log=log)
    client = old.python("-c", CLIENT)
    running += [worker, client]

    def enqueue(n: int) -> str:
        assert client.stdin
        assert client.stdout
        print(n, file=client.stdin, flush=True)
        return client.stdout.readline().strip()

    def refused() -> str:
        answer = Cli(old.url)("migrate")
        assert answer.code == 5
        return answer.err

    with Queue.at(old.url) as connection:
        jobs = [enqueue(1)]
        assert ended(old.python("-m", "outlive", "enqueue", "upgraded:app", "wait")).code == 0
        eventually(lambda: connection.values("select 1 from outlive.running") == [1], within_s=30, what="wait runs")
        assert "workers run that need schema version 1: old one on " in refused()
        jobs.append(enqueue(2))
        connection.execute("update outlive.workers set last_seen = last_seen - interval '5 minutes'")
        assert "(its heartbeat is late, but its session lives: process " in refused()

        worker.terminate()
        assert ended(worker).code == 0
        jobs.append(enqueue(3))
        assert Cli(old.url)("migrate").code == 0
        jobs.append(enqueue(4))
        late = ended(old.python("-m", "outlive", "worker", "upgraded:app"))
        assert (late.code, "newer than 1: upgrade outlive here" in late.err) == (5, True)

        start(target="upgraded:app", url=old.url, folder=old.folder)
        ends = "select result::text from outlive.attempts where job_id = any(%s::uuid[]) and outcome = 'succeeded'"
        eventually(lambda: sorted(connection.values(ends, jobs)) == ["2", "4", "6", "8"], within_s=30, what="all end")
        waiting = "select count(*) from outlive.running r join outlive.jobs j using (id) where j.task = 'upgraded.wait'"
        eventually(lambda: connection.values(waiting) == [1], within_s=30, what="wait runs again")
