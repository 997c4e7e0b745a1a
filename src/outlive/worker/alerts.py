"""Alerts: commands of the operator's, which get what happened as JSON on their standard input.

They run beside the worker and never hold it up: each has a time limit, few run at once, and what comes while too many
wait is only logged.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from outlive import kernel

LIMIT_S = 30.0
MAX_AT_ONCE = 4
MAX_WAITING = 200

_log = logging.getLogger("outlive.alerts")


class Alerts:
    def __init__(self) -> None:
        self.processes: set[int] = set()
        """Whoever reaps others' orphans must leave these to us."""
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

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
                process = await asyncio.create_subprocess_shell(
                    command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                _log.error("the alert command %r can't be run: %s", command, error)
                return
            self.processes.add(process.pid)
            try:
                async with asyncio.timeout(LIMIT_S):
                    _, said = await process.communicate(body)
                if process.returncode:
                    last = said.decode(errors="replace").strip()[-500:]
                    _log.error("the alert command %r ended with code %s: %s", command, process.returncode, last)
            except TimeoutError:
                _log.error("the alert command %r did not end within %g s: it is killed", command, LIMIT_S)
            finally:
                if process.returncode is None:
                    kernel.kill_group(process.pid)
                    await process.wait()
                self.processes.discard(process.pid)

    async def finish(self, seconds: float) -> None:
        """Give those that run a moment; then they go too."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)
