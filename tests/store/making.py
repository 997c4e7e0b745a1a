"""Making jobs and moving them on, in the words that the tests use. Nothing here asserts anything."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

from outlive import db, store
from outlive.model import Claimed, Ended, JobRequest, Lane, new_job_id
from outlive.policy import Limits
from outlive.states import Outcome, State

T = TypeVar("T")
Connect = Callable[[], db.Connection]

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
WORKER = UUID("11111111-1111-4111-8111-111111111111")
MAX_ARGS_BYTES = 1024 * 1024


def set_now(connection: psycopg.Connection[Any], moment: datetime = NOON, *, later_s: float = 0.0) -> datetime:
    """Stop this session's clock at a moment."""
    moment += timedelta(seconds=later_s)
    connection.execute("select set_config('outlive.now', %s, false)", [moment.isoformat()])
    return moment


def value(connection: psycopg.Connection[Any], query: str, *parameters: object) -> Any:
    """The one value that a query gives."""
    return connection.execute(query.encode(), parameters or None).fetchall()[0][0]


def values(connection: psycopg.Connection[Any], query: str, *parameters: object) -> list[Any]:
    """The first column of a query's rows."""
    return [row[0] for row in connection.execute(query.encode(), parameters or None).fetchall()]


def row(connection: psycopg.Connection[Any], query: str, *parameters: object) -> dict[str, Any]:
    """The one row that a query gives, by the names of its columns."""
    cursor = connection.execute(query.encode(), parameters or None)
    (found,) = cursor.fetchall()
    return {column.name: cell for column, cell in zip(cursor.description or (), found, strict=True)}


def count(connection: psycopg.Connection[Any], table: str) -> int:
    query = sql.SQL("select count(*) from {}").format(sql.Identifier("outlive", table))
    return int(connection.execute(query).fetchall()[0][0])


def plan(connection: psycopg.Connection[Any], text: bytes, parameters: Sequence[object]) -> list[dict[str, Any]]:
    """The nodes of the plan by which a query has just been run, outermost first."""
    cursor = psycopg.RawCursor(connection)
    cursor.execute(b"explain (analyze, costs off, timing off, format json) " + text, parameters)
    nodes, found = [cursor.fetchall()[0][0][0]["Plan"]], []
    while nodes:
        found.append(node := nodes.pop(0))
        nodes += node.pop("Plans", [])
    return found


def request(task: str = "work", args: bytes = b"{}", **more: Any) -> JobRequest:
    return JobRequest(more.pop("id", None) or new_job_id(), task, args, **more)


def enqueue(connection: db.Connection, requests: Iterable[JobRequest], *, notify: bool = False) -> dict[UUID, UUID]:
    return db.run(connection, store.enqueue(list(requests), max_args_bytes=MAX_ARGS_BYTES, notify=notify))


def make(connection: db.Connection, task: str = "work", **more: Any) -> UUID:
    """One pending job."""
    asked = request(task, **more)
    enqueue(connection, [asked])
    return asked.id


def make_many(connection: db.Connection, number: int, task: str = "work", **more: Any) -> list[UUID]:
    asked = [request(task, **more) for _ in range(number)]
    enqueue(connection, asked)
    return [one.id for one in asked]


def lane(task: str = "work", **more: Any) -> Lane:
    return Lane(
        queue=more.pop("queue", "default"),
        source=more.pop("source", ""),
        task=task,
        priority=more.pop("priority", 5),
        **more,
    )


def claim(
    connection: db.Connection,
    lanes: Sequence[Lane] | None = None,
    *,
    worker: UUID = WORKER,
    limit: int = 512,
    lease_s: float = 300.0,
) -> list[Claimed]:
    offered = [lane()] if lanes is None else lanes
    return db.run(connection, store.end_and_claim(worker, [], offered, limit=limit, lease_s=lease_s)).claimed


def end(connection: db.Connection, *ended: Ended, worker: UUID = WORKER) -> list[int]:
    """End attempts; the tokens that were stale."""
    return db.run(connection, store.end_and_claim(worker, ended)).stale


def run_one(connection: db.Connection, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> Claimed:
    """Claim the next job of the usual lane and end it like this."""
    (claimed,) = claim(connection, limit=1)
    end(connection, Ended(claimed.token, outcome, **evidence))
    return claimed


def make_finished(connection: db.Connection, outcome: Outcome = Outcome.SUCCEEDED, **more: Any) -> UUID:
    """A job that has ended for good."""
    job = make(connection, **more)
    run_one(connection, outcome, final=outcome is Outcome.FAILED)
    return job


def make_quarantined(connection: db.Connection, **more: Any) -> UUID:
    """A job that has killed once and was allowed to only once."""
    job = make(connection, options=b'{"max_crashes": 1}', **more)
    run_one(connection, Outcome.CRASHED, signal="SIGSEGV", error="killed by SIGSEGV", output="last words")
    return job


def state(connection: db.Connection, job: UUID) -> State | None:
    return db.run(connection, store.statuses([job])).get(job)


def limits(name: str = "work", **more: Any) -> Limits:
    said: dict[str, Any] = {
        "queue": "default",
        "source": "",
        "max_attempts": 5,
        "max_crashes": 3,
        "max_losses": 3,
        "on_worker_death": "retry",
        "quarantine_by": "job",
        "backoff_s": (60.0,),
    }
    return Limits(name=name, **{**said, **more})


def register_worker(
    connection: db.Connection,
    worker: UUID = WORKER,
    *,
    name: str = "crawler-1",
    state: str = "active",
    last_seen: datetime | None = None,
) -> UUID:
    connection.execute(
        "insert into outlive.workers (id, name, hostname, pid, version, slots, state, started_at, last_seen)"
        " values (%s, %s, 'host', 42, '0.1', 4, %s, outlive.now(), coalesce(%s, outlive.now()))",
        [worker, name, state, last_seen],
    )
    return worker


def new_worker() -> UUID:
    return uuid4()
