"""Faults of clocks: of a worker, of the database, and of everything at once. The number is the fault's."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from outlive import db
from outlive.config import Config
from outlive.pytest.clock import Clock as ReplacedClock
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.session import Session
from tests import faults
from tests.driving import making
from tests.driving.commands import Cli, ended
from tests.driving.jobs import begun
from tests.driving.scraping import ANY_PORT, get, place_in
from tests.driving.workers import ROOT
from tests.matrix.asking import all_end_once, dead_workers, outcomes
from tests.matrix.clocks import Clock
from tests.matrix.servers import Server
from tests.waiting import eventually

T = TypeVar("T")
SHORT = {"heartbeat_s": "0.5", "stale_s": "1.5", "dead_s": "3", "lease_s": "3", "renew_s": "0.5", "sweep_s": "0.5"}


def pass_time(seconds: float) -> None:
    """Wait, so that a fault has time to show."""
    since = time.monotonic()
    eventually(lambda: time.monotonic() - since > seconds, within_s=seconds + 60)


@pytest.mark.long
@pytest.mark.fault(24)
def test_a_workers_clock_that_is_an_hour_wrong_or_jumps_changes_nothing(start, queue, database_url, tmp_path):
    clocks = [Clock(tmp_path / name) for name in ("ahead", "behind")]
    clocks[0].jump("+3600")
    clocks[1].jump("-3600")
    workers = [start(within=clock.shown_to_python(), slots=2, wait=False, **SHORT) for clock in clocks]
    names = ["first", "second"]
    held = [faults.wait_for.enqueue(str(tmp_path / name)) for name in names]
    for worker in workers:
        worker.started()
    for name in names:
        begun(tmp_path / name, within_s=30)
    quick = [faults.add.using(delay=0.5).enqueue(n, n) for n in range(4)]
    late = faults.hang.enqueue()
    all_end_once(database_url, quick)
    clocks[0].jump("-3600")
    clocks[1].jump("+3600")
    pass_time(float(SHORT["lease_s"]) + 1)
    for name in names:
        (tmp_path / name).touch()
    all_end_once(database_url, held)
    eventually(lambda: outcomes(database_url, late) == ["timed_out"])
    assert [outcomes(database_url, job) for job in held] == [["succeeded"]] * 2
    assert dead_workers(database_url) == 0
    assert not any("jumped" in worker.log() or "Dead worker" in worker.log() for worker in workers)


@pytest.mark.fault(25)
def test_a_jump_of_the_databases_clock_in_the_middle_of_a_sweep_ends_nothing(queue, database_url):
    clock = ReplacedClock(queue)

    class Jumping(Session):
        async def run(self, statement: db.Statement[T]) -> T:
            answer = await super().run(statement)
            if statement.name == "clock":
                clock.advance(3600)
            return answer

    async def sweep() -> None:
        session = Jumping(database_url)
        await Reaper(session, Config(), Alerts()).sweep()
        await session.close()

    queue.register_worker(making.WORKER)
    queue.make()
    queue.claim()
    asyncio.run(sweep())
    assert queue.count("running") == 1
    assert queue.values("select state from outlive.workers") == ["active"]


@pytest.fixture
def reaper(server: Server, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Runs `outlive reap` beside the workers, which has looked at the database; returns its log."""
    path = tmp_path / "reap.log"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OUTLIVE_DATABASE_URL": server.url}
    environ |= {f"OUTLIVE_{key.upper()}": value for key, value in {**SHORT, "metrics_listen": ANY_PORT}.items()}
    with path.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "outlive", "reap"], env=environ, stdout=output, stderr=output)
    eventually(lambda: "metrics and probes are at" in path.read_text(), within_s=30, what="it listens")
    place = place_in(path.read_text())
    eventually(lambda: get(place, "/readyz") == (200, "ok\n"), within_s=30, what="the database has answered it")
    yield path.read_text
    process.terminate()
    assert process.wait(20) == 0


@pytest.mark.fault(25)
def test_a_jump_of_the_databases_clock_is_logged_and_no_worker_is_declared_dead(clock, server, start, reaper, tmp_path):
    workers = [start(slots=1, **SHORT) for _ in range(2)]
    names = ["first", "second"]
    held = [faults.wait_for.enqueue(str(tmp_path / name)) for name in names]
    for name in names:
        begun(tmp_path / name, within_s=30)
    before = server.ask("select extract(epoch from now())")
    pass_time(1.5)  # Each reaper has looked at the clock before.
    clock.jump("+3600")
    assert server.ask("select extract(epoch from now()) > %s + 3600", before[0][0]) == [(True,)]
    said = [reaper, *(worker.log for worker in workers)]
    for log in said:
        eventually(lambda: "the database's clock jumped by 3600 s" in log(), what="the alarm")  # noqa: B023
    pass_time(float(SHORT["lease_s"]) + 1)
    once = ended(Cli(server.url).process("reap", "--once"))
    assert "0 attempts of dead workers ended" in once.out
    assert "can't notice a jump of the database clock" in once.out
    for name in names:
        (tmp_path / name).touch()
    all_end_once(server.url, held)
    assert [outcomes(server.url, job) for job in held] == [["succeeded"]] * 2
    assert dead_workers(server.url) == 0
    assert not any("Dead worker" in log() or "its lease expired" in log() for log in said)


SCALED = {"heartbeat_s": "1.5", "stale_s": "3", "dead_s": "6", "lease_s": "15", "renew_s": "1", "sweep_s": "1"}
"""A twentieth of the defaults."""


def freeze(pids: Sequence[int], seconds: float) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        pass_time(seconds)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.fault(26, 68)
@pytest.mark.parametrize(
    ("frozen_s", "settings"),
    [(8.0, SCALED), pytest.param(180.0, {}, marks=[pytest.mark.long, pytest.mark.timeout(500)])],
    ids=["short", "exact"],
)
def test_everything_frozen_for_a_while_goes_on_where_it_was(server, start, tmp_path, frozen_s, settings):
    """Nothing is charged for the time in which the supervisors did not run."""
    workers = [start(slots=2, **settings) for _ in range(2)]
    held = [
        faults.wait_for.using(timeout="7s", max_attempts=1).enqueue(str(tmp_path / "timeout")),
        faults.wait_for.using(stall="7s", max_attempts=1).enqueue(str(tmp_path / "stall")),
    ]
    for name in ("timeout", "stall"):
        begun(tmp_path / name)
    jobs = faults.app.enqueue_many(faults.work_a_little.job(n) for n in range(300))
    freeze([pid for worker in workers for pid in (worker.pid, *worker.tree())] + server.tree(), frozen_s)
    for name in ("timeout", "stall"):
        (tmp_path / name).touch()
    all_end_once(server.url, [*held, *jobs])
    assert server.ask("select count(*) from outlive.attempts where outcome <> 'succeeded'") == [(0,)]
    assert dead_workers(server.url) == 0
    assert not any("Dead worker" in worker.log() for worker in workers)


@pytest.mark.fault(26)
@pytest.mark.long
def test_everything_frozen_for_longer_than_a_lease_finishes_nothing_twice(server, start, tmp_path):
    """Jobs that were running may run again, because a freeze looks like a death."""
    workers = [start(slots=2, **SHORT) for _ in range(2)]
    held = [faults.wait_for.enqueue(str(tmp_path / name)) for name in ("first", "second")]
    for name in ("first", "second"):
        begun(tmp_path / name, within_s=30)
    jobs = faults.app.enqueue_many(faults.work_a_little.job(n) for n in range(300))
    freeze([pid for worker in workers for pid in (worker.pid, *worker.tree())] + server.tree(), 4)
    for name in ("first", "second"):
        (tmp_path / name).touch()
    all_end_once(server.url, [*held, *jobs])
