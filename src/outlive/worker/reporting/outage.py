"""The database goes away, and comes back: one log line for each, however many services notice it."""

from __future__ import annotations

import functools
import logging
import math
import time

import psycopg

from outlive import db

_log = logging.getLogger("outlive.worker")


class Outage:
    """Whether one database is away. All sessions of this process with it share this."""

    def __init__(self, url: str) -> None:
        self._where = db.named(url)
        self.since: float | None = None
        """Since when a connection is lost and no other was made, by the monotonic clock; None: all is well."""
        self._why = ""
        self._away = False
        self._over_at = -math.inf

    def lost(self, error: psycopg.Error, connected_at: float) -> None:
        """A connection that was made at this time is lost."""
        if self.since is None and connected_at >= self._over_at:  # An older one was lost in the last outage.
            self.since, self._why = time.monotonic(), _one_line(error)

    def refused(self, error: psycopg.Error) -> None:
        """No connection can be made."""
        if self._away:
            return
        self._away = True
        self.since = self.since or time.monotonic()
        _log.warning(
            "lost the database %s (%s): running jobs continue and their results are buffered until it is back",
            self._where,
            _one_line(error),
        )

    def over(self) -> None:
        """A connection was made."""
        if self.since is None:
            return
        self._over_at = time.monotonic()
        if self._away:
            _log.warning("the database %s is back after %.1f s", self._where, self._over_at - self.since)
        else:
            _log.info("a connection to the database was lost, and another one was made at once: %s", self._why)
        self.since, self._away = None, False


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


@functools.cache
def of(url: str) -> Outage:
    return Outage(url)
