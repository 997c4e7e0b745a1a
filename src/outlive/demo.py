"""The demo: jobs survive failures, crashes and a vanished worker, on a Postgres that leaves nothing behind.

There are no worker processes in it yet: imaginary workers run the store's own statements, which are all that
decides about a job. Healthy and failing jobs really run, in this process; the crashes are only reported.
At the end the database is asked, job by job, whether what was seen is what is there.
"""

import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
from rich.rule import Rule
from rich.text import Text

import outlive
from outlive import db, embedded, logs, migrate, policy, store, wire
from outlive.cli import screen
from outlive.cli.reading import JOBS, KILLERS
from outlive.config import Config
from outlive.model import Attempt, Claimed, Ended, Lane, Lost
from outlive.states import FINISHED, Outcome, State

SHORT_LEASE_S = 1.0
PATIENCE_S = 30.0
BACKOFF = [0.02]
SEGFAULT = Ended(
    token=0,
    outcome=Outcome.CRASHED,
    error="killed by SIGSEGV",
    signal="SIGSEGV",
    exit_code=-11,
    peak_memory_bytes=187_400_192,
    cpu_s=0.31,
    output="parsing poison.pdf\nxref table: 4294967295 entries\n",
    stack='Fatal Python error: Segmentation fault\n  File "native/pdf.py", line 88 in read_xref\n'
    '  File "demo.py", line 48 in parse\n',
)

app = outlive.App()
_asked: Counter[int] = Counter()


@app.task(backoff=BACKOFF)
def resize(picture: int) -> str:
    """A healthy job."""
    return f"picture {picture}: 320 × 200"


@app.task(backoff=BACKOFF, max_attempts=3)
def fetch(page: int, silent: int) -> str:
    """A job whose web site does not answer the first few times."""
    _asked[page] += 1
    if _asked[page] <= silent:
        raise ConnectionError(f"page {page} does not answer")
    return f"page {page}"


@app.task(backoff=BACKOFF, max_crashes=3)
def parse(document: str) -> None:
    """A job whose native code takes its process down; never called here."""


def main(*, json: bool = False) -> int:
    """0 only if every job is where it must be."""
    logs.configure(level=logging.WARNING)
    started = time.monotonic()
    with _server() as url:
        app.config = Config(database_url=url)
        try:
            with db.connect(url, hot=True) as connection:
                migrate.migrate(connection)
                stage = Stage(connection, tell=(lambda _: None) if json else screen.say)
                stage.play()
                summary = stage.summary() | {"seconds": round(time.monotonic() - started, 2)}
                if json:
                    screen.print_json(summary)
                else:
                    stage.show(summary)
        finally:
            app.connections.close()
    return 0 if summary["right"] else 1


@contextmanager
def _server() -> Iterator[str]:
    home = Path(tempfile.mkdtemp(prefix="outlive-demo-", dir="/var/tmp"))
    home.chmod(0o755)  # As root the server runs as somebody else, who must get there.
    try:
        yield embedded.ensure(home / "server")
    finally:
        embedded.release(home / "server", wait_s=10.0)
        shutil.rmtree(home)


@dataclass
class Worker:
    """An imaginary worker: it claims and ends jobs with the store's statements."""

    connection: db.Connection
    id: UUID = field(default_factory=uuid4)
    outcomes: Counter[str] = field(default_factory=Counter)
    succeeded: set[UUID] = field(default_factory=set)

    def claim(self, limit: int, tasks: list[str], *, lease_s: float = 300.0) -> list[Claimed]:
        lanes = db.run(self.connection, store.lanes(tasks))
        offered = [Lane(lane.queue, lane.source, lane.task, lane.priority, quota=limit) for lane in lanes]
        return db.run(self.connection, store.end_and_claim(self.id, (), offered, limit=limit, lease_s=lease_s)).claimed

    def end(self, ended: list[Ended]) -> list[int]:
        """Which of them were no longer this worker's."""
        return db.run(self.connection, store.end_and_claim(self.id, ended)).stale

    def work(self) -> None:
        """Claim a few, run them, end them."""
        jobs = self.claim(4, list(app.tasks))
        ended = [_run(job) for job in jobs]
        stale = set(self.end(ended))
        for job, end in zip(jobs, ended, strict=True):
            if end.token not in stale:
                self.outcomes[end.outcome] += 1
                self.succeeded |= {job.id} if end.outcome is Outcome.SUCCEEDED else set()


def _run(job: Claimed) -> Ended:
    if job.task == parse.name:
        return msgspec.structs.replace(SEGFAULT, token=job.token)
    args, kwargs = wire.unpack(wire.decode(job.args))
    try:
        return Ended(job.token, result=wire.encode(app.tasks[job.task](*args, **kwargs)))
    except Exception as error:  # The job's own: how it ended is data.
        return Ended(job.token, Outcome.FAILED, error=f"{type(error).__name__}: {error}", exit_code=1)


class Stage:
    """The play, and what was seen of it."""

    def __init__(self, connection: db.Connection, tell: Callable[[str], None]) -> None:
        self.connection, self.tell = connection, tell
        self.ids: list[UUID] = []
        self.workers = [Worker(connection), Worker(connection)]
        self.vanished = Worker(connection)
        self.taken: list[Claimed] = []
        self.lost: list[Lost] = []
        self.stale: list[int] = []

    def play(self) -> None:
        self.tell("no worker processes yet: the store's own statements play the workers")
        limits = [policy.limits(task.name, task.policy, app.config) for task in app.tasks.values()]
        db.run(self.connection, store.register_tasks(limits))
        jobs = [resize.job(n) for n in range(22)] + [fetch.job(n, silent=1) for n in range(6)]
        self.ids = [job.id for job in app.enqueue_many(jobs)]
        self.ids += [fetch.enqueue(404, silent=99).id, parse.enqueue("poison.pdf").id]
        self.tell(f"{len(self.ids)} jobs are enqueued: durable before the call returned")
        self.taken = self.vanished.claim(5, [resize.name], lease_s=SHORT_LEASE_S)
        self.tell(f"a worker claims {len(self.taken)} of them and vanishes, without a word")
        deadline = time.monotonic() + PATIENCE_S
        while self.unfinished() and time.monotonic() < deadline:
            for worker in self.workers:
                worker.work()
            if lost := db.run(self.connection, store.expire()):
                self.lost += lost
                self.tell(f"its leases have ended: {len(lost)} jobs are given to others")
            time.sleep(0.01)
        self.stale = self.vanished.end([Ended(job.token, result=b'"too late"') for job in self.taken])
        self.tell(f"it comes back and wants to finish them: {len(self.stale)} of {len(self.taken)} refused")

    def unfinished(self) -> int:
        states = db.run(self.connection, store.statuses(self.ids))
        return sum(state not in FINISHED and state is not State.QUARANTINED for state in states.values())

    def summary(self) -> dict[str, object]:
        """What the database says, and whether it is what the workers saw and what had to happen."""
        states = db.run(self.connection, store.statuses(self.ids))
        attempts = {id: db.run(self.connection, store.attempts(id)) for id in self.ids}
        killers = db.run(self.connection, store.killers())
        outcomes = Counter(attempt.outcome for tried in attempts.values() for attempt in tried)
        lost = {id for id, tried in attempts.items() if any(a.outcome is Outcome.LOST for a in tried)}
        succeeded = {id for id, state in states.items() if state is State.SUCCEEDED}
        seen = sum((worker.outcomes for worker in self.workers), Counter({"lost": len(self.lost)}))
        right = (
            len(states) == len(self.ids) == 30
            and succeeded == self.workers[0].succeeded | self.workers[1].succeeded
            and all(_finished_once(attempts[id]) for id in succeeded)
            and outcomes == seen
            and lost == {job.id for job in self.taken} <= succeeded
            and len(self.stale) == len(self.taken)
            and [(row["id"], row["crashes"]) for row in killers] == [(self.ids[-1], 3)]
            and [id for id in self.ids if states[id] is State.FAILED] == [self.ids[-2]]
        )
        return {
            "acknowledged": len(self.ids),
            "succeeded": len(succeeded),
            "failed": sum(state is State.FAILED for state in states.values()),
            "retried": sum(
                attempt.outcome in ("failed", "crashed") for tried in attempts.values() for attempt in tried[:-1]
            ),
            "quarantined": [
                {key: row[key] for key in ("id", "task", "details", "signal", "peak_memory_bytes", "stack")}
                for row in killers
            ],
            "lost_and_reclaimed": len(lost & succeeded),
            "refused_too_late": len(self.stale),
            "finished_twice": sum(not _finished_once(attempts[id]) for id in succeeded),
            "right": right,
        }

    def show(self, summary: dict[str, object]) -> None:
        console = screen.console()
        jobs = db.run(self.connection, store.list_jobs(limit=6))
        console.print(Rule("the newest jobs"), screen.table(JOBS, jobs))
        killers = db.run(self.connection, store.killers())
        console.print(
            Rule("the killer, with the evidence"), screen.table(KILLERS, killers, lines=True), Rule("summary")
        )
        for name, value in summary.items():
            if name == "right":
                continue
            shown = ", ".join(str(one["details"]) for one in value) if isinstance(value, list) else value
            console.print(Text(f"{name.replace('_', ' '):<20}", style="dim").append(screen.plain(shown), style="bold"))
        verdict = "every job is where it must be" if summary["right"] else "the database says something else"
        console.print(Text(verdict, style="bold green" if summary["right"] else "bold red"))


def _finished_once(attempts: list[Attempt]) -> bool:
    return sum(attempt.outcome is Outcome.SUCCEEDED for attempt in attempts) == 1
