"""Alerts: commands of the operator, which read what happened as JSON from their standard input.

They run beside the worker and never delay it: each has a time limit, few run at once, and when too many wait, further
alerts are only logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from typing import IO, cast

import msgspec

from outlive import linux

LIMIT_S = 30.0
POLL_S = 0.05
KILLED_S = 1.0
MAX_AT_ONCE = 4
MAX_WAITING = 200
STDERR_BYTES = 500
"""How much of a command's stderr is logged."""

_log = logging.getLogger("outlive.alerts")


class Alerts:
    def __init__(self) -> None:
        self.processes: set[int] = set()
        """The sweep of orphans must leave these alone."""
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """How many more alerts can be sent now."""
        return max(0, MAX_WAITING - len(self._tasks))

    def send(self, command: str | None, event: str, facts: dict[str, object]) -> None:
        """Run the command, if there is one."""
        if command is None:
            return
        if len(self._tasks) >= MAX_WAITING:
            _log.error("too many alerts wait; this one is dropped: %s %s", event, facts)
            return
        task = asyncio.create_task(self._run(command, msgspec.json.encode({"event": event, **facts})))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, command: str, body: bytes) -> None:
        async with self._places:
            try:
                process, pipe = _start(command, body)
            except OSError as error:
                _log.error("the alert command %r can't be run: %s", command, error)
                return
            self.processes.add(process.pid)
            try:
                async with asyncio.timeout(LIMIT_S):
                    stderr = await _end(process, pipe)
                if process.returncode:
                    last = stderr.decode(errors="replace").strip()
                    _log.error("the alert command %r ended with code %s: %s", command, process.returncode, last)
            except TimeoutError:
                _log.error("the alert command %r did not end within %g s: it is killed", command, LIMIT_S)
            finally:
                linux.kill_group(process.pid)  # Processes that it left behind included.
                with contextlib.suppress(TimeoutError):  # It may run as another user now.
                    async with asyncio.timeout(KILLED_S):
                        await _end(process, pipe)
                self.processes.discard(process.pid)
                pipe.close()

    async def finish(self, seconds: float) -> None:
        """Give running commands a moment, then kill them."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)


def _start(command: str, body: bytes) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """A running command, and its stderr."""
    with open(os.memfd_create("outlive-alert"), "w+b") as facts:
        facts.write(body)
        facts.seek(0)
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=facts,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=linux.unblock_signals,
        )
    pipe = cast(IO[bytes], process.stderr)
    os.set_blocking(pipe.fileno(), False)
    return process, pipe


async def _end(process: subprocess.Popen[bytes], pipe: IO[bytes]) -> bytes:
    """Wait until a command has ended, and return the end of its stderr.

    It is polled: asyncio's subprocesses know their pid only some time after the fork, and wait until every process has
    closed the inherited stderr, even if the command itself has ended.
    """
    stderr, running = b"", True
    while running:
        running = process.poll() is None
        stderr = (stderr + (pipe.read(65536) or b""))[-STDERR_BYTES:]
        await asyncio.sleep(POLL_S if running else 0)
    return stderr
