"""One session: one system in one mode, in an empty database. Its driver fills the queue, and its workers empty it."""

from __future__ import annotations

import json
import os
import select
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from outlive import db, linux
from outlive.errors import OutliveError
from outlive.temporary.program import Program, dying_with_this, started, worker_environment
from outlive.temporary.server import temporary_home
from outlive_lab.bench.databases import database
from outlive_lab.bench.worker import command_s
from outlive_lab.peers import environments
from outlive_lab.peers.plan import Mode, System

DRIVERS = Path(__file__).with_name("drivers")
MARKS = 10
"""How many jobs of a session say when they begin; the clock starts with the second of them."""
ANSWER_S = 90.0
COMMAND_TIMES = 3


class Failed(OutliveError):
    """A session that gave no figures. The text says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where all sessions happen."""

    admin: db.Connection
    postgres: str
    redis: str | None


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much a session measures: a part of each mode's jobs, seconds of enqueueing, and how many pick-ups."""

    part: float
    seconds: float
    pickups: int


@dataclass(frozen=True, slots=True)
class Session:
    """A system in an empty database. Its workers don't run yet."""

    driver: Driver
    mode: Mode
    postgres: str
    programs: Path
    environment: Mapping[str, str]
    home: Path

    @contextmanager
    def working(self) -> Iterator[list[Program]]:
        program, *words = shlex.split(self.mode.command)
        words = [str(self.programs / program), *words]
        with ExitStack() as stack:
            start = partial(started, words, environment=self.environment, directory=self.home)
            yield [stack.enter_context(start()) for _ in range(self.mode.workers)]


@contextmanager
def opened(system: System, mode: Mode, place: Place, *, mark: int) -> Iterator[Session]:
    if system.store == "Redis" and place.redis is None:
        raise Failed("redis-server is not installed: apt install redis-server")
    bin_directory = environments.programs(system)
    with temporary_home("peer") as home, database(place.admin, place.postgres, system.name) as postgres:
        environment = worker_environment(postgres) | {
            "PATH": f"{bin_directory}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(DRIVERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PEER_POSTGRES": as_url(postgres),
            "PEER_REDIS": place.redis or "",
            "RQ_REDIS_URL": place.redis or "",
            "PEER_MARK": str(mark),
            "PEER_SOCKET": str(home / "marks"),
            **mode.environment,
        }
        with driving(system, bin_directory, environment, home) as driver:
            driver.ask("install")
            yield Session(driver, mode, postgres, bin_directory, environment, home)


def measure(system: System, mode: Mode, place: Place, amounts: Amounts) -> dict[str, float]:
    """The figures of one session: `drain`, and those that the mode also names."""
    count = max(2 * MARKS, int(mode.jobs * amounts.part))
    figures: dict[str, float] = {}
    with opened(system, mode, place, mark=count // MARKS) as session:
        driver = session.driver
        bulk = driver.ask("load", count=count)["bulk_per_s"]
        with session.working() as workers:
            figures["drain"] = driver.ask("drain", workers, count=count)["per_s"]
            if "pick-up" in mode.also:
                waited_ms = driver.ask("pick_up", workers, times=amounts.pickups)["waited_ms"]
                figures |= _percentiles(waited_ms)
        if "bulk" in mode.also:
            figures["bulk"] = bulk
        if "one" in mode.also:
            figures["one"] = driver.ask("one_by_one", seconds=amounts.seconds)["per_s"]
        if "bare" in mode.also:
            figures["bare"] = driver.ask("bare", seconds=amounts.seconds)["per_s"]
        if "commands" in mode.also:
            for name, words in (("jobs", ["jobs", "--state", "failed"]), ("stats", ["stats"])):
                figures[name] = statistics.median(command_s(session.postgres, *words) for _ in range(COMMAND_TIMES))
    return figures


def wait(system: System, mode: Mode, place: Place, count: int) -> dict[str, float]:
    """Jobs that wait, beside each other: how long all take, how soon they begin, and the memory of the workers."""
    with opened(system, mode, place, mark=count) as session, session.working() as workers:
        found = session.driver.ask("wait", workers, within_s=3 * ANSWER_S, count=count)
        return {"took": found["took_s"], "memory": found["most_mb"], **_percentiles(found["waited_ms"])}


def _percentiles(waited_ms: list[float]) -> dict[str, float]:
    last = statistics.quantiles(waited_ms, n=100, method="inclusive")[-1]
    return {"p50": statistics.median(waited_ms), "p99": last}


def as_url(conninfo: str) -> str:
    """The address as a URL, which clients other than libpq need."""
    parts = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    query = "&".join(f"{key}={quote(value, safe='')}" for key, value in parts.items() if key != "dbname")
    return f"postgresql:///{parts['dbname']}?{query}"


class Driver:
    """The process that enqueues a system's jobs and takes the times. It answers each request with a line of JSON."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Callable[[], str]) -> None:
        self._process, self._errors = process, errors

    def ask(
        self, what: str, workers: list[Program] | None = None, *, within_s: float = ANSWER_S, **arguments: object
    ) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"the driver ended: {self._errors()}") from None
        deadline = time.monotonic() + within_s
        most_mb = 0.0
        while not select.select([self._process.stdout], [], [], 0.5)[0]:
            for worker in workers or []:
                worker.expect_alive()
            most_mb = max(most_mb, sum(memory_mb(worker.process.pid) for worker in workers or []))
            if time.monotonic() > deadline:
                raise Failed(f"{what} took longer than {within_s:.0f} s")
        if not (line := self._process.stdout.readline()):
            raise Failed(f"the driver ended: {self._errors()}")
        return parsed(line) | {"most_mb": most_mb}


def memory_mb(pid: int) -> float:
    """The memory of a process and all below it. What several of them share counts once."""
    found = 0
    for one in (pid, *linux.descendants_of(pid)):
        lines = linux.read(f"/proc/{one}/smaps_rollup").splitlines()
        found += sum(int(line.split()[1]) for line in lines if line.startswith(b"Pss:"))
    return found * 1024 / 1e6


def parsed(line: bytes) -> dict[str, Any]:
    """The answer of a driver. Raises its error, if it has one."""
    try:
        answer = json.loads(line)
    except ValueError:
        raise Failed(f"the driver said {line[:200]!r}") from None
    if "error" in answer:
        raise Failed(answer["error"])
    return dict(answer)


@contextmanager
def driving(system: System, bin_directory: Path, environment: Mapping[str, str], home: Path) -> Iterator[Driver]:
    with tempfile.TemporaryFile(dir=home) as errors:
        process = subprocess.Popen(
            dying_with_this([str(bin_directory / "python"), "-m", "driving", system.driver]),
            env=dict(environment),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )

        def last_error() -> str:
            process.wait(5.0)
            errors.seek(0)
            return errors.read().decode(errors="replace").strip().rpartition("\n")[2]

        try:
            yield Driver(process, last_error)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
