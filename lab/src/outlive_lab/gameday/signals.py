"""A client that sends signals to durable jobs, each in a transaction that also writes it down.

Some transactions are rolled back, and their signals are sent again. So the table of what was sent has what jobs must
receive, and the value of no other signal may arrive anywhere.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import psycopg

from outlive.errors import OutliveError
from outlive_lab.gameday import jobs

PAUSE_S = 0.02
DELAY_S = 4.0
"""How long after its job a signal is sent at the latest: before the job waits for it, or while it does."""
ROLLED_BACK_PART = 0.3
PATIENCE_S = 20.0
"""How long a client goes on after the game: longer than the database is away or read-only."""
_IS_DONE = """
select not exists (select from outlive.jobs where id = %(job)s)
  or exists (select from outlive_gameday.sent where (job_id, value) = (%(job)s, %(value)s))
"""
_WRITE = "insert into outlive_gameday.sent (job_id, value) values (%(job)s, %(value)s)"


@dataclass(frozen=True, slots=True)
class _Signal:
    job: UUID
    due: float
    value: str = field(default_factory=lambda: uuid4().hex)


class Signals:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed} signals")
        self._waiting: deque[_Signal] = deque()
        self._stopped_at = float("inf")
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when all are sent."""
        self._stopped_at = min(self._stopped_at, time.monotonic())
        if self._thread.is_alive():
            self._thread.join()

    def send_to(self, job: UUID, count: int) -> None:
        for _ in range(count):
            self._waiting.append(_Signal(job, time.monotonic() + self._rng.uniform(0.0, DELAY_S)))

    def _run(self) -> None:
        while self._waiting or self._stopped_at == float("inf"):
            time.sleep(PAUSE_S)
            for one in [one for one in tuple(self._waiting) if one.due < time.monotonic()]:
                with contextlib.suppress(psycopg.Error, OutliveError):  # The database is away, or a row is locked.
                    if self._send(one):
                        self._waiting.remove(one)
            if time.monotonic() > self._stopped_at + PATIENCE_S:
                return

    def _send(self, one: _Signal) -> bool:
        """Whether the signal is sent, or its job does not exist: its client had no answer."""
        url = jobs.app.config.database_url
        assert url is not None
        values = {"job": one.job, "value": one.value}
        name, limit = "gameday signals", "-c lock_timeout=2s"
        with psycopg.connect(url, connect_timeout=5, options=limit, application_name=name) as connection:
            if connection.execute(_IS_DONE, values).fetchone() == (True,):
                return True
            job = jobs.app.get_job(one.job)
            while self._rng.random() < ROLLED_BACK_PART:
                job.send(jobs.SIGNAL, f"never {one.value}", connection=connection)
                connection.rollback()
            connection.execute(_WRITE, values)
            job.send(jobs.SIGNAL, one.value, connection=connection)
        return True
