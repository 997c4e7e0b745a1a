"""The supervisor's handle of one zygote: it starts the zygote, asks it for processes, and reads its reports."""

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
from uuid import UUID

from outlive import kernel, logs, output, ticks
from outlive.errors import AppNotFound
from outlive.protocol import (
    FROM_ZYGOTE,
    Broken,
    Exited,
    Forked,
    FrameReader,
    Left,
    NotForked,
    Ready,
    ToZygote,
    encode_frame,
)
from outlive.worker.cgroups import Group
from outlive.worker.strays import OWN

TREE = "_OUTLIVE_TREE"
"""This variable marks every process below a worker, also after it was orphaned."""
SIGN = "_OUTLIVE_SUPERVISOR"
"""This variable names the supervisor, so that the next worker on this machine can find its leftover processes."""

TOKENS = ("OUTLIVE_DASHBOARD_TOKEN", "OUTLIVE_DASHBOARD_VIEWER_TOKEN")
"""Jobs get random tokens in place of these: a module with tasks may also make the dashboard that a web app mounts."""

Report = Forked | NotForked | Exited | Left | None

MAX_LINE_BYTES = 65536
END_S = 2.0
"""How long a zygote that was told to end may take to kill its tree."""


class Output:
    """What a zygote prints, such as the app's own lines during the import.

    The supervisor's log writer relays them: a zygote that wrote to stderr itself would block while stderr is not read.
    """

    def __init__(self, pipe: io.FileIO) -> None:
        self._pipe, self._rest = pipe, b""
        os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(pipe, self._read)

    def _read(self) -> None:
        if (data := self._pipe.read(65536)) is None:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > MAX_LINE_BYTES):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            logs.relay(output.as_text(line.decode(errors="replace")))
        if not data:
            self._forget()

    def close(self) -> None:
        """Relay what has been printed so far, and stop reading."""
        if not self._pipe.closed:
            self._read()
        if not self._pipe.closed:
            self._forget()

    def _forget(self) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._pipe)
        self._pipe.close()


def listen(control: socket.socket, handle: Callable[[Report], None]) -> Callable[[], None]:
    """Handle each report of a zygote or parent, and None at its death. Returns a function that reads at once."""
    frames = FrameReader(FROM_ZYGOTE)

    def read() -> None:
        try:
            data = control.recv(262144)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(control)
            handle(None)
            return
        for message in frames.feed(data):
            if isinstance(message, Forked | NotForked | Exited | Left):
                handle(message)

    asyncio.get_running_loop().add_reader(control, read)
    return read


def ask(control: socket.socket, request: ToZygote, descriptors: list[int]) -> None:
    """Ask a zygote or parent to fork. It answers Forked or NotForked."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(control, [encode_frame(request)], descriptors)


def close(control: socket.socket) -> None:
    with contextlib.suppress(RuntimeError, ValueError):
        asyncio.get_running_loop().remove_reader(control)
    control.close()


class ZygoteHandle:
    def __init__(
        self,
        target: str,
        worker: UUID,
        group: Group | None = None,
        hidden: Collection[str] = (),
        log_level: str = "info",
    ) -> None:
        self.target, self.worker, self.group, self.log_level = target, worker, group, log_level
        self.hidden = {OWN, *hidden}
        self.facts: Ready | None = None
        self.memory_bytes = 0
        """Its peak when it had imported the app: its children share that memory."""
        self.hung_up_at: float | None = None

    def start(self) -> None:
        """Exec the zygote, with no descriptor of the supervisor but its control socket."""
        ours, theirs = socket.socketpair()
        environ = {name: value for name, value in os.environ.items() if name not in self.hidden}
        environ |= {name: secrets.token_hex() for name in TOKENS}
        environ |= {TREE: str(self.worker), SIGN: kernel.sign_of_life(os.getpid())}
        environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        environ.setdefault("PYTHONUNBUFFERED", "1")
        read, write = os.pipe2(os.O_CLOEXEC)
        printed = io.FileIO(read)
        with theirs, io.FileIO(write, "w") as printing:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "outlive.child.zygote", str(theirs.fileno()), self.target, self.log_level],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=printing,
                stderr=printing,
                env=environ,
                start_new_session=True,
            )
        if self.group is not None:
            self.group.add(self.process.pid)
        ours.setblocking(False)
        self.control = ours
        self._output = Output(printed)

    async def ready(self) -> Ready:
        """Wait until the app is imported, and return what it declares.

        AppNotFound: it can't be imported. ConfigError: one of its schedules makes no sense.
        """
        loop = asyncio.get_running_loop()
        frames = FrameReader(FROM_ZYGOTE)
        while True:
            data = await loop.sock_recv(self.control, 262144)
            for message in frames.feed(data):
                if isinstance(message, Ready):
                    for schedule in message.schedules:
                        ticks.timetable(schedule)
                    self.facts = message
                    self.memory_bytes = kernel.peak_bytes(self.process.pid)
                    return message
                if isinstance(message, Broken):
                    raise AppNotFound(message.reason + self._hint(message.reason), message.traceback)
            if not data:
                raise AppNotFound(f"the process that imports {self.target} {await self._ended()}")

    def _hint(self, reason: str) -> str:
        """What to do if the module expects a variable that the worker hides from it."""
        missing = [name for name in sorted(self.hidden) if f"KeyError: {name!r}" in reason and name in os.environ]
        return "".join(
            f"; workers hide {name} from jobs: let the module read a variable of another name" for name in missing
        )

    async def _ended(self) -> str:
        """How the import ended. The app may also have closed the control socket, and run on."""
        for _ in range(50):
            if (code := self.process.poll()) is not None:
                return f"died with code {code}"
            await asyncio.sleep(0.02)
        return "closed its connection to the worker"

    def hang_up(self) -> None:
        """Close its control socket: it kills its tree and exits, which takes a moment."""
        close(self.control)
        self._output.close()
        self.facts = None
        self.hung_up_at = time.monotonic()

    def lives(self) -> bool:
        """Whether its process lives. A zygote that was told to end and takes too long is killed."""
        if self.process.poll() is not None:
            return False
        if self.hung_up_at is not None and time.monotonic() - self.hung_up_at > END_S:
            self.process.kill()
        return True
