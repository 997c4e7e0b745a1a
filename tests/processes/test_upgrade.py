"""The upgrade from version 1 of the schema, beside a worker and a client of the last commit that had it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlive import db
from tests.driving.commands import Cli, ended, started
from tests.driving.making import values
from tests.driving.workers import ROOT, Start
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
CLIENT = """
import sys

import upgraded

for line in sys.stdin:
    print(upgraded.double.enqueue(int(line)).id, flush=True)
"""


class Old:
    """Commands of the old version, which a folder holds."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        kept = {name: text for name, text in os.environ.items() if not name.startswith("OUTLIVE_")}
        self.environ = {**kept, "PYTHONPATH": f"{folder / 'src'}:{folder}", "OUTLIVE_DATABASE_URL": url}

    def python(self, *words: str, log: Path | None = None) -> "subprocess.Popen[str]":
        with (log or Path(os.devnull)).open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                env=self.environ,
                text=True,
                stdin=subprocess.PIPE,
                stdout=output if log else subprocess.PIPE,
                stderr=subprocess.STDOUT if log else subprocess.PIPE,
            )


@pytest.fixture
def old(tmp_path: Path, empty_database_url: str) -> Old:
    archive = subprocess.run(["git", "archive", LAST_OF_VERSION_1, "src"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the commit {LAST_OF_VERSION_1[:7]} is not at hand: this is no clone with its history")
    subprocess.run(["tar", "-x"], cwd=tmp_path, input=archive.stdout, check=True)
    (tmp_path / "upgraded.py").write_text(APP)
    return Old(tmp_path, empty_database_url)


@pytest.fixture
def running() -> Iterator[list["subprocess.Popen[str]"]]:
    with started() as commands:
        yield commands


def test_an_upgrade_waits_for_old_workers_and_lets_old_clients_go_on(
    old: Old, running: list["subprocess.Popen[str]"], empty_database_url: str, tmp_path: Path, start: Start
) -> None:
    assert ended(old.python("-m", "outlive", "migrate")).code == 0
    worker = old.python("-m", "outlive", "worker", "upgraded:app", "--name", "old one", log=tmp_path / "worker.log")
    client = old.python("-c", CLIENT)
    running += [worker, client]

    def enqueue(n: int) -> str:
        assert client.stdin
        assert client.stdout
        print(n, file=client.stdin, flush=True)
        return client.stdout.readline().strip()

    with db.connect(empty_database_url) as connection:
        jobs = [enqueue(1)]
        assert ended(old.python("-m", "outlive", "enqueue", "upgraded:app", "wait")).code == 0
        eventually(lambda: values(connection, "select 1 from outlive.running") == [1], within_s=30, what="wait runs")

        refused = Cli(empty_database_url)("migrate")
        assert refused.code == 5
        assert "workers run that need schema version 1: old one on " in refused.err
        jobs.append(enqueue(2))

        worker.terminate()
        assert ended(worker).code == 0
        jobs.append(enqueue(3))
        assert Cli(empty_database_url)("migrate").code == 0
        jobs.append(enqueue(4))
        late = ended(old.python("-m", "outlive", "worker", "upgraded:app"))
        assert (late.code, "newer than 1: upgrade outlive here" in late.err) == (5, True)

        start(target="upgraded:app", url=empty_database_url, folder=old.folder)
        ends = "select result::text from outlive.attempts where job_id = any(%s::uuid[]) and outcome = 'succeeded'"
        eventually(lambda: sorted(values(connection, ends, jobs)) == ["2", "4", "6", "8"], within_s=30, what="all end")
        waiting = "select count(*) from outlive.running r join outlive.jobs j using (id) where j.task = 'upgraded.wait'"
        eventually(lambda: values(connection, waiting) == [1], within_s=30, what="wait runs again")
