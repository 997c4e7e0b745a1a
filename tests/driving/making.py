"""Jobs in a particular state, and the statements that bring them there, for tests that do without the client.

Unless a test says otherwise, jobs are of one task, in one lane, and the same worker claims them.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import msgspec
import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from outlive import config, db, store
from outlive.model import Claimed, Ended, JobRequest, Lane, new_job_id
from outlive.policy import TaskRow, exponential
from outlive.protocol import Wait
from outlive.states import Outcome, State

Connect = Callable[[], "Queue"]

T = TypeVar("T")
NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
TASK = "work"
WORKER = UUID(int=1)
MAX_ARGS_BYTES = 1024 * 1024

STACK = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  in read_xref\n"
STACK += 30 * "  in _run_code\n"
"""A stack as faulthandler writes it: the innermost frame first, and more frames than are shown."""

KILLED: dict[str, Any] = {
    "error": "killed by SIGSEGV",
    "signal": "SIGSEGV",
    "peak_memory_bytes": 512_000_000,
    "cpu_s": 1.5,
    "output": "opening poison.pdf\n",
    "stack": STACK,
}
"""The evidence of a crash."""


# The database


def set_now(connection: psycopg.Connection[Any], moment: datetime = NOON, *, later_s: float = 0.0) -> datetime:
    """Stop the clock of this session at a moment."""
    moment += timedelta(seconds=later_s)
    connection.execute("select set_config('outlive.now', %s, false)", [moment.isoformat()])
    return moment


def let_time_pass(connection: psycopg.Connection[Any]) -> None:
    """Let the clock of this session go on, from the present moment."""
    connection.execute("select set_config('outlive.now', '', false)")


def value(connection: psycopg.Connection[Any], query: str, *parameters: object) -> Any:
    """The first column of the first row that a query finds."""
    return values(connection, query, *parameters)[0]


def values(connection: psycopg.Connection[Any], query: str, *parameters: object) -> list[Any]:
    """The first column of each row that a query finds."""
    return [row[0] for row in connection.execute(query.encode(), parameters or None).fetchall()]


def row(connection: psycopg.Connection[Any], query: str, *parameters: object) -> dict[str, Any]:
    """The only row that a query finds, by the names of its columns."""
    cursor = connection.execute(query.encode(), parameters or None)
    (found,) = cursor.fetchall()
    return {column.name: cell for column, cell in zip(cursor.description or (), found, strict=True)}


def count(connection: psycopg.Connection[Any], table: str) -> int:
    """The number of rows in a table of outlive."""
    query = sql.SQL("select count(*) from {}").format(sql.Identifier("outlive", table))
    return int(connection.execute(query).fetchall()[0][0])


def plan(connection: psycopg.Connection[Any], text: bytes, parameters: Sequence[object]) -> list[dict[str, Any]]:
    """Run a query, and return the nodes of its plan, the outermost first."""
    cursor = psycopg.RawCursor(connection)
    cursor.execute(b"explain (analyze, costs off, timing off, format json) " + text, parameters)
    nodes, found = [cursor.fetchall()[0][0][0]["Plan"]], []
    while nodes:
        found.append(node := nodes.pop(0))
        nodes += node.pop("Plans", [])
    return found


# Jobs


def request(
    task: str = TASK,
    args: bytes = b"{}",
    *,
    id: UUID | None = None,
    options: dict[str, object] | None = None,
    **more: Any,
) -> JobRequest:
    encoded = None if options is None else msgspec.json.encode(options)
    return JobRequest(id or new_job_id(), task, args, options=encoded, **more)


def links(key: str, concurrency: int | None = None) -> bytes:
    """The links of a job with a concurrency key."""
    return msgspec.json.encode({"key": key} | ({} if concurrency is None else {"concurrency": concurrency}))


def enqueue(connection: db.Connection, requests: Iterable[JobRequest], *, notify: bool = False) -> dict[UUID, UUID]:
    """Make jobs. Returns those that were not made, each with the job that holds its dedupe key."""
    requests = list(requests)
    taken = db.run(connection, store.enqueue(requests, max_args_bytes=MAX_ARGS_BYTES, notify=notify))
    if any(one.links for one in requests) and connection.info.transaction_status is TransactionStatus.IDLE:
        follow(connection)
    return taken


def follow(connection: db.Connection) -> None:
    """Do what transactions have left to the reapers, as these do at once or within a second."""
    db.run(connection, store.cancel_expired())
    db.run(connection, store.check_late_ends())
    while db.run(connection, store.follow_late_ends()):
        pass
    db.run(connection, store.admit_due())


def make(connection: db.Connection, task: str = TASK, *, notify: bool = False, **wanted: Any) -> UUID:
    """Make one pending job. Returns its id, or that of the job that holds its dedupe key."""
    one = request(task, **wanted)
    return enqueue(connection, [one], notify=notify).get(one.id, one.id)


def make_many(
    connection: db.Connection, number: int, task: str = TASK, *, notify: bool = False, **wanted: Any
) -> list[UUID]:
    """Make pending jobs."""
    many = [request(task, **wanted) for _ in range(number)]
    enqueue(connection, many, notify=notify)
    return [one.id for one in many]


def lane(task: str = TASK, **more: Any) -> Lane:
    return Lane(**{"queue": "default", "source": "", "task": task, "priority": 5, **more})


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


def claim_job(connection: db.Connection, job: UUID, *, lease_s: float = 300.0) -> Claimed:
    """Claim this job and no other."""
    row = row_of(connection, job)
    its_lane = Lane(row["queue"], row["source"], row["task"], row["priority"], watermark=row["ready_at"], quota=1)
    [claimed] = claim(connection, [its_lane], limit=1, lease_s=lease_s)
    assert claimed.id == job
    return claimed


def end(connection: db.Connection, *ended: Ended, worker: UUID = WORKER) -> list[int]:
    """End attempts. Returns the tokens that are stale."""
    return db.run(connection, store.end_and_claim(worker, ended)).refused


def run_job(connection: db.Connection, job: UUID, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> Claimed:
    """Claim this job, and end its attempt."""
    claimed = claim_job(connection, job)
    assert end(connection, Ended(claimed.token, outcome, **evidence)) == []
    return claimed


def make_finished(connection: db.Connection, outcome: Outcome = Outcome.SUCCEEDED, **wanted: Any) -> UUID:
    """Make a job that has ended for good."""
    job = make(connection, **wanted)
    failed = {"error": "ValueError: no", "exit_code": 1, "final": True} if outcome is Outcome.FAILED else {}
    run_job(connection, job, outcome, **failed)
    return job


def make_quarantined(connection: db.Connection, *, crashes: int = 1, **wanted: Any) -> UUID:
    """Make a job that is in quarantine because it has crashed so many times."""
    job = make(connection, options={"max_crashes": crashes}, **wanted)
    for _ in range(crashes):
        run_job(connection, job, Outcome.CRASHED, after_s=0.0, **KILLED)
    return job


def make_suspended(connection: db.Connection, **wanted: Any) -> UUID:
    """Make a job that sleeps for an hour in its first attempt."""
    job = make(connection, **wanted)
    wait = Wait(claim_job(connection, job).token, "sleep", after_s=3600.0)
    assert db.run(connection, store.suspend(WORKER, wait)).outcome == "suspended"
    return job


def keep_steps(connection: db.Connection, job: UUID, *names: str) -> None:
    """Keep steps of a job, in this order, each with its own name as its value."""
    for name in names:
        connection.execute(
            "insert into outlive.steps (job_id, name, value, attempt, took_s, at)"
            " values (%s, %s, to_json(%s::text), 1, 0.25, outlive.now())",
            [job, name, name],
        )


def state_of(connection: db.Connection, job: UUID) -> State | None:
    return db.run(connection, store.statuses([job])).get(job)


def make_ready(connection: db.Connection) -> None:
    """Let all waiting jobs be ready at once, whatever they wait for."""
    connection.execute("update outlive.waiting set ready_at = outlive.now()")


def row_of(connection: db.Connection, job: UUID) -> dict[str, Any]:
    """Everything that `outlive show` knows about a job."""
    [row] = db.run(connection, store.job(job))
    return row


def counters(connection: db.Connection, job: UUID) -> tuple[int, int, int]:
    """The failures, crashes and losses of a job."""
    row = row_of(connection, job)
    return row["failures"], row["crashes"], row["losses"]


def hold_of(connection: db.Connection, job: UUID) -> tuple[str, str] | None:
    """The reason why a job is held, and its details."""
    row = connection.execute("select why, details from outlive.held where id = %s", [job]).fetchone()
    return None if row is None else (row[0], row[1])


# Tasks and workers


def limits(name: str = TASK, **changed: Any) -> TaskRow:
    usual: dict[str, Any] = {
        "queue": "default",
        "source": "",
        "max_attempts": 5,
        "max_crashes": 3,
        "max_losses": 3,
        "on_worker_death": "retry",
        "quarantine_by": "job",
        "backoff_s": exponential(60, 86400),
    }
    return TaskRow(name=name, **{**usual, **changed})


def register_task(connection: db.Connection, **changed: Any) -> None:
    """Write the limits of a task, as a worker that has it does."""
    db.run(connection, store.register_tasks([limits(**changed)]))


def register_worker(
    connection: db.Connection,
    worker: UUID = WORKER,
    *,
    name: str | None = None,
    state: str = "active",
    last_seen: datetime | None = None,
    formerly: UUID | None = None,
    **settings: str,
) -> UUID:
    """Register a worker; `formerly` is the id under which it was declared dead."""
    name = name or f"crawler-{worker.int}"
    about: dict[str, Any] = {"name": name, "hostname": "host", "pid": 42, "version": "0.1", "queues": None, "slots": 4}
    given = config.load(environ={}, flags=settings)
    db.run(connection, store.register_worker(worker, **about, formerly=formerly, config=given))
    if state != "active" or last_seen is not None:
        change = "update outlive.workers set state = %s, last_seen = coalesce(%s, last_seen) where id = %s"
        connection.execute(change, [state, last_seen, worker])
    return worker


def new_worker() -> UUID:
    return uuid4()


class Queue(db.Connection):
    """The session of a test, with what the functions above do as its methods: `queue.make(task="mail")`."""

    @classmethod
    def at(cls, url: str, purpose: db.Purpose = db.PLAIN) -> "Queue":
        made = db.connect(url, purpose)
        made.__class__ = cls
        return cast("Queue", made)

    def run(self, statement: db.Statement[T]) -> T:
        return db.run(self, statement)

    set_now = set_now
    let_time_pass = let_time_pass
    value = value
    values = values
    row = row
    count = count
    plan = plan
    enqueue = enqueue
    follow = follow
    make = make
    make_many = make_many
    claim = claim
    claim_job = claim_job
    end = end
    run_job = run_job
    make_finished = make_finished
    make_quarantined = make_quarantined
    make_suspended = make_suspended
    keep_steps = keep_steps
    state_of = state_of
    make_ready = make_ready
    row_of = row_of
    counters = counters
    hold_of = hold_of
    register_task = register_task
    register_worker = register_worker
