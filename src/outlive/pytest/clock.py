"""The clock of a test's database: `outlive.now()`, which everything in the database asks for the time.

Here that function is replaced, in the test's own database and nowhere else. So the time changes for every
connection at once and runs on from there, and nothing in outlive knows about tests.
"""

from __future__ import annotations

from datetime import UTC, datetime

from outlive import db

_REPLACED = """
create or replace function outlive.now() returns timestamptz language sql stable parallel safe
return statement_timestamp() + interval '{seconds} seconds'
"""


class Clock:
    def __init__(self, connection: db.Connection) -> None:
        self._connection = connection
        self._ahead_s = 0.0
        self.moved_to = self.now()
        """The time to which the test has moved the clock. It has run on since."""

    def now(self) -> datetime:
        """The time in the database."""
        rows = self._connection.execute("select outlive.now()").fetchall()
        now: datetime = rows[0][0]
        return now.astimezone(UTC)

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds
        self._connection.execute(_REPLACED.format(seconds=f"{self._ahead_s:.6f}").encode())
        self.moved_to = self.now()
