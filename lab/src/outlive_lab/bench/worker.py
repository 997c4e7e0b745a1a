"""Workers under test: `outlive worker` as README has it, on the loaded database.

Their log lines go through a pipe that is read, as a service manager reads it. A figure with other options says so.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import LiteralString

from outlive import linux
from outlive.config import Config
from outlive.errors import OutliveError
from outlive.temporary.program import Program, started, worker_environment, worker_words
from outlive.temporary.server import temporary_home
from outlive_lab.bench import jobs
from outlive_lab.bench.databases import Database
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock

SMALL = "outlive_lab.bench.jobs:app"
HEAVY = "outlive_lab.bench.heavy:app"
POLL_S = 0.2
GLANCE_S = 0.02
START_S = 20.0
LEAST_PER_S = 50
"""The bench gives up on a worker that is slower than this."""

# Of all jobs in the database. Jobs that kill never succeed.
_RATE = """
select count(*), extract(epoch from max(ended_at) - (select min(started_at) from outlive.attempts))::float8
from outlive.attempts where outcome = 'succeeded'
"""
_ENDED = "select count(*) from outlive.attempts where state = 'succeeded' and ended_at > %s and ended_at <= %s"
_LEFT = """
select (select count(*) from outlive.waiting) + (select count(*) from outlive.held where why = 'key'),
  (select count(*) from outlive.running)
"""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, or several with the same options."""

    database: Database
    programs: list[Program]

    def drain(self, stock: Stock) -> float:
        """Add the jobs in one transaction. Returns how many succeed per second, by the database's clock."""
        self.clear()
        stock.put(self.database.connection)
        return self.rate(stock.count)

    def rate(self, count: int) -> float:
        """Wait until no job is left. Returns the successes per second, from the first claim to the last success."""
        self.wait(count)
        [(succeeded, seconds)] = self.database.connection.execute(_RATE).fetchall()
        if not succeeded:
            raise OutliveError("the worker finished no job")
        return float(succeeded / max(seconds, 1e-6))

    def pace(self, seconds: float, stock: Stock | None = None) -> float:
        """Drain for some seconds, and leave the rest. Returns the successes per second, by the database's clock."""
        deadline = time.monotonic() + START_S
        started = self._clock()
        if stock is not None:
            stock.put(self.database.connection)
        while not self._ended(started, self._clock()):
            self.expect_alive()
            if time.monotonic() > deadline:
                raise OutliveError(f"the worker finishes no job; its log ends with {self.programs[0].tail()[-1000:]!r}")
            time.sleep(GLANCE_S)
        time.sleep(seconds / 4)
        began, deadline = self._clock(), time.monotonic() + seconds
        if not self._has_work():
            raise OutliveError("the jobs were done before the clock started: there must be more of them")
        while self._has_work() and time.monotonic() < deadline:
            time.sleep(GLANCE_S)
        ended = self._clock() if self._has_work() else self._last_end()
        return self._ended(began, ended) / (ended - began).total_seconds()

    def _has_work(self) -> bool:
        return self.database.connection.execute("select from outlive.waiting limit 1").fetchone() is not None

    def _last_end(self) -> datetime:
        self.wait(0)
        return self._time("select max(ended_at) from outlive.attempts where state = 'succeeded'")

    def _clock(self) -> datetime:
        return self._time("select clock_timestamp()")

    def _time(self, query: LiteralString) -> datetime:
        [(time,)] = self.database.connection.execute(query).fetchall()
        assert isinstance(time, datetime)
        return time

    def _ended(self, after: datetime, until: datetime) -> int:
        [(count,)] = self.database.connection.execute(_ENDED, [after, until]).fetchall()
        return int(count)

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + START_S + count / LEAST_PER_S
        while any(left := self.database.connection.execute(_LEFT).fetchall()[0]):
            if time.monotonic() > deadline:
                log = self.programs[0].tail()[-1000:]
                raise OutliveError(
                    f"the worker is too slow: {left[0]} jobs wait and {left[1]} run; its log ends with {log!r}"
                )
            self.expect_alive()
            time.sleep(POLL_S)
        self.expect_alive()

    def expect_alive(self) -> None:
        for program in self.programs:
            program.expect_alive()

    def clear(self) -> None:
        """Remove all jobs from the loaded database."""
        self.database.content = ""
        self.database.hold("worker", [])

    def memory_mb(self) -> float:
        """The resident memory of the supervisor."""
        return _kilobytes(self.programs[0].process.pid, "status", "VmRSS:") * 1024 / 1e6

    def child_mb(self) -> float:
        """The memory that an idle child does not share with its parent, which shares it with the zygote."""
        zygotes = linux.children_of(self.programs[0].process.pid)
        parents = [parent for zygote in zygotes for parent in linux.children_of(zygote)]
        children = [child for parent in parents for child in linux.children_of(parent)]
        return statistics.median(_kilobytes(child, "smaps_rollup", "Private_") for child in children) * 1024 / 1e6


def _kilobytes(pid: int, file: str, prefix: str) -> int:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(prefix))


def command_s(url: str, *words: str) -> float:
    """How long a command of outlive takes, from its start to its exit."""
    began_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "outlive", *words], env=worker_environment(url), check=True, stdout=subprocess.DEVNULL
    )
    return time.monotonic() - began_s


@contextmanager
def working(
    run: Run, target: str, *, slots: int, options: str = "", workers: int = 1, more: Mapping[str, str] | None = None
) -> Iterator[Worker]:
    """Workers that have run their first jobs, in a database without others. `more` goes into their environment."""
    Worker(run.loaded, []).clear()
    with starting(run, target, slots=slots, options=options, workers=workers, more=more) as ready:
        first = 2 * slots * workers
        jobs.app.enqueue_many([jobs.fresh.job("", n) for n in range(first)])
        ready.wait(first)
        yield ready


@contextmanager
def starting(
    run: Run, target: str, *, slots: int, options: str = "", workers: int = 1, more: Mapping[str, str] | None = None
) -> Iterator[Worker]:
    """Workers that have just been started."""
    loaded = run.loaded
    jobs.app.configure(Config(database_url=loaded.url))
    words = [*worker_words(target, slots=slots), *options.split()]
    environment = worker_environment(loaded.url) | dict(more or {})
    with temporary_home("bench-worker") as directory, ExitStack() as stack:
        stack.callback(jobs.app.connections.close)
        stack.callback(setattr, loaded, "content", "")
        some = [
            stack.enter_context(started(words, environment=environment, directory=directory)) for _ in range(workers)
        ]
        yield Worker(loaded, some)
