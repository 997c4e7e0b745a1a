"""The supervisor's end of the zygote: starting it, asking it for children, hearing of their ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from uuid import UUID

from outlive import kernel
from outlive.errors import AppNotFound
from outlive.talk import FROM_ZYGOTE, Broken, Exited, Fork, Forked, Frames, NotForked, Ready, frame

TREE = "_OUTLIVE_TREE"
"""The variable by which every process below a worker is known as its own, also after it was orphaned."""
SIGN = "_OUTLIVE_SUPERVISOR"
"""The variable that says which supervisor they belong to, so that the next one on this machine can find them."""


class Nursery:
    """One zygote. Its messages go to `hear`; its death is the message None."""

    def __init__(self, target: str, worker: UUID) -> None:
        self.target, self.worker = target, worker
        self.facts: Ready | None = None

    def start(self) -> None:
        """Exec it, before any connection exists: no child may inherit one."""
        ours, theirs = socket.socketpair()
        environ = {**os.environ, TREE: str(self.worker), SIGN: kernel.sign_of_life(os.getpid())}
        environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        environ.setdefault("PYTHONUNBUFFERED", "1")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "outlive.child.zygote", str(theirs.fileno()), self.target],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environ,
                start_new_session=True,
            )
        ours.setblocking(False)
        self.control = ours

    async def ready(self) -> Ready:
        """What the app has, once it is imported; AppNotFound with the traceback if it can't be."""
        loop = asyncio.get_running_loop()
        frames = Frames(FROM_ZYGOTE)
        while True:
            data = await loop.sock_recv(self.control, 262144)
            for message in frames.feed(data):
                if isinstance(message, Ready):
                    self.facts = message
                    return message
                if isinstance(message, Broken):
                    raise AppNotFound(message.reason, message.traceback)
            if not data:
                raise AppNotFound(f"the process that imports {self.target} died with code {self.process.wait()}")

    def listen(self, hear: Callable[[Forked | NotForked | Exited | None], None]) -> None:
        frames = Frames(FROM_ZYGOTE)

        def read() -> None:
            try:
                data = self.control.recv(262144)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self.control)
                hear(None)
                return
            for message in frames.feed(data):
                if isinstance(message, Forked | NotForked | Exited):
                    hear(message)

        asyncio.get_running_loop().add_reader(self.control, read)

    def fork(self, slot: int, descriptors: list[int]) -> None:
        """Ask for a child; Forked or NotForked answers."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.control, [frame(Fork(slot))], descriptors)

    def end(self) -> None:
        """Close its control socket: it kills what is below it and exits. What falls to us is killed here."""
        with contextlib.suppress(RuntimeError, ValueError):
            asyncio.get_running_loop().remove_reader(self.control)
        self.control.close()
        self.facts = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self.process.kill()
        self.process.wait()
