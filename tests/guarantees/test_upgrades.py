"""Upgrades without a stop: workers and clients of the version before go on while a schema that serves them is there."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import outlive
from outlive import migrate
from tests import faults
from tests.driving.making import Queue
from tests.driving.workers import ROOT
from tests.waiting import eventually

NEXT = migrate.VERSION + 1
ADDS = """
alter table outlive.jobs add column note text;
alter table outlive.attempts add column note text;
alter table outlive.workers add column note text;
create index jobs_by_note on outlive.jobs (note) where note is not null;
create function outlive.note_of(job uuid) returns text language sql stable
return (select j.note from outlive.jobs j where j.id = job);
"""
"""What an upgrade may do beside workers of the version before."""


@pytest.fixture
def following(tmp_path: Path) -> Path:
    """The sources of a version after this one, whose schema serves this one."""
    made = tmp_path / "next"
    shutil.copytree(ROOT / "src" / "outlive", made / "outlive", ignore=shutil.ignore_patterns("__pycache__"))
    (made / f"outlive/sql/upgrades/{NEXT:04}.sql").write_text(ADDS)
    version = made / "outlive/sql/schema/version.sql"
    version.write_text(version.read_text().replace(f"({migrate.VERSION}, ", f"({NEXT}, "))
    return made


@contextmanager
def enqueueing(jobs: list[outlive.Job[int]]) -> Iterator[None]:
    """A client of this version goes on enqueueing."""
    ended = threading.Event()

    def enqueue() -> None:
        while not ended.is_set():
            jobs.append(faults.work_a_little.enqueue(len(jobs)))

    client = threading.Thread(target=enqueue)
    client.start()
    try:
        yield
    finally:
        ended.set()
        client.join()


def upgrade(database_url: str, sources: Path) -> str:
    environ = {**os.environ, "PYTHONPATH": str(sources), "OUTLIVE_DATABASE_URL": database_url}
    command = [sys.executable, "-m", "outlive", "migrate"]
    done = subprocess.run(command, env=environ, cwd="/", text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def succeeded(queue: Queue) -> int:
    return int(queue.value("select count(*) from outlive.attempts where state = 'succeeded'"))


@pytest.mark.long
def test_a_schema_that_serves_the_version_before_is_installed_while_that_works_and_is_killed(
    start, queue, database_url, following
):
    newer = ["env", f"PYTHONPATH={following}:{ROOT}"]
    jobs: list[outlive.Job[int]] = []
    old = [start(), start()]
    with enqueueing(jobs):
        eventually(lambda: succeeded(queue) > 20, within_s=30, what="workers of this version work")
        assert upgrade(database_url, following) == f"schema version {migrate.VERSION} is now {NEXT}"
        before = succeeded(queue)
        eventually(lambda: succeeded(queue) > before + 20, within_s=30, what="they go on")
        new = [start(within=newer)]
        old[0].kill()
        new.append(start(within=newer))
        old.append(start())  # One of this version may still start, too.
        new[0].kill()
        before = succeeded(queue)
        eventually(lambda: succeeded(queue) > before + 20, within_s=30, what="both versions work")
    assert old[1].stop(signal.SIGTERM) == 0
    eventually(lambda: succeeded(queue) == len(jobs), within_s=60, what="all are done")
    assert {job.result(timeout=20) for job in jobs} == set(range(len(jobs)))
    assert queue.values("select distinct outcome from outlive.attempts where crashes + failures > 0") == []
    assert queue.values("select why from outlive.held") == []
