"""What the acceptance tests share: an app, and a hand that does a worker's part by the store's statements, so that
the queue is tried without processes; and real workers that run the faulty jobs of tests/faults.py."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from outlive import App, Job, State, config, db, policy, store
from outlive.client.task import Task
from outlive.model import Attempt, Claimed, Ended, Lane
from outlive.states import Outcome
from tests.processes.conftest import Worker
from tests.processes.conftest import app as faulty_app
from tests.processes.conftest import start as start_worker
from tests.waiting import eventually

__all__ = ["faulty_app", "start_worker"]

Start = Callable[..., Worker]
NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)


def add(a: int, b: int = 0) -> int:
    return a + b


@dataclass
class Hand:
    """A worker's statements, on a connection whose clock the test sets."""

    connection: db.Connection
    id: UUID = field(default_factory=uuid4)

    def knows(self, *tasks: Task[..., Any, Any]) -> None:
        """Write the tasks' policies, as a worker does when it starts."""
        said = [policy.limits(task.name, task.policy, config.load(environ={})) for task in tasks]
        db.run(self.connection, store.register_tasks(said))

    def at(self, moment: datetime = NOON, *, later_s: float = 0.0) -> datetime:
        moment += timedelta(seconds=later_s)
        self.connection.execute("select set_config('outlive.now', %s, false)", [moment.isoformat()])
        return moment

    def claim(self, limit: int = 512) -> list[Claimed]:
        """Look for lanes and claim from them, as a worker does."""
        tasks = [row[0] for row in self.connection.execute("select distinct task from outlive.jobs").fetchall()]
        sourced = db.run(self.connection, store.sourced_lanes(tasks))
        found = [*db.run(self.connection, store.unsourced_lanes(tasks)), *sourced.lanes]
        lanes = [Lane(one.queue, one.source, one.task, one.priority) for one in sorted(found, key=lambda o: o.priority)]
        return db.run(self.connection, store.end_and_claim(self.id, [], lanes, limit=limit)).claimed

    def end(self, claimed: Claimed, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> bool:
        """False: the attempt is not ours any more."""
        ended = Ended(claimed.token, outcome, **evidence)
        return db.run(self.connection, store.end_and_claim(self.id, [ended])).stale == []

    def run(self, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> Claimed:
        """Claim one job and end it like this."""
        (claimed,) = self.claim(limit=1)
        assert self.end(claimed, outcome, **evidence)
        return claimed

    def rows(self, query: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
        return self.connection.execute(query.encode(), parameters or None).fetchall()

    def value(self, query: str, *parameters: object) -> Any:
        ((only,),) = self.rows(query, *parameters)
        return only


@pytest.fixture
def app(database_url: str) -> Iterator[App]:
    app = App(database_url)
    yield app
    app.connections.close()


@pytest.fixture
def task(app: App) -> Task[[int, int], int, int]:
    return app.task(add)


@pytest.fixture
def new_hand(connect: Callable[[], db.Connection]) -> Callable[[], Hand]:
    return lambda: Hand(connect())


@pytest.fixture
def hand(new_hand: Callable[[], Hand]) -> Hand:
    return new_hand()


@pytest.fixture
def start(faulty_app: None, start_worker: Start) -> Start:
    """Starts workers for the app of tests/faults.py, whose jobs go to the test's database."""
    return start_worker


def ended(job: Job[Any], state: State, *, within_s: float = 20.0) -> None:
    """Wait until the job has come to this state."""
    eventually(lambda: job.status() is state, within_s=within_s, what=f"{job} is {state} and not {job.status()}")


def attempts(connection: db.Connection, job: Job[Any]) -> list[Attempt]:
    return db.run(connection, store.list_attempts(job.id))


def outcomes(connection: db.Connection, job: Job[Any]) -> list[Outcome]:
    return [attempt.outcome for attempt in attempts(connection, job)]


def counters(connection: db.Connection, job: Job[Any]) -> tuple[int, int, int]:
    """Failures, crashes and losses."""
    (row,) = db.run(connection, store.job(job.id))
    return row["failures"], row["crashes"], row["losses"]


def hook_into(folder: Path) -> str:
    """A hook that writes what it is told into a file of this folder, which is there when it is whole."""
    return f"cat > {folder}/part.$$ && mv {folder}/part.$$ {folder}/told.$$"


def told(folder: Path) -> list[dict[str, Any]]:
    """The calls of such a hook, the oldest first."""
    found = sorted(folder.glob("told.*"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_bytes()) for path in found]
