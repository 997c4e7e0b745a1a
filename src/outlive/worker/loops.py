"""The loop of every service: call its `run_once` again and again, with a pause after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from logging import DEBUG, WARNING
from time import monotonic

import psycopg

from outlive import db
from outlive.errors import OutliveError
from outlive.worker import log

RETRY_S = (0.1, 0.3, 1.0, 3.0)
RETRY_SOON_S = (0.1, 0.3, 0.5)
"""For the services that must work again soon after the database is back. The others need not connect as often."""
JITTER = 0.25
"""By what part each pause differs, so that the workers of a server that restarts do not all come at once."""

REPEAT_S = 60.0


async def wait(event: asyncio.Event, at_most_s: float) -> None:
    """Wait for an event, but not for longer than that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()


async def forever(name: str, run_once: Callable[[], Awaitable[None]], pauses_s: Sequence[float] = RETRY_S) -> None:
    """Run one service. Any exception is logged, and the service runs again after a pause.

    The same error of the database again is logged once a minute: a lock or a full disk can stay for hours.
    """
    failures = 0
    logged, logged_at = "", 0.0
    me = asyncio.current_task()
    while not (me and me.cancelling()):  # A run that catches errors of the driver may not notice that it is cancelled.
        try:
            await run_once()
            failures = 0
        except Exception as error:
            if me and me.cancelling():
                return
            pause_s = pauses_s[min(failures, len(pauses_s) - 1)]
            failures += 1
            if isinstance(error, psycopg.Error | OutliveError):
                why, now = db.summary(error), monotonic()
                again = why == logged and now - logged_at < REPEAT_S
                quiet = again or db.lost(error)  # The session has logged that the database is away.
                log.log(DEBUG if quiet else WARNING, "%s: %s; trying again in %g s", name, why, pause_s)
                if not quiet:
                    logged, logged_at = why, now
            else:
                log.exception("%s failed; trying again in %g s", name, pause_s)
            await asyncio.sleep(pause_s * random.uniform(1 - JITTER, 1 + JITTER))
