"""Whether this process runs a job: if so, here is its way out, which the client takes instead of a connection.

The child sets `gateway`; nothing else writes it.
"""

from __future__ import annotations

from typing import Protocol


class Gateway(Protocol):
    """Asks the supervisor to do something and waits for the answer."""

    def call(self, verb: str, body: bytes) -> bytes: ...


gateway: Gateway | None = None
