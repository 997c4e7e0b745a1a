"""What happens in the demo: a server, a worker, forty jobs, and at the end the question whether all is as it must be.

Everything is real: the worker is `outlive worker`, each job runs in a process of its own, and the segfault, the memory,
the hang and the kill are what they say. At the end the database is asked, job by job.
"""

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import msgspec

from outlive import db, embedded, logs, migrate, store
from outlive.cli import screen
from outlive.config import Config
from outlive.demo import jobs, show
from outlive.demo.process import expect_alive, stopped_by_sigterm, worker
from outlive.model import Attempt
from outlive.states import FINISHED, Outcome, State

TARGET = "outlive.demo.jobs:app"
SLOTS = 4
PICTURES = 35
PATIENCE_S = 40.0
LOOK_S = 0.1
FATES = {
    "parse": (State.QUARANTINED, [Outcome.CRASHED] * 3),
    "unpack": (State.QUARANTINED, [Outcome.OUT_OF_MEMORY] * 3),
    "render": (State.FAILED, [Outcome.TIMED_OUT] * 2),
    "fetch": (State.SUCCEEDED, [Outcome.FAILED] * 2 + [Outcome.SUCCEEDED]),
    "export": (State.SUCCEEDED, [Outcome.CRASHED, Outcome.SUCCEEDED]),
    "resize": (State.SUCCEEDED, [Outcome.SUCCEEDED]),
}
"""What must become of the jobs of each task: their state, and how their attempts ended."""


def main(*, json: bool = False) -> int:
    """0 only if every job is where it must be."""
    logs.configure(level=logging.WARNING)
    started = time.monotonic()
    with stopped_by_sigterm(), _home() as home, _server(home) as url:
        jobs.app.config = Config(database_url=url)
        try:
            with db.connect(url) as connection:
                migrate.migrate(connection)
                stage = Stage(connection, home)
                with show.audience(json=json) as audience:
                    stage.play(url, audience)
                summary = stage.summary() | {"seconds": round(time.monotonic() - started, 2)}
                if json:
                    screen.print_json(summary)
                else:
                    show.evidence(stage.accused())
                    show.summary(summary)
        finally:
            jobs.app.connections.close()
    return 0 if summary["right"] else 1


@contextmanager
def _home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="outlive-demo-", dir="/var/tmp"))
    home.chmod(0o755)  # As root the server runs as somebody else, who must get there.
    try:
        yield home
    finally:
        shutil.rmtree(home)


@contextmanager
def _server(home: Path) -> Iterator[str]:
    try:
        yield embedded.ensure(home / "server")
    finally:
        embedded.release(home / "server", wait_s=10.0)


class Stage:
    """The play, and what the database says of it."""

    def __init__(self, connection: db.Connection, home: Path) -> None:
        self.connection, self.home = connection, home
        self.roles: dict[UUID, str] = {}
        """Each acknowledged job, and which of the tasks it is."""
        self.killed: int | None = None
        """The process that was killed from outside."""

    def play(self, url: str, audience: show.Audience) -> None:
        audience.say(f"a worker with {SLOTS} slots is started: each job runs in a process of its own")
        with worker(TARGET, url=url, slots=SLOTS, directory=self.home) as process:
            self._enqueue()
            audience.say(f"{len(self.roles)} jobs are enqueued: durable before the call returned")
            deadline = time.monotonic() + PATIENCE_S
            while True:
                seen = self._look()
                audience.see(seen)
                self._kill_from_outside(seen, audience)
                if all(_settled(one.state) for one in seen) or time.monotonic() > deadline:
                    break
                expect_alive(process, self.home)
                time.sleep(LOOK_S)

    def _enqueue(self) -> None:
        killers = [jobs.parse.job("poison.pdf"), jobs.unpack.job("bomb.zip"), jobs.render.job("https://example.org/")]
        others = [jobs.fetch.job(404), jobs.export.job(2026), *(jobs.resize.job(n) for n in range(PICTURES))]
        for job in jobs.app.enqueue_many(killers) + jobs.app.enqueue_many(others):
            self.roles[job.id] = ""
        for row in db.run(self.connection, store.list_jobs(limit=1000)):
            self.roles[row["id"]] = row["task"].rpartition(".")[2]

    def _look(self) -> list[show.Seen]:
        states = db.run(self.connection, store.statuses(list(self.roles)))
        return [
            show.Seen(id, role, states[id], () if role == "resize" else tuple(self._attempts(id)))
            for id, role in self.roles.items()
        ]

    def _attempts(self, id: UUID) -> list[Attempt]:
        return db.run(self.connection, store.attempts(id))

    def _kill_from_outside(self, seen: list[show.Seen], audience: show.Audience) -> None:
        """SIGKILL the export's process, which it has named in its progress, while it runs for the first time."""
        [export] = [one for one in seen if one.role == "export"]
        if self.killed is not None or export.state is not State.RUNNING:
            return
        [row] = db.run(self.connection, store.job(export.id))
        if (row["message"] or "").startswith(jobs.OWN_PROCESS):
            self.killed = int(row["message"].removeprefix(jobs.OWN_PROCESS))
            audience.say(f"kill -9 {self.killed}: the process of export, from outside")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.killed, signal.SIGKILL)

    def accused(self) -> list[show.Accused]:
        """Every job that took a process down or did not end by itself, with its last bad attempt."""
        found = []
        for id, role in self.roles.items():
            bad = [one for one in self._attempts(id) if one.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED)]
            if bad:
                [row] = db.run(self.connection, store.job(id))
                found.append(show.Accused(id, role, row["state"], row["held_details"], len(bad), bad[-1]))
        return found

    def summary(self) -> dict[str, object]:
        """What the database says, and whether that is what had to happen."""
        states = db.run(self.connection, store.statuses(list(self.roles)))
        attempts = {id: self._attempts(id) for id in self.roles}
        killers = db.run(self.connection, store.killers())
        twice = [id for id, tried in attempts.items() if _finished(tried) > 1]
        wrong = [id for id, role in self.roles.items() if (states.get(id), _outcomes(attempts[id])) != FATES[role]]
        counts = Counter(states.values())
        return {
            "acknowledged": len(self.roles),
            "succeeded": counts[State.SUCCEEDED],
            "failed": counts[State.FAILED],
            "retried": sum(max(0, len(tried) - 1) for tried in attempts.values()),
            "quarantined": [_exhibit(row) for row in killers],
            "finished_twice": len(twice),
            "right": not wrong
            and not twice
            and len(self.roles) == PICTURES + 5
            and Counter(row["task"].rpartition(".")[2] for row in killers) == Counter(["parse", "unpack"])
            and _results(attempts) == {f"picture {n}: 320 × 200" for n in range(PICTURES)} | {"page 404", "2026.csv"}
            and self._nothing_else(),
        }

    def _nothing_else(self) -> bool:
        """The database has just the jobs that were acknowledged, and none of them is still under way."""
        row = self.connection.execute(
            "select (select count(*) from outlive.jobs), (select count(*) from outlive.running), "
            "(select count(*) from outlive.waiting)"
        ).fetchone()
        return row == (len(self.roles), 0, 0)


def _settled(state: State) -> bool:
    return state in FINISHED or state is State.QUARANTINED


def _finished(attempts: list[Attempt]) -> int:
    return sum(attempt.outcome is Outcome.SUCCEEDED for attempt in attempts)


def _outcomes(attempts: list[Attempt]) -> list[Outcome]:
    return [attempt.outcome for attempt in attempts]


def _results(attempts: dict[UUID, list[Attempt]]) -> set[object]:
    return {msgspec.json.decode(one.result) for tried in attempts.values() for one in tried if one.result is not None}


def _exhibit(row: dict[str, object]) -> dict[str, object]:
    """A quarantined job with its cause."""
    keys = ("id", "task", "details", "outcome", "signal", "peak_memory_bytes", "cpu_s", "error_message")
    return {key: row[key] for key in (*keys, "stack", "output")}
