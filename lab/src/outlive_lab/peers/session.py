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
from pathlib import Path
from typing import Any
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from outlive import db
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


def measure(system: System, mode: Mode, place: Place, amounts: Amounts) -> dict[str, float]:
    """The figures of one session: `drain`, and those that the mode also names."""
    if system.store == "Redis" and place.redis is None:
        raise Failed("redis-server is not installed: apt install redis-server")
    bin_directory = environments.programs(system)
    count = max(2 * MARKS, int(mode.jobs * amounts.part))
    figures: dict[str, float] = {}
    with temporary_home("peer") as home, database(place.admin, place.postgres, system.name) as postgres:
        environment = worker_environment(postgres) | {
            "PATH": f"{bin_directory}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(DRIVERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PEER_POSTGRES": as_url(postgres),
            "PEER_REDIS": place.redis or "",
            "RQ_REDIS_URL": place.redis or "",
            "PEER_MARK": str(count // MARKS),
            "PEER_SOCKET": str(home / "marks"),
            **mode.environment,
        }
        with driving(system, bin_directory, environment, home) as driver:
            driver.ask("install")
            bulk = driver.ask("load", count=count)["bulk_per_s"]
            with ExitStack() as stack:
                program, *words = shlex.split(mode.command)
                workers = [
                    stack.enter_context(
                        started([str(bin_directory / program), *words], environment=environment, directory=home)
                    )
                    for _ in range(mode.workers)
                ]
                figures["drain"] = driver.ask("drain", workers, count=count)["per_s"]
                if "pick-up" in mode.also:
                    waited_ms = driver.ask("pick_up", workers, times=amounts.pickups)["waited_ms"]
                    figures["p50"] = statistics.median(waited_ms)
                    figures["p99"] = statistics.quantiles(waited_ms, n=100, method="inclusive")[-1]
            if "bulk" in mode.also:
                figures["bulk"] = bulk
            if "one" in mode.also:
                figures["one"] = driver.ask("one_by_one", seconds=amounts.seconds)["per_s"]
            if "bare" in mode.also:
                figures["bare"] = driver.ask("bare", seconds=amounts.seconds)["per_s"]
            if "commands" in mode.also:
                for name, words in (("jobs", ["jobs", "--state", "failed"]), ("stats", ["stats"])):
                    figures[name] = statistics.median(command_s(postgres, *words) for _ in range(COMMAND_TIMES))
    return figures


def as_url(conninfo: str) -> str:
    """The address as a URL, which clients other than libpq need."""
    parts = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    query = "&".join(f"{key}={quote(value, safe='')}" for key, value in parts.items() if key != "dbname")
    return f"postgresql:///{parts['dbname']}?{query}"


class Driver:
    """The process that enqueues a system's jobs and takes the times. It answers each request with a line of JSON."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Callable[[], str]) -> None:
        self._process, self._errors = process, errors

    def ask(self, what: str, workers: list[Program] | None = None, **arguments: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"the driver ended: {self._errors()}") from None
        deadline = time.monotonic() + ANSWER_S
        while not select.select([self._process.stdout], [], [], 0.5)[0]:
            for worker in workers or []:
                worker.expect_alive()
            if time.monotonic() > deadline:
                raise Failed(f"{what} took longer than {ANSWER_S:.0f} s")
        if not (line := self._process.stdout.readline()):
            raise Failed(f"the driver ended: {self._errors()}")
        return parsed(line)


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
