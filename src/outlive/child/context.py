"""What a job knows and may ask for while it runs: `outlive.current()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlive import wire
from outlive.errors import OutliveError
from outlive.talk import Completing, Progress

if TYPE_CHECKING:
    from psycopg import Connection

    from outlive.child.channel import Channel

MAX_WORDS_CHARS = 2000


class NoJob(OutliveError):
    """outlive.current() was called where no job runs."""


@dataclass(slots=True)
class Context:
    """One attempt, seen from inside."""

    _id: str
    attempt: int
    token: int
    worker: str
    last_checkpoint: object
    _channel: Channel

    @property
    def job_id(self) -> UUID:
        return UUID(self._id)

    @property
    def stopping(self) -> bool:
        """The worker drains: save what you have and come to an end."""
        return self._channel.told_to_stop()

    def progress(self, current: float | None = None, total: float | None = None, message: str | None = None) -> None:
        """Shown live, handed to nobody, and proof that the job does not stall."""
        if message is not None:
            # Cut first: each of the steps copies what there is.
            message = message[:MAX_WORDS_CHARS].replace("\0", "").encode("utf-8", "replace").decode()
        now, most = (None if number is None else float(number) for number in (current, total))
        self._channel.send(Progress(self.token, now, most, message, None))

    def checkpoint(self, data: object) -> None:
        """Kept for the next attempt, which finds it in `last_checkpoint`."""
        encoded = wire.encode(data, "the checkpoint")
        self.last_checkpoint = data
        self._channel.send(Progress(self.token, None, None, None, encoded))

    def complete(self, connection: Connection[Any], result: object = None) -> None:
        """End this attempt as succeeded in the transaction of `connection`: all commits together, or nothing."""
        encoded = wire.encode(result, "the result")
        self._channel.send(Completing(self.token))
        connection.execute("select outlive.complete(%s, %s, %s)", (self.token, self.worker, encoded.decode()))


_current: Context | None = None


def current() -> Context:
    """The job that this process runs."""
    if _current is None:
        raise NoJob("outlive.current() is for code that runs inside a job")
    return _current


def enter(context: Context | None) -> None:
    global _current
    _current = context
