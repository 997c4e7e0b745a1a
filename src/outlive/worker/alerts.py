"""Alerts: commands of the operator's, which get what happened as JSON on their standard input.

They run beside the worker and never hold it up: each has a time limit, few run at once, and what comes while too many
wait is only logged.
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
SAID_BYTES = 500
"""How much of what a command complains about is logged."""

_log = logging.getLogger("outlive.alerts")


class Alerts:
    def __init__(self) -> None:
        self.processes: set[int] = set()
        """Whoever reaps others' orphans must leave these to us."""
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """How many more can be told now."""
        return max(0, MAX_WAITING - len(self._tasks))

    def tell(self, command: str | None, event: str, facts: dict[str, object]) -> None:
        """Have the command run, if there is one."""
        if command is None:
            return
        if len(self._tasks) >= MAX_WAITING:
            _log.error("too many alerts wait: this one is left out: %s %s", event, facts)
            return
        task = asyncio.get_running_loop().create_task(
            self._run(command, msgspec.json.encode({"event": event, **facts}))
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, command: str, body: bytes) -> None:
        async with self._places:
            try:
                told = _Told(command, body)
            except OSError as error:
                _log.error("the alert command %r can't be run: %s", command, error)
                return
            self.processes.add(told.process.pid)
            try:
                async with asyncio.timeout(LIMIT_S):
                    await told.end()
                if told.process.returncode:
                    last = told.said.decode(errors="replace").strip()
                    _log.error("the alert command %r ended with code %s: %s", command, told.process.returncode, last)
            except TimeoutError:
                _log.error("the alert command %r did not end within %g s: it is killed", command, LIMIT_S)
            finally:
                kernel.kill_group(told.process.pid)  # Also what it has left behind.
                with contextlib.suppress(TimeoutError):  # It may have become another user's.
                    async with asyncio.timeout(KILLED_S):
                        await told.end()
                self.processes.discard(told.process.pid)
                told.close()

    async def finish(self, seconds: float) -> None:
        """Give those that run a moment; then they go too."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)


class _Told:
    """A command that was told something.

    It is looked at now and then instead of being waited for by asyncio, which knows its process only a while after it
    was made, and waits for whoever has its standard error, though the command itself has ended.
    """

    def __init__(self, command: str, body: bytes) -> None:
        self.said = b""
        with contextlib.ExitStack() as opened:
            said, theirs = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, said)
            with open(theirs, "wb") as errors, open(os.memfd_create("outlive-alert"), "w+b") as facts:
                facts.write(body)
                facts.seek(0)
                self.process = subprocess.Popen(
                    command, shell=True, stdin=facts, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
                )
            opened.pop_all()
        os.set_blocking(said, False)
        self._said = said

    async def end(self) -> None:
        while self.process.poll() is None:
            self._hear()
            await asyncio.sleep(POLL_S)
        self._hear()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.said = (self.said + os.read(self._said, 65536))[-SAID_BYTES:]

    def close(self) -> None:
        os.close(self._said)
