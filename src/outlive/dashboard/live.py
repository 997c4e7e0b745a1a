"""Live pages: server-sent events that carry the parts of a page that have changed.

Each open page is rendered once a second, however many people have it open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec

from outlive.dashboard.database import Away
from outlive.dashboard.history import LOOK_S
from outlive.dashboard.visits import NotFound, Visit
from outlive.errors import OutliveError

PULSE_S = 15.0
MAX_STREAMS = 200
MAX_WATCHED = 50

_log = logging.getLogger("outlive.dashboard")

Render = Callable[[Visit], Awaitable[Mapping[str, str]]]


class Full(Exception):
    """As many pages are open as one dashboard serves."""


class Watched:
    """One page that is open somewhere: its newest fragments, or why it can't be looked at."""

    def __init__(self) -> None:
        self.fragments: Mapping[str, str] = {}
        self.problem: Mapping[str, str] | None = None
        self.viewers = 0
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def tell(self, fragments: Mapping[str, str], problem: Mapping[str, str] | None) -> None:
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

    async def stream(self, visit: Visit) -> AsyncIterator[bytes]:
        """The events of one viewer: first everything, then what changes."""
        watched = self._join(visit)
        sent: dict[str, str] = {}
        problem: Mapping[str, str] | None = None
        try:
            yield b"retry: 2000\n\n"
            while True:
                changed = watched.changed
                news = {name: html for name, html in watched.fragments.items() if sent.get(name) != html}
                if news:
                    sent.update(news)
                    yield _event("parts", news)
                if watched.problem != problem:
                    problem = watched.problem
                    yield _event("problem", problem or {})
                try:
                    async with asyncio.timeout(PULSE_S):
                        await changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._leave(visit, watched)

    def check_room(self, visit: Visit) -> None:
        if self.streams >= MAX_STREAMS or (visit not in self._watched and len(self._watched) >= MAX_WATCHED):
            raise Full

    def _join(self, visit: Visit) -> Watched:
        watched = self._watched.get(visit)
        if watched is None:
            watched = self._watched[visit] = Watched()
            watched.task = asyncio.get_running_loop().create_task(self._watch(visit, watched))
        watched.viewers += 1
        return watched

    def _leave(self, visit: Visit, watched: Watched) -> None:
        watched.viewers -= 1
        if watched.viewers == 0:
            del self._watched[visit]
            if watched.task is not None:
                watched.task.cancel()

    async def _watch(self, visit: Visit, watched: Watched) -> None:
        while True:
            try:
                watched.tell(await self._render(visit), None)
            except Away as error:
                since = error.since.isoformat(timespec="seconds")
                watched.tell(watched.fragments, {"text": "The database can't be reached", "since": since})
            except (OutliveError, NotFound) as error:
                watched.tell(watched.fragments, {"text": str(error)})
            except Exception:
                _log.exception("an open page can't be looked at: %s", visit.here)
                watched.tell(watched.fragments, {"text": "This page does not update: the dashboard's log says why"})
            await asyncio.sleep(LOOK_S)


def _event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
