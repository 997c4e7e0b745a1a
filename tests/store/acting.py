"""Actions of the tests of the store: bring a job to a place, fire an event at it, check that the tables are sound.

Everything goes through the real statements. Time stands still at NOW until a test moves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outlive import db, states, store
from outlive.model import Claimed, Ended, JobRequest, Lane, Turn, new_job_id
from outlive.policy import Limits, exponential
from outlive.states import Outcome, State
from tests.conftest import TEMPLATE

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOMORROW = NOW + timedelta(days=1)
TASK = "tests.work"
LANE = Lane("default", "", TASK, 5)
ANNA, BERT, CARL = (UUID(int=n) for n in (1, 2, 3))
EVENTS = tuple(dict.fromkeys(transition.event for transition in states.TRANSITIONS))
TABLES = ("jobs", "waiting", "running", "held", "attempts", "dedupe_keys", "crashes")

ENDS: dict[str, dict[str, Any]] = {
    "succeed": {"outcome": Outcome.SUCCEEDED, "result": b"42"},
    "fail": {"outcome": Outcome.FAILED, "error": "ValueError: no"},
    "time_out": {"outcome": Outcome.TIMED_OUT, "error": "Hard timeout exceeded", "signal": "SIGTERM"},
    "exhaust": {"outcome": Outcome.OUT_OF_MEMORY, "error": "MemoryError"},
    "overrun": {"outcome": Outcome.OUT_OF_MEMORY, "signal": "SIGKILL", "peak_memory_bytes": 2**30},
    "crash": {"outcome": Outcome.CRASHED, "signal": "SIGSEGV"},
    "hand_back": {"outcome": Outcome.RELEASED},
    "stop": {"outcome": Outcome.CANCELLED},
}
FENCED = frozenset({*ENDS, "renew", "complete", "convict"})  # Events that need the attempt's token and worker.


class Place(StrEnum):
    """Where a job can be: the states, but for the kinds of pending, which are not claimed in the same way."""

    NOWHERE = "no_such_job"
    PENDING = "pending"
    SUSPECT = "suspect"
    RETRYABLE = "retryable"
    RUNNING = "running"
    BLOCKED = "blocked"
    QUARANTINED = "quarantined"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def state(self) -> State | None:
        if self is Place.NOWHERE:
            return None
        return State.PENDING if self is Place.SUSPECT else State(self.value)


@dataclass(frozen=True, slots=True)
class Scene:
    """A job, and the last attempt that it had: its right to write while it is running, stale otherwise."""

    job: UUID
    worker: UUID = ANNA
    token: int = 0


@contextmanager
def one_database(server_url: str) -> Iterator[str]:
    """One for a whole module of small tests, which clear it: making one for each takes longer than all else."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {TEMPLATE}")
        yield make_conninfo(server_url, dbname=name)
        admin.execute(f"drop database {name} with (force)")


def set_clock(connection: db.Connection, moment: datetime) -> None:
    connection.execute("select set_config('outlive.now', %s, false)", [moment.isoformat()])


def define(connection: db.Connection, **changed: Any) -> None:
    """Say what the task is like, as its worker does."""
    usual = Limits(
        name=TASK,
        queue="default",
        source="",
        max_attempts=5,
        max_crashes=3,
        max_losses=3,
        on_worker_death="retry",
        quarantine_by="job",
        backoff_s=exponential(60, 86400),
    )
    db.run(connection, store.register_tasks([msgspec.structs.replace(usual, **changed)]))


def enqueue(connection: db.Connection, options: dict[str, object] | None = None, **wanted: Any) -> UUID:
    wanted = {"id": new_job_id(), "args": b"[]", **wanted}
    encoded = msgspec.json.encode(options) if options is not None else None
    job = JobRequest(task=TASK, options=encoded, **wanted)
    return db.run(connection, store.enqueue([job], max_args_bytes=1000)).get(job.id, job.id)


def claim(connection: db.Connection, worker: UUID = ANNA, *, limit: int = 1, lease_s: float = 300.0) -> list[Claimed]:
    turn = db.run(connection, store.end_and_claim(worker, (), [LANE], limit=limit, lease_s=lease_s))
    assert not turn.stale
    return turn.claimed


def end(connection: db.Connection, worker: UUID, token: int, event: str, **more: Any) -> Turn:
    return db.run(connection, store.end_and_claim(worker, [Ended(token, **(ENDS[event] | more))]))


def complete(connection: db.Connection, worker: UUID, token: int, result: str = "42") -> None:
    connection.execute("select outlive.complete_with_records(%s, %s, %s)", [token, worker, result])


def register(connection: db.Connection, worker: UUID, formerly: UUID | None = None) -> None:
    """A worker begins; perhaps it was given up before, under another id."""
    said: dict[str, Any] = {"name": f"worker {worker.int}", "hostname": "host", "pid": 42, "version": "0.1"}
    db.run(connection, store.register_worker(worker, **said, queues=None, slots=4, formerly=formerly))


def give_up(connection: db.Connection, worker: UUID) -> None:
    """A worker is declared dead, in whatever way."""
    register(connection, worker)
    connection.execute("update outlive.workers set state = 'dead', died_at = outlive.now() where id = %s", [worker])


def kill_elsewhere(connection: db.Connection, times: int = 1, args: str = "[]") -> None:
    """Leave crashes of forgotten jobs of this task that had these arguments."""
    connection.execute(
        "insert into outlive.crashes select %s, outlive.fingerprint(%s, %s), -n, %s, 'SIGSEGV', outlive.now()"
        " from generate_series(1, %s) n",
        [TASK, TASK, args, uuid4(), times],
    )


def arrange(connection: db.Connection, scene: Scene, *events: str) -> None:
    """What must have happened elsewhere for these events to have something to do."""
    if "quarantine" in events:
        define(connection, max_crashes=1)
    if "convict" in events:
        define(connection, max_crashes=1, quarantine_by="fingerprint")
        kill_elsewhere(connection)
    if "reap" in events:
        give_up(connection, scene.worker)


def fire(connection: db.Connection, event: str, scene: Scene) -> None:
    """Let one event of states.py happen to the job, by its own statement. What is illegal is expected to do nothing."""
    job, worker, token = scene.job, scene.worker, scene.token
    match event:
        case "enqueue":
            enqueue(connection, id=job)
        case "claim":
            claim(connection, BERT)
        case "claim_suspect":
            db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
        case "renew":
            db.run(connection, store.renew(worker, [token]))
        case "complete":
            try:
                with connection.transaction():
                    complete(connection, worker, token)
            except psycopg.Error as error:
                if error.sqlstate != "OL002":
                    raise
        case "expire":
            db.run(connection, store.expire())
        case "reap":
            db.run(connection, store.reap())
        case "convict":
            db.run(connection, store.convict(worker, [token]))
        case "cancel":
            db.run(connection, store.cancel([job]))
        case "retry":
            db.run(connection, store.retry([job]))
        case "release":
            db.run(connection, store.release([job]))
        case "block":
            db.run(connection, store.block([job], "for a while"))
        case "quarantine":
            db.run(connection, store.quarantine_killers())
        case "prune":
            db.run(connection, store.prune_jobs([job]))
        case _:
            end(connection, worker, token, event)


def bring(
    connection: db.Connection,
    place: Place,
    *,
    options: dict[str, object] | None = None,
    ended_before: str | None = None,
    **wanted: Any,
) -> Scene:
    """A job in this place, by the shortest way there; an earlier attempt of it may have ended so.

    All but the fresh one have had an attempt, so that there is a stale token to come back with.
    """
    set_clock(connection, NOW)
    if place is Place.NOWHERE:
        return Scene(new_job_id())
    limits = {Place.SUSPECT: {"max_losses": 2}, Place.QUARANTINED: {"max_crashes": 1}}.get(place, {})
    job = enqueue(connection, {**(options or {}), **limits}, **wanted)
    if ended_before:
        [claimed] = claim(connection)
        end(connection, ANNA, claimed.token, ended_before, after_s=0.0)
    if place is Place.PENDING and not ended_before:
        return Scene(job)
    lease_s = -1.0 if place is Place.SUSPECT else 300.0
    [claimed] = claim(connection, lease_s=lease_s)
    scene = Scene(job, ANNA, claimed.token)
    match place:
        case Place.SUSPECT:
            fire(connection, "expire", scene)
        case Place.RETRYABLE | Place.QUARANTINED:
            fire(connection, "crash", scene)
        case Place.BLOCKED:
            fire(connection, "hand_back", scene)
            fire(connection, "block", scene)
        case Place.SUCCEEDED:
            fire(connection, "succeed", scene)
        case Place.FAILED:
            end(connection, ANNA, scene.token, "fail", final=True)
        case Place.CANCELLED:
            fire(connection, "stop", scene)
        case Place.PENDING:
            raise AssertionError("a job that has failed before is retryable")
    assert state_of(connection, job) is place.state
    return scene


def legal(event: str, place: Place) -> tuple[State | None, ...]:
    """What states.py allows, and what it says in words of suspects: claimed by claim_suspect alone, and freed."""
    if place is Place.SUSPECT:
        suspect = {
            "claim_suspect": states.legal("claim_suspect", State.PENDING),
            "cancel": (State.CANCELLED,),
            "release": (State.PENDING,),
        }
        return suspect.get(event, ())
    if place is Place.PENDING and event == "claim_suspect":
        return ()
    return states.legal(event, place.state)


def state_of(connection: db.Connection, job: UUID) -> State | None:
    return db.run(connection, store.statuses([job])).get(job)


def row_of(connection: db.Connection, job: UUID) -> dict[str, Any]:
    """Everything `outlive show` knows of a job."""
    [row] = db.run(connection, store.job(job))
    return row


def counters(connection: db.Connection, job: UUID) -> tuple[int, int, int]:
    """Failures, crashes, losses."""
    row = row_of(connection, job)
    return row["failures"], row["crashes"], row["losses"]


def held_as(connection: db.Connection, job: UUID) -> tuple[str, str] | None:
    """Why it is held, and what is said of it."""
    row = connection.execute("select why, details from outlive.held where id = %s", [job]).fetchone()
    return None if row is None else (row[0], row[1])


def contents(connection: db.Connection) -> dict[str, list[db.Row]]:
    """All that the tables of jobs hold, to see that nothing has changed."""
    query = sql.SQL("select t::text from {} t order by 1")
    return {table: connection.execute(query.format(sql.Identifier("outlive", table))).fetchall() for table in TABLES}


def clear(connection: db.Connection) -> None:
    for table in (*TABLES, "tasks", "queues", "sources", "workers", "liveness", "sleepers"):
        connection.execute(sql.SQL("delete from {}").format(sql.Identifier("outlive", table)))


_PLACES = """
with places as (
  select id, attempt from outlive.waiting
  union all select id, attempt - 1 from outlive.running
  union all select id, attempt from outlive.held),
last as (
  select distinct on (job_id) job_id, attempt, state, count(*) over (partition by job_id) as ended
  from outlive.attempts order by job_id, attempt desc)
"""
_UNSOUND = {
    "in more than one place": "select id from places group by id having count(*) > 1",
    "lost": """select j.id from outlive.jobs j left join last a on a.job_id = j.id
        where j.id not in (select id from places)
          and coalesce(a.state, 'none') not in ('succeeded', 'failed', 'cancelled')""",
    "in a place, but never enqueued": "select id from places where id not in (select id from outlive.jobs)",
    "ended, but never enqueued": "select job_id from last where job_id not in (select id from outlive.jobs)",
    "counted with a gap": """select p.id from places p left join last a on a.job_id = p.id
        where p.attempt <> coalesce(a.attempt, 0) or coalesce(a.ended, 0) <> coalesce(a.attempt, 0)""",
    "both ended and running under one token": "select id from outlive.running join outlive.attempts using (token)",
    "unfinished without its dedupe key": """select j.id from outlive.jobs j join places p using (id)
        where j.dedupe_key is not null
          and (j.task, j.dedupe_key, j.id) not in (select task, key, id from outlive.dedupe_keys)""",
    "finished with its dedupe key": "select id from outlive.dedupe_keys where id not in (select id from places)",
}


def assert_sound(connection: db.Connection) -> None:
    """Each unfinished job is in exactly one place, each other one has ended, and the dedupe keys are theirs."""
    query = sql.SQL(" union all ").join(
        sql.SQL("select {} as what, id from ({}) {}({})").format(
            sql.Literal(what), sql.SQL(found), sql.Identifier(f"q{n}"), sql.Identifier("id")
        )
        for n, (what, found) in enumerate(_UNSOUND.items())
    )
    assert connection.execute(sql.SQL(_PLACES) + query).fetchall() == []
