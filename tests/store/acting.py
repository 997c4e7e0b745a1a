"""The state machine in tests: bring a job to a place, fire an event at it, check that the tables are sound.

Everything goes through the real statements. Time stands still at NOW until a test moves it.
"""

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

from outlive import db, states, store
from outlive.errors import BadArguments, StaleAttempt
from outlive.model import Ended, new_job_id
from outlive.protocol import Wait
from outlive.states import Outcome, State
from tests.driving.making import TASK, WORKER, Queue, lane

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOMORROW = NOW + timedelta(days=1)
ANNA, BERT, CARL = WORKER, UUID(int=2), UUID(int=3)
LANE = lane()
NEEDED = UUID(int=7)
"""The job that others wait for. It is in a lane of its own, so that no other event moves it."""
EVENTS = tuple(dict.fromkeys(transition.event for transition in states.TRANSITIONS))
TABLES = (
    *("jobs", "waiting", "running", "held", "attempts", "dedupe_keys", "crashes"),
    *("dependencies", "batches", "callbacks", "keyed_jobs", "key_turns", "end_checks", "steps", "signals"),
)

ENDS: dict[str, dict[str, Any]] = {
    "succeed": {"outcome": Outcome.SUCCEEDED, "result": b"42"},
    "fail": {"outcome": Outcome.FAILED, "error": "ValueError: no"},
    "time_out": {"outcome": Outcome.TIMED_OUT, "error": "Hard timeout exceeded", "signal": "SIGTERM"},
    "exhaust": {"outcome": Outcome.OUT_OF_MEMORY, "error": "MemoryError"},
    "overrun": {"outcome": Outcome.OUT_OF_MEMORY, "signal": "SIGKILL", "killed": True, "peak_memory_bytes": 2**30},
    "crash": {"outcome": Outcome.CRASHED, "signal": "SIGSEGV"},
    "hand_back": {"outcome": Outcome.RELEASED},
    "stop": {"outcome": Outcome.CANCELLED},
}
FENCED = frozenset(
    {*ENDS, "renew", "complete", "restart", "suspend", "convict"}
)  # Events that need the attempt's token and worker.


class Place(StrEnum):
    """The places of a job: its states; apart from those suspects, and jobs that are blocked by other jobs."""

    NOWHERE = "no_such_job"
    PENDING = "pending"
    SUSPECT = "suspect"
    RETRYABLE = "retryable"
    RUNNING = "running"
    BLOCKED = "blocked"
    DEPENDENT = "dependent"
    SUSPENDED = "suspended"
    QUARANTINED = "quarantined"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def state(self) -> State | None:
        if self is Place.NOWHERE:
            return None
        return {Place.SUSPECT: State.PENDING, Place.DEPENDENT: State.BLOCKED}.get(self) or State(self.value)


@dataclass(frozen=True, slots=True)
class Scene:
    """A job and its last attempt, whose token is valid while the job runs and stale otherwise."""

    job: UUID
    worker: UUID = ANNA
    token: int = 0


def end_by(connection: Queue, worker: UUID, token: int, event: str, **more: Any) -> list[int]:
    """End an attempt as this event of states.py does. Returns its token if that is stale."""
    return connection.end(Ended(token, **(ENDS[event] | more)), worker=worker)


def complete(queue: Queue, worker: UUID, token: int, result: str = "42") -> None:
    queue.execute("select outlive.complete_with_records(%s, %s, %s)", [token, worker, result])


def give_up(queue: Queue, worker: UUID) -> None:
    """Declare a worker dead."""
    queue.register_worker(worker)
    queue.execute("update outlive.workers set state = 'dead', died_at = outlive.now() where id = %s", [worker])


def leave_crashes(queue: Queue, times: int = 1, args: str = "{}") -> None:
    """Leave crashes of forgotten jobs of this task that had these arguments."""
    queue.execute(
        "insert into outlive.crashes select %s, outlive.fingerprint(%s, %s), -n, %s, 'SIGSEGV', outlive.now()"
        " from generate_series(1, %s) n",
        [TASK, TASK, args, uuid4(), times],
    )


def arrange(queue: Queue, scene: Scene, *events: str) -> None:
    """Prepare the database so that these events have something to do."""
    if "quarantine" in events:
        queue.register_task(max_crashes=1)
    if "convict" in events:
        queue.register_task(max_crashes=1, quarantine_by="fingerprint")
        leave_crashes(queue)
    if "reap" in events:
        give_up(queue, scene.worker)
    if "enqueue_after" in events:
        queue.make(id=NEEDED, queue="needed")
    if "retry_after" in events:
        queue.make(id=NEEDED, queue="needed")
        queue.execute("insert into outlive.dependencies values (%s, %s, 'block', true)", [NEEDED, scene.job])
    if "rerun" in events:
        queue.keep_steps(scene.job, "charge")


def make_dependent(queue: Queue, job: UUID) -> None:
    """Make a job that waits for another one, and is cancelled if that one ends without success."""
    queue.make(id=job, links=b'{"after": ["%s"], "on_failure": "cancel"}' % str(NEEDED).encode())


def fire(queue: Queue, event: str, scene: Scene) -> None:
    """Run the statement of one event of states.py on the job. An illegal event is expected to do nothing."""
    job, worker, token = scene.job, scene.worker, scene.token
    match event:
        case "enqueue":
            queue.make(id=job)
        case "enqueue_after":
            make_dependent(queue, job)
        case "unblock" | "abandon":
            outcome = Outcome.SUCCEEDED if event == "unblock" else Outcome.CANCELLED
            for claimed in queue.claim([lane(queue="needed")], worker=CARL):
                queue.end(Ended(claimed.token, outcome), worker=CARL)
        case "claim":
            queue.claim(worker=BERT, limit=1)
        case "claim_suspect":
            queue.run(store.claim_suspect(BERT, tasks=[TASK]))
        case "renew":
            queue.run(store.renew(worker, [token]))
        case "complete":
            try:
                with queue.transaction():
                    complete(queue, worker, token)
            except psycopg.Error as error:
                if error.sqlstate != "OL002":
                    raise
        case "restart":
            with contextlib.suppress(StaleAttempt), db.translated_errors(), queue.transaction():
                queue.run(store.write_end(worker, Ended(token, Outcome.RELEASED, restart=b'{"n": 2}')))
        case "suspend":
            with contextlib.suppress(StaleAttempt), db.translated_errors(), queue.transaction():
                queue.run(store.suspend(worker, Wait(token, "sleep", after_s=60.0)))
        case "resume":
            queue.run(store.resume(worker, limit=1, lease_s=300.0))
        case "end_wait":
            queue.run(store.end_due())
        case "expire":
            queue.run(store.expire())
        case "reap":
            queue.run(store.reap())
        case "convict":
            queue.run(store.convict(worker, [token]))
        case "cancel":
            queue.run(store.cancel([job]))
        case "retry":
            queue.run(store.retry([job]))
        case "rerun":
            with contextlib.suppress(BadArguments), db.translated_errors(), queue.transaction():
                queue.run(store.rerun(job, "charge"))
        case "repeat":
            queue.run(store.repeat([job]))
        case "release":
            queue.run(store.release([job]))
        case "block":
            queue.run(store.block([job], "for a while"))
        case "quarantine":
            queue.run(store.quarantine_killers())
        case "prune":
            queue.run(store.prune_jobs([job]))
        case _:
            end_by(queue, worker, token, event)


def bring(
    connection: Queue,
    place: Place,
    *,
    options: dict[str, object] | None = None,
    ended_before: str | None = None,
    **wanted: Any,
) -> Scene:
    """Bring a new job to this place by the shortest way, perhaps after an attempt that ended by `ended_before`.

    Every job but a pending one has had an attempt, so there is a stale token.
    """
    connection.set_now(NOW)
    if place is Place.NOWHERE:
        return Scene(new_job_id())
    if place is Place.DEPENDENT:
        scene = Scene(new_job_id())
        arrange(connection, scene, "enqueue_after")
        fire(connection, "enqueue_after", scene)
        return scene
    limits = {Place.SUSPECT: {"max_losses": 2}, Place.QUARANTINED: {"max_crashes": 1}}.get(place, {})
    job = connection.make(options={**(options or {}), **limits}, **wanted)
    if ended_before:
        [claimed] = connection.claim(limit=1)
        end_by(connection, ANNA, claimed.token, ended_before, after_s=0.0)
    if place is Place.PENDING and not ended_before:
        return Scene(job)
    lease_s = -1.0 if place is Place.SUSPECT else 300.0
    [claimed] = connection.claim(limit=1, lease_s=lease_s)
    scene = Scene(job, ANNA, claimed.token)
    match place:
        case Place.SUSPECT:
            fire(connection, "expire", scene)
        case Place.RETRYABLE | Place.QUARANTINED:
            fire(connection, "crash", scene)
        case Place.BLOCKED:
            fire(connection, "hand_back", scene)
            fire(connection, "block", scene)
        case Place.SUSPENDED:
            connection.set_now(NOW - timedelta(hours=1))
            connection.keep_steps(job, "ask")  # By its steps `assert_sound` knows the jobs that have waited.
            connection.set_now(NOW)
            fire(connection, "suspend", scene)
        case Place.SUCCEEDED:
            fire(connection, "succeed", scene)
        case Place.FAILED:
            end_by(connection, ANNA, scene.token, "fail", final=True)
        case Place.CANCELLED:
            fire(connection, "stop", scene)
        case Place.PENDING:
            raise AssertionError("a job that has failed before is retryable")
    assert connection.state_of(job) is place.state
    return scene


def legal(event: str, place: Place) -> tuple[State | None, ...]:
    """The states that an event may lead to. In words, states.py adds that only claim_suspect claims suspects, and that
    only a job that waits for others is unblocked by them."""
    if place is Place.DEPENDENT:
        to = {"unblock": State.PENDING, "abandon": State.CANCELLED, "cancel": State.CANCELLED, "release": State.PENDING}
        return (to[event],) if event in to else ()
    if event in ("unblock", "abandon"):
        return ()
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


def contents(queue: Queue) -> dict[str, list[db.Row]]:
    """All rows of the tables of jobs, to check that nothing has changed."""
    query = sql.SQL("select t::text from {} t order by 1")
    return {table: queue.execute(query.format(sql.Identifier("outlive", table))).fetchall() for table in TABLES}


def clear(queue: Queue) -> None:
    tables = (*TABLES, "tasks", "queues", "sources", "workers", "liveness", "sleepers", "audit")
    delete = sql.SQL("delete from {}")
    queue.execute(sql.SQL("; ").join(delete.format(sql.Identifier("outlive", table)) for table in tables))


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
        where (p.attempt <> coalesce(a.attempt, 0) or coalesce(a.ended, 0) <> coalesce(a.attempt, 0))
          -- An attempt that waits ends without a row: the next one has the next number.
          and p.id not in (
            select id from outlive.held where why = 'suspended' union select job_id from outlive.steps)""",
    "both ended and running under one token": "select id from outlive.running join outlive.attempts using (token)",
    "unfinished without its dedupe key": """select j.id from outlive.jobs j join places p using (id)
        where j.dedupe_key is not null
          and (j.task, j.dedupe_key, j.id) not in (select task, key, id from outlive.dedupe_keys)""",
    "finished with its dedupe key": "select id from outlive.dedupe_keys where id not in (select id from places)",
    "released although it waits": """select job_id from outlive.dependencies
        where not met and job_id not in (select id from outlive.held where why in ('dependent', 'suspended'))""",
    "blocked by another number of jobs": """select h.id from outlive.held h where h.why = 'dependent' and (
        h.unmet = 0 or h.unmet <> (select count(*) from outlive.dependencies d where d.job_id = h.id and not d.met))""",
    "blocked by a job that has ended": """select d.job_id from outlive.dependencies d
        where not d.met and (outlive.state_of(d.needs) = 'succeeded' or d.on_failure <> 'block'
          and outlive.state_of(d.needs) in ('failed', 'cancelled', 'quarantined'))
          and d.needs not in (select unnest(needed) from outlive.end_checks)""",
    "succeeded or deleted, but still in need": """select d.job_id from outlive.dependencies d
        where coalesce(outlive.state_of(d.job_id), 'succeeded') = 'succeeded'""",
    "deleted, but needed": """select needs from outlive.dependencies
        where not met and needs not in (select id from outlive.jobs)""",
    "waiting or running without a slot of its key": """select j.id from outlive.jobs j
        where j.concurrency_key is not null
          and j.id in (select id from outlive.waiting union select id from outlive.running)
          and j.id not in (select job_id from outlive.keyed_jobs where state = 'admitted')""",
    "in possession of a slot that it does not need": """select job_id from outlive.keyed_jobs
        where state = 'admitted' and job_id not in (
          select id from outlive.waiting union select id from outlive.running
          union select id from outlive.held where why = 'suspect')""",
    "queueing for a slot without being held, or the reverse": """
        select job_id from outlive.keyed_jobs where state <> 'admitted'
          and job_id not in (select id from outlive.held where why in ('key', 'suspect'))
        union all
        select h.id from outlive.held h join outlive.jobs j using (id)
        where j.concurrency_key is not null and h.why = 'key'
          and h.id not in (select job_id from outlive.keyed_jobs)
          or h.why = 'key' and j.concurrency_key is null""",
    "one too many of its key": """select max(job_id::text)::uuid from outlive.keyed_jobs
        where state = 'admitted' and job_id not in (select id from outlive.waiting where unsure)
        group by key having count(*) > max(most)""",
    "first in the queue for a slot that is free": """select first.job_id from (
          select distinct on (key) key, job_id, most from outlive.keyed_jobs where state = 'queued'
          order by key, priority, ready_at, job_id) first
        where most > (select count(*) from outlive.keyed_jobs a where a.key = first.key and a.state = 'admitted')
          and key not in (select unnest(keys) from outlive.key_turns)""",
}


def assert_sound(queue: Queue) -> None:
    """Check that each unfinished job is in exactly one place and has its dedupe key, and that all others have ended.

    Those with a concurrency key have a slot of it or queue for one; no key has too few slots or too many jobs.
    """
    query = sql.SQL(" union all ").join(
        sql.SQL("select {} as what, id from ({}) {}({})").format(
            sql.Literal(what), sql.SQL(found), sql.Identifier(f"q{n}"), sql.Identifier("id")
        )
        for n, (what, found) in enumerate(_UNSOUND.items())
    )
    assert queue.execute(sql.SQL(_PLACES) + query).fetchall() == []
