"""A worker under test: `outlive worker` in a process of its own, on the loaded database."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outlive import kernel
from outlive.config import Config
from outlive.errors import OutliveError
from outlive.lab.bench import jobs
from outlive.lab.bench.run import Run
from outlive.lab.bench.stock import Stock
from outlive.lab.demo.process import LOG, expect_alive, worker

SMALL = "outlive.lab.bench.jobs:app"
HEAVY = "outlive.lab.bench.heavy:app"
LOOK_S = 0.2
START_S = 20.0
LEAST_PER_S = 50
"""A worker that is slower than this is given up."""

# Of all jobs that are there; those that succeeded are the healthy ones.
_RATE = """
select count(*), extract(epoch from max(ended_at) - (select min(started_at) from outlive.attempts))::float8
from outlive.attempts where outcome = 'succeeded'
"""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that is ready, and what can be done with it."""

    run: Run
    process: subprocess.Popen[bytes]
    directory: Path

    def drain(self, *stocks: Stock) -> float:
        """Put these jobs there, all at once, and see how many a second succeed, by the database's clock."""
        clear(self.run)
        with self.run.databases.loaded.connection.transaction():
            for stock in stocks:
                stock.put(self.run.databases.loaded.connection)
        return self.rate(sum(stock.count for stock in stocks))

    def rate(self, count: int) -> float:
        """Wait until nothing is left; how many succeeded a second, from the first claim to the last success."""
        self.wait(count)
        row = self.run.databases.loaded.connection.execute(_RATE).fetchone()
        if row is None or not row[0]:
            raise OutliveError("the worker has finished no job")
        return float(row[0] / max(row[1], 1e-6))

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + START_S + count / LEAST_PER_S
        while self._left():
            expect_alive(self.process, self.directory)
            if time.monotonic() > deadline:
                raise OutliveError(f"the worker does not come to an end: {self._where()}")
            time.sleep(LOOK_S)
        expect_alive(self.process, self.directory)

    def _left(self) -> bool:
        row = self.run.databases.loaded.connection.execute(
            "select exists (select from outlive.waiting) or exists (select from outlive.running)"
        ).fetchone()
        return row is not None and bool(row[0])

    def _where(self) -> str:
        """What is left, and what the worker says."""
        row = self.run.databases.loaded.connection.execute(
            "select (select count(*) from outlive.waiting), (select count(*) from outlive.running)"
        ).fetchone()
        said = (self.directory / LOG).read_text(errors="replace")[-1000:]
        return f"{row[0] if row else 0} jobs wait, {row[1] if row else 0} run; its log ends with {said!r}"

    def memory_mb(self) -> float:
        """What the supervisor has in memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6

    def child_mb(self) -> float:
        """What an idle child has beyond what it shares with its parent, and that with the zygote."""
        parents = [parent for zygote in kernel.children_of(self.process.pid) for parent in kernel.children_of(zygote)]
        children = [child for parent in parents for child in kernel.children_of(parent)]
        return statistics.median(_private_bytes(child) for child in children) / 1e6


def _private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def clear(run: Run) -> None:
    """Have no job in the loaded database."""
    run.databases.loaded.content = ""
    run.databases.loaded.hold("worker", [])


@contextmanager
def working(run: Run, target: str, *, slots: int) -> Iterator[Worker]:
    """A worker that has run its first jobs."""
    clear(run)
    loaded = run.databases.loaded
    jobs.app.configure(Config(database_url=loaded.url))
    with tempfile.TemporaryDirectory(prefix="outlive-bench-worker-") as name:
        directory = Path(name)
        with worker(target, url=loaded.url, slots=slots, directory=directory) as process:
            ready = Worker(run, process, directory)
            try:
                jobs.app.enqueue_many([jobs.fresh.job("", n) for n in range(2 * slots)])
                ready.wait(2 * slots)
                yield ready
            finally:
                jobs.app.connections.close()
                loaded.content = ""
