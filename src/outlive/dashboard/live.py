"""Live pages: server-sent events that carry the parts of a page that have changed.

Each open page is rendered once a second, however many people have it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import msgspec

from outlive.dashboard.answers import LOOK_S
from outlive.dashboard.database import Away
from outlive.dashboard.visits import Visit
from outlive.errors import OutliveError

PULSE_S = 15.0
STOP_CHECK_S = 0.5
MAX_STREAMS = 200
MAX_WATCHED = 50

_log = logging.getLogger("outlive.dashboard")

Render = Callable[[Visit], Awaitable[Mapping[str, str]]]


class Watched:
    """One page that is open somewhere: its newest fragments, or why it can't be looked at."""

    def __init__(self, render: Render, visit: Visit) -> None:
        self.fragments: Mapping[str, str] = {}
        self.problem: Mapping[str, str] = {}
        self.viewers = 0
        self.changed = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._watch(render, visit))

    async def _watch(self, render: Render, visit: Visit) -> None:
        while True:
            try:
                self._publish(await render(visit))
            except Away as error:
                since = error.since.isoformat(timespec="seconds")
                self._publish(self.fragments, text="The database can't be reached", since=since)
            except OutliveError as error:
                self._publish(self.fragments, text=str(error))
            except Exception:
                _log.exception("an open page can't be looked at: %s", visit.here)
                self._publish(self.fragments, text="This page does not update: the dashboard's log says why")
            await asyncio.sleep(LOOK_S)

    def _publish(self, fragments: Mapping[str, str], **problem: str) -> None:
        if (fragments, problem) != (self.fragments, self.problem):
            self.fragments, self.problem = fragments, problem
            self.changed.set()
            self.changed = asyncio.Event()


class Live:
    def __init__(self, render: Render) -> None:
        self._render = render
        self._watched: dict[Visit, Watched] = {}

    @property
    def streams(self) -> int:
        return sum(one.viewers for one in self._watched.values())

    def has_room(self, visit: Visit) -> bool:
        return self.streams < MAX_STREAMS and (visit in self._watched or len(self._watched) < MAX_WATCHED)

    async def stream(self, visit: Visit) -> AsyncGenerator[bytes, None]:
        """The events of one viewer: first everything, then what changes, until the server stops."""
        if visit not in self._watched:
            self._watched[visit] = Watched(self._render, visit)
        watched = self._watched[visit]
        watched.viewers += 1
        sent: dict[str, str] = {}
        problem: Mapping[str, str] = {}
        try:
            yield b"retry: 2000\n\n"
            pulse_at = time.monotonic() + PULSE_S
            while not _server_stops():
                changed = watched.changed
                news = {name: html for name, html in watched.fragments.items() if sent.get(name) != html}
                if news:
                    sent.update(news)
                    yield _event("parts", news)
                if watched.problem != problem:
                    problem = watched.problem
                    yield _event("problem", problem)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_CHECK_S):
                        await changed.wait()
                if time.monotonic() >= pulse_at:
                    pulse_at = time.monotonic() + PULSE_S
                    yield b": still here\n\n"
        finally:
            watched.viewers -= 1
            if watched.viewers == 0:
                del self._watched[visit]
                watched.task.cancel()


def _server_stops() -> bool:
    """Whether uvicorn was told to stop. It tells the apps only after all streams have ended, so ask uvicorn itself: the
    handler of SIGTERM is a method of it. Other servers end streams on their own.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


def _event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
