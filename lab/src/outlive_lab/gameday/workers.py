"""The workers of a game: real processes. Each one that dies is replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from outlive import linux
from outlive.temporary.program import dying_with_this, worker_environment, worker_words
from outlive_lab.gameday import jobs

TARGET = f"{jobs.__name__}:app"
SHORT_LEASE_S = 5.0
"""The lease of the worker in the last seat, which can be frozen past it. The others have the default lease."""

Process = tuple[int, str]
"""The pid of a process, and the name of its worker."""

STEADY_S = 1.0
GOODBYE_S = 10.0
ORPHANS_S = 2.0
"""How long processes without a supervisor may take to end."""
JOBS_CONNECT = {"OUTLIVE_JOBS_SEE_DATABASE_URL": "true"}
"""The jobs of a game write their effects into its database."""


@dataclass(slots=True)
class Member:
    """One worker process."""

    seat: int
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    short_lease: bool
    up_since: float | None = None
    """When (monotonic) the database knew it first."""
    killed: bool = False
    """Killed or told to stop, so its end is expected."""
    frozen: bool = False
    frozen_below: list[int] = field(default_factory=list)
    """Processes that are frozen with the supervisor; they wake before it."""
    spared_until: float = 0.0
    """Until then it must live, because it is the witness of another death."""

    def steady(self, now: float) -> bool:
        """Running for a while, and neither killed nor frozen."""
        up = self.up_since is not None and now - self.up_since >= STEADY_S
        return up and not self.killed and not self.frozen and self.process.poll() is None

    def zygote(self) -> int | None:
        return next(filter(linux.has_executed, self._forking()), None)

    def parents(self) -> list[int]:
        """The processes that a zygote has forked; each forks the children of one slot. They outlive their zygote."""
        above = self._forking()
        forked = (linux.children_of(pid) if linux.has_executed(pid) else [pid] for pid in above)
        return [pid for pids in forked for pid in pids]

    def _forking(self) -> list[int]:
        """Its zygotes, and parents whose zygote is dead."""
        below = linux.children_of(self.process.pid)
        return [pid for pid in below if b"outlive.child.zygote" in linux.read(f"/proc/{pid}/cmdline")]

    def children(self) -> list[int]:
        return [child for parent in self.parents() for child in linux.children_of(parent)]

    def freeze(self, *, whole_tree: bool = False) -> None:
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)
        self.frozen_below = linux.descendants_of(self.process.pid) if whole_tree else []
        for pid in self.frozen_below:
            linux.kill(pid, signal.SIGSTOP)

    def thaw_below(self) -> None:
        """Wake the children first, so that they write before another process can stop them."""
        for pid in reversed(self.frozen_below):
            linux.kill(pid, signal.SIGCONT)
        self.frozen_below = []

    def thaw(self) -> None:
        self.thaw_below()
        self.process.send_signal(signal.SIGCONT)
        self.frozen = False


@dataclass(slots=True)
class Workers:
    """A fixed number of seats, each with a running worker."""

    names: str
    """The prefix of their names, which marks all their processes."""
    url: str
    count: int
    slots: int
    directory: Path
    short_lease: bool = True
    """The worker in the last seat has a short one."""
    members: list[Member] = field(default_factory=list)
    gone: list[Member] = field(default_factory=list)
    started: int = 0

    def keep(self) -> list[tuple[Member, int]]:
        """Replace dead workers. Returns those whose end was not expected, with their exit codes."""
        ended = [(member, code) for member in self.members if (code := member.process.poll()) is not None]
        for member, _ in ended:
            self.members.remove(member)
            self.gone.append(member)
        taken = {member.seat for member in self.members}
        self.members += [self._start(seat) for seat in range(self.count) if seat not in taken]
        return [(member, code) for member, code in ended if not member.killed]

    def _start(self, seat: int) -> Member:
        self.started += 1
        name, short_lease = f"{self.names}{self.started}", self.short_lease and seat == self.count - 1
        self.files.mkdir(exist_ok=True)
        settings = {
            "OUTLIVE_NAME": name,
            jobs.TROUBLE: str(self.trouble(name)),
            **JOBS_CONNECT,
            "TMPDIR": str(self.files),
        }
        if short_lease:
            settings["OUTLIVE_LEASE_S"] = f"{SHORT_LEASE_S:g}"
        log = self.directory / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                dying_with_this([*worker_words(TARGET, slots=self.slots), "--quiet"]),
                env=worker_environment(self.url) | settings,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C reaches only the game, which then stops its workers.
            )
        return Member(seat, name, process, log, short_lease)

    @property
    def files(self) -> Path:
        """Where their processes put temporary files."""
        return self.directory / "files"

    def trouble(self, name: str) -> Path:
        """The file that makes the next import of a worker slow, or makes it fail."""
        return self.directory / f"{name}.trouble"

    def known(self, names: Collection[str]) -> None:
        """The database knows these workers."""
        for member in self.members:
            if member.up_since is None and member.name in names:
                member.up_since = time.monotonic()

    def stop(self) -> None:
        """Tell all workers to stop, and kill those that do not."""
        for member in self.members:
            member.killed = True
            member.thaw()
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
        """Kill the processes of the game that are still there after a moment. Returns their command lines."""
        deadline = time.monotonic() + ORPHANS_S
        while (found := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        commands = [linux.read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").strip() for pid in found]
        for pid in found:
            self.strike(pid)
        return [f"{pid}: {command.decode(errors='replace')}" for pid, command in zip(found, commands, strict=True)]

    def _processes(self) -> list[int]:
        pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
        return [pid for pid in pids if self.is_ours(pid) and linux.lives(pid)]

    def is_ours(self, pid: int) -> bool:
        mark = f"OUTLIVE_NAME={self.names}".encode()
        return any(entry.startswith(mark) for entry in linux.read(f"/proc/{pid}/environ").split(b"\0"))

    def strike(self, pid: int) -> bool:
        """SIGKILL a process of this game, and never another one that got its pid meanwhile."""
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if self.is_ours(pid):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return True
            finally:
                os.close(handle)
        return False
