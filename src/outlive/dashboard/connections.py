"""A connection whose client sends no whole request or reads no answer is closed: in time, or sooner if there are many.

uvicorn waits for such clients for ever, and counts their connections as busy.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 300
"""More connections than this close the one whose client has been waited for the longest time."""
SEND_S = 10.0
"""How long a client may take to send a request, or to make room for more of an answer."""


class Connection(H11Protocol):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._waits_since = 0.0
        self._check_later: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._check()
        if len(self.connections) > MOST:
            others = (one for one in self.connections if isinstance(one, Connection) and one is not self)
            waiting = (one for one in others if one.is_waiting)
            if oldest := min(waiting, key=lambda one: one._waits_since, default=None):
                oldest._drop()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check_later is not None:
            self._check_later.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._waits_since = self.loop.time()
        super().pause_writing()

    @property
    def is_waiting(self) -> bool:
        """Whether a part of the next request is still missing, or the client does not read what was sent."""
        return self.flow.write_paused or self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _check(self) -> None:
        waited_s = self.loop.time() - self._waits_since if self.is_waiting else 0.0
        if waited_s >= SEND_S:
            self._drop()
        else:
            self._check_later = self.loop.call_later(SEND_S - waited_s, self._check)

    def _drop(self) -> None:
        self.connections.discard(self)  # Now, and not when the loop comes to it: the next one must not be chosen again.
        self.transport.abort()
