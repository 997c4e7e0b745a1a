"""Faults at each boundary of what a durable job asks the database for: to keep a step, to wait, to go on, `once`."""

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outlive import Job, config, linux
from outlive.errors import OutliveError
from tests.driving.workers import Start, Worker, freeze
from tests.matrix.servers import Server
from tests.processes.suspending import Packed, app, voyage
from tests.proxy import Boundary, Link, Proxy, Side
from tests.waiting import eventually

TARGET = "tests.processes.suspending:app"
WITHIN_S = 60.0
STATEMENTS = {
    "keep": "insert into outlive.steps as s",
    "once": "outlive.once(",
    "effect": "insert into ledger",
    "suspend": "outlive.suspend(",
    "resume": "h.parked_by = $1::uuid and h.why = 'suspended'",
    "send": "outlive.send(",
}
Point = tuple[str, int, Side]
"""A statement, which one of its kind it is, and the side."""
# A job suspends itself to sleep, to receive and to gather.
TIMES = {"keep": 1, "once": 1, "effect": 1, "commit": 1, "suspend": 3, "resume": 3, "send": 1}
POINTS: list[Point] = [(name, n, side) for name, times in TIMES.items() for n in range(1, times + 1) for side in Side]
FAULTS = ("child", "zygote", "supervisor", "server", "frozen")


@dataclass
class Trial:
    """A worker behind a proxy, an heir beside it, and a fault at one boundary of one job."""

    fault: str
    server: Server
    start: Start
    folder: Path
    heir: Worker
    worker: Worker | None = None
    point: Point | None = None
    struck: bool = False
    notes: Path = Path()
    _passed: Counter[tuple[str, Side]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _of_once: Link | None = None

    def at(self, boundary: Boundary) -> None:
        name = next((name for name, part in STATEMENTS.items() if part in boundary.text), "")
        if name == "once":
            self._of_once = boundary.link
        if boundary.text.lower() == "commit" and boundary.link is self._of_once:
            name = "commit"
        with self._lock:
            if self.struck or self.point is None:
                return
            self._passed[name, boundary.side] += 1
            self.struck = self.point == (name, self._passed[name, boundary.side], boundary.side)
        if self.struck:
            self._strike(name, boundary.link)

    def _strike(self, name: str, link: Link) -> None:
        assert self.worker
        match self.fault:
            case "child":
                linux.kill(int(self.notes.read_text().split()[-1]), signal.SIGKILL)
            case "zygote":
                os.kill(self.worker.zygote(), signal.SIGKILL)
            case "supervisor":
                os.kill(self.worker.pid, signal.SIGKILL)
                if name in ("keep", "suspend", "resume"):  # Its own session.
                    link.cut()
            case "server":
                self.server.stop(signal.SIGQUIT)
                self.server.start()
            case _:
                self._freeze_past_lease(self.worker)
        self.heir.send(signal.SIGCONT)

    def _freeze_past_lease(self, worker: Worker) -> None:
        """The statement, or its answer, stands still until the heir has the job. Then all goes on, too late."""
        tree = [worker.pid, *worker.tree()]
        freeze(tree)
        running = "select token from outlive.running where worker = %s"
        lost = self.server.ask(running, worker.id)
        expire = "update outlive.running set lease_until = '2000-01-01Z' where token = any(array("
        self.server.ask(f"{expire}{running} for update skip locked))", worker.id)
        self.heir.send(signal.SIGCONT)
        with contextlib.suppress(AssertionError):  # An open transaction of the job holds its row.
            eventually(lambda: not set(lost) & set(self.server.ask(running, worker.id)), within_s=3)
        for pid in reversed(tree):
            linux.kill(pid, signal.SIGCONT)

    def begin(self, proxy: Proxy, point: Point, place: int) -> Job[Any]:
        """Enqueue the job, while only the worker behind the proxy runs."""
        self.point = None
        if self.worker is None or self.worker.process.poll() is not None:
            self.worker = self.start(url=proxy.url, slots=2, target=TARGET, jobs_see_database_url="true")
        self.heir.send(signal.SIGSTOP)
        self.notes = self.folder / f"notes-{place}"
        self._passed.clear()
        self.struck, self.point = False, point
        return voyage.enqueue(str(self.notes))


def ask(server: Server, query: str, *values: object) -> list[tuple[object, ...]]:
    """The rows, or none while the server is away."""
    with contextlib.suppress(psycopg.OperationalError):
        return server.ask(query, *values)
    return []


def send(server: Server, proxy: Proxy, job: Job[Any]) -> bool:
    """Send the signal, unless the job has it: the answer to an earlier try may be lost."""
    kept = "select from outlive.steps where job_id = %s and name = 'receive:packed'"
    with contextlib.suppress(psycopg.OperationalError, OutliveError):
        if not server.ask(kept, job.id):
            with psycopg.connect(proxy.url) as connection:
                job.send("packed", Packed([1, 2]), connection=connection)
        return True
    return False


def some(fault: str, most: int | None) -> list[Point]:
    """So many of the points. Those of the other faults are others."""
    if most is None:
        return POINTS
    first = FAULTS.index(fault)
    return [POINTS[(first + len(POINTS) * place // most) % len(POINTS)] for place in range(most)]


@pytest.fixture(autouse=True)
def _own_app(database_url: str) -> Iterator[None]:
    app.configure(config.load(flags={"database_url": database_url}))
    yield
    app.configure(None)


@pytest.mark.fault(3)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.long)])
def test_a_durable_job_does_each_thing_once_whatever_dies_at_a_statements_boundary(
    server, start, tmp_path, fault, most
):
    server.ask("create table ledger (job uuid)")
    heir = start(slots=2, target=TARGET, sweep_s="0.5", jobs_see_database_url="true")
    trial = Trial(fault, server, start, tmp_path, heir)
    with Proxy(server.url, tmp_path, at_boundary=trial.at) as proxy:
        for place, point in enumerate(some(fault, most)):
            job = trial.begin(proxy, point, place)
            what = f"{fault} {point[2].value} {point[0]} {point[1]}"
            waits = "select from outlive.held where id = %s and signal = 'packed'"
            eventually(lambda: ask(server, waits, job.id), within_s=WITHIN_S, what=f"{what}: it waits")  # noqa: B023
            eventually(lambda: send(server, proxy, job), within_s=WITHIN_S, what=f"{what}: it is sent")  # noqa: B023
            done = "select from outlive.attempts where job_id = %s and state = 'succeeded'"
            eventually(lambda: ask(server, done, job.id), within_s=WITHIN_S, what=f"{what}: it succeeds")  # noqa: B023
            assert trial.struck, what
            assert job.result(timeout=10) == [700, "label 1", "label 2"], what
            assert server.ask("delete from ledger returning job") == [(job.id,)], what
            assert server.ask("delete from outlive.jobs where task like '%.label' returning 1") == [(1,)] * 2, what
            charged = [line.split()[0] for line in trial.notes.read_text().splitlines()].count("charge")
            assert charged == 1 or (charged == 2 and point[0] == "keep"), what
            left = (
                "select from outlive.running union all select from outlive.waiting union all select from outlive.held"
            )
            assert server.ask(f"{left} union all select from outlive.signals") == [], what
        assert trial.worker
        trial.worker.stop()
