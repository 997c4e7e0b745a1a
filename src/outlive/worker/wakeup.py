"""What wakes the claim loop, and the checks for cancel requests, for followed output, and for leftovers."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from outlive.worker import loops
from outlive.worker.claiming.lanes import LaneKey

Priority = Annotated[int, msgspec.Meta(ge=0, le=9)]
MAX_HINTS = 64
CANCEL = "cancel"
"""The notification of a cancel request for a running job."""
WATCH = "watch"
"""The notification that the output of a running job is followed."""
RESUME = "resume"
"""The notification that the wait of a job is over whose process a worker has parked."""
FOLLOW = "follow"
"""The notification that jobs wait for a slot of their key, or for what follows from the end of another job."""
REQUESTS = ("drain", "reload", "set")
"""The notifications that an operator wants something of a worker: its heartbeat says of which, and what."""


class Wakeup:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.cancel, self.watch, self.follow = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.look = self.look_at_sources = True
        """Lanes, with or without a source, may have jobs that the last look did not find."""
        self.look_at_dry = False
        """So may lanes that were empty lately, before the next search."""
        self.asleep = False
        """The claim loop does not search by itself for a while: the tick must look for it."""
        self.resumable = False
        """The wait of a job may be over whose process is parked here."""
        self.hints: dict[LaneKey, None] = {}
        """Lanes in which a job was enqueued lately."""

    def set(self) -> None:
        """There is an end to write, or a slot is free."""
        self._event.set()

    def resume(self) -> None:
        self.resumable = True
        self._event.set()

    def notify(self, payload: str = "") -> None:
        """A job was enqueued in the lane that the payload names; without one, anything may have changed."""
        if payload == RESUME:
            self.resume()
            return
        if event := {CANCEL: self.cancel, WATCH: self.watch, FOLLOW: self.follow}.get(payload):
            event.set()
            return
        if (lane := _lane(payload)) is not None and len(self.hints) < MAX_HINTS:
            self.hints[lane] = None
        else:
            self.look = self.look_at_dry = True
            self.look_at_sources = self.look_at_sources or lane is None
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, at_most_s: float) -> None:
        await loops.wait(self._event, at_most_s)


def _lane(payload: str) -> LaneKey | None:
    """The lane that a notification names; None if it is empty or was cut. Anyone who may log in can send one."""
    try:
        queue, task, priority = msgspec.json.decode(payload, type=tuple[str, str, Priority])
    except msgspec.DecodeError:
        return None
    return None if "\0" in queue + task else LaneKey(queue, "", task, priority)
