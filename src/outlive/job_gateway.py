"""Whether this process runs a job: if so, here is its way out, which the client takes instead of a connection.

The child sets `gateway` and `job`; nothing else writes them.
"""

from __future__ import annotations

from typing import Protocol


class Gateway(Protocol):
    """Asks the supervisor to do something and waits for the answer."""

    def call(self, verb: str, body: bytes) -> bytes: ...


class RunningJob(Protocol):
    """What the client must know of the job that it runs in."""

    token: int
    source: str
    counted: BaseException | None
    """The exception that was counted for a source already."""
    answered: bool
    """Something that it wanted of its source was in the cache."""
    called: bool
    """It really called its source, and did not only look into the cache."""

    def pays_for(self, source: str) -> bool:
        """Whether the token that the job was claimed with pays for this request; it does so once."""

    def blames_source(self, error: BaseException) -> bool:
        """Whether its task holds that such an error is the source's fault."""


gateway: Gateway | None = None
job: RunningJob | None = None
