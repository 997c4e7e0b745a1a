"""The workers of a game: real ones, in processes of their own, kept up however often they are taken down."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from outlive import kernel
from outlive.lab.gameday import jobs
from outlive.lab.worker_process import start_worker

TARGET = f"{jobs.__name__}:app"
SHORT_LEASE_S = 5.0
"""The lease of the worker in the last seat: it can be frozen past it. All others have the default."""

STEADY_S = 1.0
GOODBYE_S = 10.0
ORPHANS_S = 2.0
"""How long what has no supervisor any more may take to go."""
JOBS_CONNECT = {"OUTLIVE_JOBS_SEE_DATABASE_URL": "true"}
"""Jobs of a game write their effects into its database."""


@dataclass(slots=True)
class Member:
    """One worker process."""

    seat: int
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    up_since: float | None = None
    """Since when (monotonic) the database knows it."""
    killed: bool = False
    """Killed or told to stop: its end is no surprise."""
    frozen_until: float | None = None
    frozen: list[int] = field(default_factory=list)
    """What sleeps besides the supervisor; it wakes some time before it."""
    spared_until: float = 0.0
    """Until then it is a witness."""

    def steady(self, now: float) -> bool:
        """Up for a while, and neither dead nor frozen."""
        return (
            self.up_since is not None
            and now - self.up_since >= STEADY_S
            and not self.killed
            and self.frozen_until is None
            and self.process.poll() is None
        )

    def zygote(self) -> int | None:
        for pid in kernel.children_of(self.process.pid):
            if b"outlive.child.zygote" in _words(pid):
                return pid
        return None

    def parents(self) -> list[int]:
        """What the zygote has forked; each of them forks the children of one slot."""
        zygote = self.zygote()
        return [] if zygote is None else kernel.children_of(zygote)

    def children(self) -> list[int]:
        return [child for parent in self.parents() for child in kernel.children_of(parent)]


@dataclass(slots=True)
class Workers:
    """So many, whatever happens to them."""

    names: str
    """How all their names begin, and so how all their processes are known."""
    url: str
    count: int
    slots: int
    directory: Path
    members: list[Member] = field(default_factory=list)
    gone: list[Member] = field(default_factory=list)
    started: int = 0

    def keep(self) -> list[tuple[Member, int]]:
        """Start anew who is dead. Those that ended by themselves are returned, with their exit codes."""
        ended = []
        for member in list(self.members):
            code = member.process.poll()
            if code is not None:
                self.members.remove(member)
                self.gone.append(member)
                if not member.killed:
                    ended.append((member, code))
        taken = {member.seat for member in self.members}
        for seat in range(self.count):
            if seat not in taken:
                self.members.append(self._start(seat))
        return ended

    def _start(self, seat: int) -> Member:
        self.started += 1
        name = f"{self.names}{self.started}"
        settings = {"OUTLIVE_NAME": name, jobs.TROUBLE: str(self.trouble(name))}
        if self.is_short(seat):
            settings["OUTLIVE_LEASE_S"] = f"{SHORT_LEASE_S:g}"
        log = self.directory / f"{name}.log"
        process = start_worker(TARGET, url=self.url, slots=self.slots, log=log, more=settings | JOBS_CONNECT)
        return Member(seat, name, process, log)

    def trouble(self, name: str) -> Path:
        """The file that makes a worker's next import slow, or fail."""
        return self.directory / f"{name}.trouble"

    def is_short(self, seat: int) -> bool:
        return seat == self.count - 1

    def known(self, names: Collection[str]) -> None:
        """The database knows these."""
        for member in self.members:
            if member.up_since is None and member.name in names:
                member.up_since = time.monotonic()

    def frozen_enough(self) -> list[Member]:
        now = time.monotonic()
        return [one for one in self.members if one.frozen_until is not None and now >= one.frozen_until]

    def thaw(self, members: Iterable[Member]) -> None:
        for member in members:
            member.frozen_until = None
            self.wake_below(member)
            kernel.kill(member.process.pid, signal.SIGCONT)

    def wake_below(self, member: Member) -> None:
        """Its children first: what they write then, nobody has had time to stop."""
        for pid in reversed(member.frozen):
            kernel.kill(pid, signal.SIGCONT)
        member.frozen = []

    def stop(self) -> None:
        """Ask all to stop, and make those that do not."""
        self.thaw(self.members)
        for member in self.members:
            member.killed = True
            member.process.terminate()
        deadline = time.monotonic() + GOODBYE_S
        for member in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, deadline - time.monotonic()))
            member.process.kill()
            member.process.wait()
        self.gone += self.members
        self.members = []

    def left_behind(self) -> list[str]:
        """What is still there after a moment; it is killed then, and named."""
        deadline = time.monotonic() + ORPHANS_S
        while (found := list(self._processes())) and time.monotonic() < deadline:
            time.sleep(0.02)
        words = [f"{pid}: {b' '.join(_words(pid).split(bytes(1))).decode(errors='replace')}" for pid in found]
        for pid in found:
            self.strike(pid)
        return words

    def _processes(self) -> Iterator[int]:
        """All that have the mark of this game and live."""
        for name in os.listdir("/proc"):
            if name.isdigit() and self.is_ours(int(name)) and not is_zombie(int(name)):
                yield int(name)

    def is_ours(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return any(word.startswith(f"OUTLIVE_NAME={self.names}".encode()) for word in words)

    def strike(self, pid: int) -> bool:
        """SIGKILL a process of this game, and no other that may have got its number meanwhile."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            if not self.is_ours(pid):
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return True
        except OSError:
            return False
        finally:
            os.close(handle)


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_zombie(pid: int) -> bool:
    """Dead, and only not looked at yet; so is who is gone altogether."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True
