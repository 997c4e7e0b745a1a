"""Jobs in every state, made by the store's statements, and commands run on them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from typer.testing import CliRunner

from outlive import db, store
from outlive.cli import app
from outlive.model import Claimed, Ended, JobRequest, Lane, new_job_id
from outlive.states import Outcome

PASSWORD = "s3cret-pass"
WORKER = UUID("11111111-1111-4111-8111-111111111111")


@dataclass(frozen=True)
class Ran:
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """Runs commands on one database, in this process or in one of their own."""

    url: str | None

    def __call__(self, *words: object) -> Ran:
        arguments = [*map(str, words), *([] if self.url is None else ["--database-url", self.url])]
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    def process(self, *words: object, **environment: str) -> "subprocess.Popen[str]":
        """The same as a real process; with the address in its environment."""
        url = {} if self.url is None else {"OUTLIVE_DATABASE_URL": self.url}
        return subprocess.Popen(
            [sys.executable, "-m", "outlive", *map(str, words)],
            env={**os.environ, **url, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def ended(process: "subprocess.Popen[str]", *, within_s: float = 60) -> Ran:
    out, err = process.communicate(timeout=within_s)
    return Ran(process.returncode, out, err)


STACK = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  in read_xref\n"
STACK += 30 * "  in _run_code\n"
"""As faulthandler writes it: the innermost frame first, and more frames than are shown."""


@dataclass(frozen=True)
class World:
    """Makes jobs and moves them on as a worker would."""

    connection: db.Connection
    worker: UUID = WORKER

    def job(
        self, task: str = "shop.fetch", *, args: bytes = b"{}", queue: str = "default", key: str | None = None
    ) -> UUID:
        request = JobRequest(new_job_id(), task, args, queue=queue, dedupe_key=key)
        db.run(self.connection, store.enqueue([request], max_args_bytes=1_000_000))
        return request.id

    def jobs(self, count: int, task: str = "shop.fetch") -> list[UUID]:
        requests = [JobRequest(new_job_id(), task, b"{}") for _ in range(count)]
        db.run(self.connection, store.enqueue(requests, max_args_bytes=1_000_000))
        return [request.id for request in requests]

    def claimed(self, job: UUID, *, lease_s: float = 300.0) -> Claimed:
        """Let the worker claim just this one."""
        [row] = db.run(self.connection, store.job(job))
        lane = Lane(row["queue"], row["source"], row["task"], row["priority"], mark=row["ready_at"], quota=1)
        turn = store.end_and_claim(self.worker, (), [lane], limit=1, lease_s=lease_s)
        [claimed] = db.run(self.connection, turn).claimed
        assert claimed.id == job
        return claimed

    def end(self, job: UUID, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> UUID:
        """One attempt of it, from claim to end."""
        end = Ended(self.claimed(job).token, outcome, **evidence)
        assert not db.run(self.connection, store.end_and_claim(self.worker, [end])).stale
        return job

    def succeeded(self, result: bytes = b"null", **of: Any) -> UUID:
        return self.end(self.job(**of), result=result)

    def failed(self, **of: Any) -> UUID:
        return self.end(self.job(**of), Outcome.FAILED, error="ValueError: no", exit_code=1, final=True)

    def retryable(self, **of: Any) -> UUID:
        return self.end(self.job(**of), Outcome.FAILED, error="ConnectionError: not now", exit_code=1)

    def quarantined(self, **of: Any) -> UUID:
        """A job that has killed three times; the backoff between is passed by setting the session's clock."""
        job = self.job(**of)
        evidence = {
            "error": "killed by SIGSEGV",
            "signal": "SIGSEGV",
            "peak_memory_bytes": 512_000_000,
            "cpu_s": 1.5,
            "output": "opening poison.pdf\n",
            "stack": STACK,
        }
        for _ in range(3):
            self.end(job, Outcome.CRASHED, **evidence)
            [row] = db.run(self.connection, store.job(job))
            self.set_now(str(row["ready_at"]))
        self.set_now("")
        return job

    def set_now(self, moment: str) -> None:
        self.connection.execute("select set_config('outlive.now', %s, false)", [moment])

    def register_worker(self, name: str = "crawler-1") -> None:
        self.connection.execute(
            "insert into outlive.workers (id, name, hostname, pid, version, slots, started_at, last_seen) "
            "values (%s, %s, 'host', 1, '0', 4, now(), now())",
            [self.worker, name],
        )

    def state(self, job: UUID) -> str | None:
        return db.run(self.connection, store.statuses([job])).get(job)


def unknown() -> UUID:
    return uuid4()
