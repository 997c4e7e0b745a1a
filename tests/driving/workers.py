"""Real workers, as processes of their own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from outlive import linux
from tests.driving.forking import Forked, Server, plain
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


_servers: list[Server] = []


def start(
    words: list[str], environ: dict[str, str], folder: Path, log: Path, *, within: Sequence[str]
) -> "subprocess.Popen[bytes] | Forked":
    """Start a worker: forked, unless the test runs it within another program or with other variables."""
    if not _servers:
        _servers.append(Server())
    (server,) = _servers
    if not within and plain(environ) == server.environ:
        return Forked(server, server.fork(words, environ, folder, log))
    with log.open("wb") as output:
        return subprocess.Popen(
            [*within, sys.executable, "-m", "outlive", *words],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


class Worker:
    """A worker process and its log."""

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
        paths = [str(ROOT / "src"), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {**os.environ, "PYTHONPATH": ":".join(paths)}
        if folder != ROOT:  # A test may change a module within a second, and Python would not see that it is new.
            environ["PYTHONDONTWRITEBYTECODE"] = "1"
        environ |= {"OUTLIVE_DATABASE_URL": database_url} if database_url else {}
        environ |= {f"OUTLIVE_{key.upper()}": value for key, value in settings.items()}
        words = ["worker", target, "--slots", str(slots)]
        self.process = start(words, environ, folder, log, within=within)

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, text: str, *, within_s: float = 10) -> bool:
        """Wait until the log has this text: lines are written a moment after they are logged."""
        return eventually(lambda: text in self.log(), within_s=within_s, what=f"the log has {text!r}")

    def started(self) -> "Worker":
        """Wait until the worker has started."""

        def has_started() -> bool:
            assert (code := self.process.poll()) is None, f"exit code {code}: {self.log()}"
            return " started" in self.log()

        eventually(has_started, within_s=30, what="the worker starts")
        return self

    @property
    def id(self) -> str:
        found = re.search(r"Worker (\S+) started", self.log())
        assert found
        return found[1]

    def zygotes(self) -> list[int]:
        """The zygotes: one, except for a moment while one replaces another."""
        return [pid for pid in self._forking() if linux.has_executed(pid)]

    def zygote(self) -> int:
        return eventually(self.zygotes)[0]

    def parents(self) -> list[int]:
        """The processes below the zygotes: each forks the children of one slot."""
        below = [parent for zygote in self.zygotes() for parent in linux.children_of(zygote)]
        return below + self.orphaned_parents()

    def orphaned_parents(self) -> list[int]:
        """Parents that have outlived their zygote."""
        return [pid for pid in self._forking() if not linux.has_executed(pid)]

    def _forking(self) -> list[int]:
        return [pid for pid in linux.children_of(self.pid) if b"outlive.child.zygote" in cmdline(pid)]

    def children(self) -> list[int]:
        return [child for parent in self.parents() for child in linux.children_of(parent)]

    def tree(self) -> list[int]:
        """All processes below the supervisor."""
        return linux.descendants_of(self.pid)

    def peak_bytes(self) -> int:
        """The most memory that the supervisor has had."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, *, within_s: float = 40) -> int:
        """Send a signal to the supervisor and wait for its end; returns its exit code."""
        self.send(number)
        return self.process.wait(within_s)

    def kill(self) -> None:
        """Kill the supervisor, and wait until it is dead."""
        self.stop(signal.SIGKILL)

    def kill_with_zygote(self) -> None:
        """Kill the supervisor with its zygote, parents and children. None of them notices another's death.

        The lowest go first: the kernel wakes stopped processes when all above them are dead.
        """
        below = [*self.children(), *self.parents(), self.zygote()]
        freeze([self.pid, *below])
        for pid in below:
            linux.kill(pid, signal.SIGKILL)
        self.kill()


Start = Callable[..., Worker]
"""The fixture `start`: starts a worker."""


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


def cpu_s(pid: int) -> float:
    """The processor time that a process has taken: a time that does not depend on what else runs on this machine."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def freeze(pids: Sequence[int]) -> None:
    """Stop processes, and wait until they stand still: one that is in the kernel goes on until it leaves it.

    A child may end before it is stopped.
    """
    for pid in pids:
        linux.kill(pid, signal.SIGSTOP)
    eventually(lambda: not any(alive(pid) and not stopped(pid) for pid in pids), what=f"they stand still: {pids}")


def stopped(pid: int) -> bool:
    try:
        return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def all_gone(pids: Sequence[int], *, within_s: float = 10, what: str = "the processes are gone") -> None:
    """Wait until none of these processes is alive."""
    eventually(lambda: not any(map(alive, pids)), within_s=within_s, what=f"{what}: {pids}")
