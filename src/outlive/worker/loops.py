"""The loop of everything that runs for ever: a `run_once` again and again, and after a failure a pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import psycopg

RETRY_S = (0.1, 0.3, 1.0, 3.0)

_log = logging.getLogger("outlive.worker")


async def forever(name: str, run_once: Callable[[], Awaitable[None]]) -> None:
    """One service. This is the other place with a catch-all: it says what failed, and tries again."""
    failures = 0
    while True:
        try:
            await run_once()
            failures = 0
        except Exception as error:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise asyncio.CancelledError from error  # The driver tells of the broken connection instead.
            pause_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
            failures += 1
            if isinstance(error, psycopg.Error):
                _log.warning("%s: %s; trying again in %g s", name, str(error).strip(), pause_s)
            else:
                _log.exception("%s failed; trying again in %g s", name, pause_s)
            await asyncio.sleep(pause_s)
