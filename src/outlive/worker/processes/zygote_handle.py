"""The supervisor's handles of the processes that fork: a zygote, and its forks, the parents.

Each parent forks the children of one slot, of which one at a time has work. A job that kills its parent harms no other
job, and is the known culprit.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from uuid import UUID

from outlive import linux, logs, output, protocol, timetable
from outlive.errors import AppNotFound
from outlive.worker.processes.children import Child
from outlive.worker.processes.strays import OWN

TREE = "_OUTLIVE_TREE"
"""This variable marks every process below a worker, also after it was orphaned."""
SUPERVISOR = "_OUTLIVE_SUPERVISOR"
"""This variable names the supervisor, so that the next worker on this machine can find its leftover processes."""

TOKENS = ("OUTLIVE_DASHBOARD_TOKEN", "OUTLIVE_DASHBOARD_VIEWER_TOKEN")
"""Jobs get random tokens in place of these: a module with tasks may also make the dashboard that a web app mounts."""

Report = protocol.Forked | protocol.NotForked | protocol.Exited | protocol.Left | None
"""What a zygote or a parent reports. None: it is dead."""

MAX_LINE_BYTES = 65536
IMPORT_ENDS_S = 1.0
END_S = 2.0
"""How long a zygote that was told to end may take to kill its tree."""


class Control:
    """The supervisor's end of the control socket of a zygote or a parent."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket, self._frames = sock, protocol.FrameReader(protocol.FROM_ZYGOTE)
        self._handle: Callable[[Report], None]

    def ask(self, *passed: socket.socket | io.FileIO) -> None:
        """Ask for a process, which gets these. The answer is Forked or NotForked."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._socket, [protocol.FORK], [one.fileno() for one in passed])

    async def receive(self) -> list[protocol.FromZygote] | None:
        """The next reports, before `listen`; None if the process is dead."""
        data = await asyncio.get_running_loop().sock_recv(self._socket, 262144)
        return self._frames.feed(data) if data else None

    def listen(self, handle: Callable[[Report], None]) -> None:
        """Handle each report from now on, and None at the death of the process."""
        self._handle = handle
        asyncio.get_running_loop().add_reader(self._socket, self.read)

    def read(self) -> None:
        try:
            data = self._socket.recv(262144)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._handle(None)
            return
        for message in self._frames.feed(data):
            if not isinstance(message, protocol.Ready | protocol.Broken):
                self._handle(message)

    def close(self) -> None:
        """The process at the other end kills all that is below it, and exits."""
        with contextlib.suppress(RuntimeError, ValueError):
            asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


class ZygoteHandle:
    def __init__(self, target: str, worker: UUID, hidden: Collection[str] = (), log_level: str = "info") -> None:
        """Exec the zygote, with no descriptor of the supervisor but its control socket."""
        self.target, self.hidden = target, {OWN, *hidden}
        self.parents: list[Parent] = []
        self.facts: protocol.Ready | None = None
        """What the app declares, from its import to the end of the zygote."""
        self.memory_bytes = 0
        """Its peak when it had imported the app: its children share that memory."""
        self.hung_up_at: float | None = None
        environ = {name: value for name, value in os.environ.items() if name not in self.hidden}
        environ |= {name: secrets.token_hex() for name in TOKENS}
        environ |= {TREE: str(worker), SUPERVISOR: linux.sign_of_life(os.getpid())}
        environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        environ.setdefault("PYTHONUNBUFFERED", "1")
        ours, theirs = socket.socketpair()
        printed, printing = linux.pipe()
        with theirs, printing:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "outlive.child.zygote", str(theirs.fileno()), target, log_level],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=printing,
                stderr=printing,
                env=environ,
                start_new_session=True,
            )
        self.control, self._printed, self._rest = Control(ours), printed, b""
        os.set_blocking(printed.fileno(), False)
        asyncio.get_running_loop().add_reader(printed, self._relay)

    async def ready(self) -> protocol.Ready:
        """Wait until the app is imported. AppNotFound: it can't be. ConfigError: a schedule of it makes no sense."""
        while (messages := await self.control.receive()) is not None:
            for message in messages:
                if isinstance(message, protocol.Ready):
                    for schedule in message.schedules:
                        timetable.Timetable(schedule)
                    self.facts = message
                    self.memory_bytes = linux.peak_bytes(self.process.pid)
                    return message
                if isinstance(message, protocol.Broken):
                    raise AppNotFound(message.reason + self._hint(message.reason), message.traceback)
        raise AppNotFound(f"the process that imports {self.target} {await self._ended()}")

    def _hint(self, reason: str) -> str:
        """What to do if the module expects a variable that the worker hides from it."""
        missing = [name for name in sorted(self.hidden) if f"KeyError: {name!r}" in reason and name in os.environ]
        return "".join(
            f"; workers hide {name} from jobs: let the module read a variable of another name" for name in missing
        )

    async def _ended(self) -> str:
        """How the import ended. The app may also have closed the control socket, and run on."""
        try:
            return f"died with code {await asyncio.to_thread(self.process.wait, IMPORT_ENDS_S)}"
        except subprocess.TimeoutExpired:
            return "closed its connection to the worker"

    def _relay(self, *, last: bool = False) -> None:
        """Log what it prints. If it wrote to stderr itself, it would block while that is not read."""
        data = self._printed.read(65536)
        last = last or data == b""
        *lines, self._rest = (self._rest + (data or b"")).split(b"\n")
        if self._rest and (last or len(self._rest) > MAX_LINE_BYTES):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            logs.relay(output.as_text(line.decode(errors="replace")))
        if last:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._printed)
            self._printed.close()

    def hang_up(self) -> None:
        """Tell it to end. It kills its tree first, which takes a moment."""
        self.control.close()
        if not self._printed.closed:
            self._relay(last=True)
        self.facts = None
        self.hung_up_at = time.monotonic()

    def lives(self) -> bool:
        """Whether its process lives. A zygote that was told to end and takes too long is killed."""
        if self.process.poll() is not None:
            return False
        if self.hung_up_at is not None and time.monotonic() - self.hung_up_at > END_S:
            self.process.kill()
        return True


@dataclass(slots=True, eq=False)
class Parent:
    zygote: ZygoteHandle
    control: Control
    pid: int = 0
    children: list[Child] = field(default_factory=list)
    dead: bool = False
    culprits: int = 0
    """How many of its children had work when it died: any of them may have killed it."""

    @classmethod
    def ask_for(cls, zygote: ZygoteHandle) -> Parent:
        """Ask the zygote for a parent. It can be asked for children at once, and forks them when it is there."""
        ours, theirs = socket.socketpair()
        with theirs:
            zygote.control.ask(theirs)
        parent = cls(zygote, Control(ours))
        zygote.parents.append(parent)
        return parent

    @property
    def engaged(self) -> bool:
        """Whether one of its children has a job, or waits for the next job of its task."""
        return any(child.given or child.bound for child in self.children)

    @property
    def may_have_another(self) -> bool:
        """Whether it may fork another child ahead. It may not beside a warm child, which may stay forever."""
        return not self.dead and all(child.task and not child.bound for child in self.children)

    def ask_for_child(self) -> Child:
        """Ask it for a child. If there are too few descriptors, those that were made are closed with their objects."""
        ours, theirs = socket.socketpair()
        read, write = linux.pipe()
        output = _both_ends(write)
        stack = io.FileIO(os.memfd_create("outlive-stack"), "r+")
        stack.truncate(protocol.STEPS_UNDER_WAY_BYTES)
        stack.seek(0, os.SEEK_END)
        tickets, ticketing = linux.pipe(os.O_NONBLOCK)
        both = _both_ends(ticketing)
        # The child can only read its tickets: a job that writes into a descriptor by mistake makes none.
        with theirs, read, write, tickets, ticketing:
            self.control.ask(theirs, write, stack, tickets)
        ours.setblocking(False)
        child = Child(self, ours, output, stack, both)
        self.children.append(child)
        return child

    def note_death(self) -> None:
        """Read what it reported before it died, some of which may be ends of its children, and count the culprits."""
        if not self.dead:
            self.dead = True
            self.control.read()
        self.culprits = self.culprits or sum(bool(one.served) for one in self.children)

    def end(self) -> None:
        """Tell it to end. It kills its children first."""
        self.dead = True
        self.control.close()
        if self in self.zygote.parents:
            self.zygote.parents.remove(self)


def _both_ends(end: io.FileIO) -> io.FileIO:
    """Both ends of a pipe, to read from it without waiting: as long as this is open, it does not end."""
    return io.FileIO(os.open(f"/proc/self/fd/{end.fileno()}", os.O_RDWR | os.O_NONBLOCK), "r+")
