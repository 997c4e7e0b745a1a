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

import msgspec

from outlive import kernel

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
        task = asyncio.get_running_loop().create_task(
            self._run(command, msgspec.json.encode({"event": event, **facts}))
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, command: str, body: bytes) -> None:
        async with self._places:
            try:
                running = _Command(command, body)
            except OSError as error:
                _log.error("the alert command %r can't be run: %s", command, error)
                return
            self.processes.add(running.process.pid)
            try:
                async with asyncio.timeout(LIMIT_S):
                    await running.end()
                if running.process.returncode:
                    last = running.stderr.decode(errors="replace").strip()
                    _log.error("the alert command %r ended with code %s: %s", command, running.process.returncode, last)
            except TimeoutError:
                _log.error("the alert command %r did not end within %g s: it is killed", command, LIMIT_S)
            finally:
                kernel.kill_group(running.process.pid)  # Processes that it left behind included.
                with contextlib.suppress(TimeoutError):  # It may run as another user now.
                    async with asyncio.timeout(KILLED_S):
                        await running.end()
                self.processes.discard(running.process.pid)
                running.close()

    async def finish(self, seconds: float) -> None:
        """Give running commands a moment, then kill them."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)


class _Command:
    """A running command.

    It is polled: asyncio's subprocesses know their pid only some time after the fork, and wait until every process has
    closed the inherited stderr, even if the command itself has ended.
    """

    def __init__(self, command: str, body: bytes) -> None:
        self.stderr = b""
        with contextlib.ExitStack() as opened:
            pipe, theirs = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, pipe)
            with open(theirs, "wb") as errors, open(os.memfd_create("outlive-alert"), "w+b") as facts:
                facts.write(body)
                facts.seek(0)
                self.process = subprocess.Popen(
                    command,
                    shell=True,
                    stdin=facts,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                    preexec_fn=kernel.unblock_signals,
                )
            opened.pop_all()
        os.set_blocking(pipe, False)
        self._pipe = pipe

    async def end(self) -> None:
        while self.process.poll() is None:
            self._read_stderr()
            await asyncio.sleep(POLL_S)
        self._read_stderr()

    def _read_stderr(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.stderr = (self.stderr + os.read(self._pipe, 65536))[-STDERR_BYTES:]

    def close(self) -> None:
        os.close(self._pipe)
