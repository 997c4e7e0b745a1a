"""Real workers on a database of the test's own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from outlive import config, kernel
from tests import faults
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """A worker process, its log, and its end."""

    def __init__(
        self,
        database_url: str,
        log: Path,
        *,
        slots: int,
        settings: dict[str, str],
        target: str,
        within: Sequence[str] = (),
        folder: Path = ROOT,
    ) -> None:
        self._log = log
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{folder}", "OUTLIVE_DATABASE_URL": database_url}
        environ |= {f"OUTLIVE_{key.upper()}": value for key, value in settings.items()}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "outlive", "worker", target, "--slots", str(slots)],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, text: str) -> bool:
        """Its lines are written a moment after they are logged."""
        return eventually(lambda: text in self.log(), within_s=5, what=f"the log has {text!r}")

    def started(self) -> "Worker":
        def there() -> bool:
            assert self.process.poll() is None, self.log()
            return " started" in self.log()

        eventually(there, within_s=30, what="the worker starts")
        return self

    @property
    def id(self) -> str:
        found = re.search(r"Worker (\S+) started", self.log())
        assert found
        return found[1]

    def zygote(self) -> int:
        return next(pid for pid in kernel.children_of(self.pid) if b"outlive.child.zygote" in cmdline(pid))

    def parents(self) -> list[int]:
        """Each forks the children of one slot."""
        return kernel.children_of(self.zygote())

    def children(self) -> list[int]:
        return [child for parent in self.parents() for child in kernel.children_of(parent)]

    def tree(self) -> list[int]:
        return kernel.descendants_of(self.pid)

    def stop(self, number: int = signal.SIGTERM, *, within_s: float = 40) -> int:
        self.process.send_signal(number)
        return self.process.wait(within_s)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers; what is left of them at the end of the test is a failure of the test."""
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
    trees = [pid for worker in made if worker.process.poll() is None for pid in worker.tree()]
    for worker in made:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
            worker.process.send_signal(signal.SIGINT)
    for worker in made:
        try:
            worker.process.wait(20)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
    eventually(
        lambda: not any(alive(pid) for pid in trees), within_s=5, what=f"the workers' processes {trees} are gone"
    )


@pytest.fixture
def app(database_url: str) -> Iterator[None]:
    """The app of tests/faults.py, on the test's database."""
    faults.app.configure(config.load(flags={"database_url": database_url}))
    yield
    faults.app.configure(None)
