"""Scenes: two jobs in certain places, with everything that may hang on them, built by the statements themselves.

J and K are of one batch, and each has a dedupe key. DEPENDENT waits for both and is cancelled if one of them fails,
PROCEEDING waits for J in whatever way it ends, and BLOCKED waits for its success. A scene is built at one moment and
played an hour later: leases are over then, and workers have been silent for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from psycopg import IsolationLevel

from outlive import db, store
from outlive.model import Ended, JobRequest, Lane, SourceLimits
from outlive.policy import QuarantineBy, TaskRow
from outlive.protocol import KeptStep, Wait
from outlive.states import Outcome

BUILT = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLAYED = BUILT + timedelta(hours=1)

J, K, DEPENDENT, PROCEEDING, BLOCKED, OTHER, SPAWNED = (UUID(int=n) for n in range(0x11, 0x18))
CALLBACKS = {"on_success": UUID(int=0x21), "on_failure": UUID(int=0x22), "on_done": UUID(int=0x23)}
ANNA, BERT, CARL, DORA = (UUID(int=n) for n in range(0x31, 0x35))
BATCH = UUID(int=0x41)
# fmt: off
NAMES = {
    J: "J", K: "K", DEPENDENT: "dependent", PROCEEDING: "proceeding", BLOCKED: "blocked", OTHER: "other",
    SPAWNED: "spawned", ANNA: "Anna", BERT: "Bert", CARL: "Carl", DORA: "Dora", BATCH: "batch",
    **{id: event for event, id in CALLBACKS.items()},
}
# fmt: on
TASK, SITE, SCHEDULE = "work", "site", "nightly"
LANES = {J: Lane("default", "", TASK, 1), K: Lane("default", "", TASK, 2)}
LEASE_S = 300.0


@dataclass(slots=True)
class Scene:
    """A database in the making. `tokens` are those of the last attempts of jobs."""

    name: str
    connection: db.Connection
    other: db.Connection
    tokens: dict[UUID, int] = field(default_factory=dict)

    def run(self, statement: db.Statement[Any]) -> Any:
        return db.run(self.connection, statement)

    def enqueue(self, *jobs: JobRequest) -> None:
        self.run(store.enqueue(jobs, max_args_bytes=100_000))

    def claim(self, *jobs: UUID, worker: UUID = ANNA) -> None:
        for job in jobs:
            turn = self.run(store.end_and_claim(worker, (), [LANES[job]], limit=1, lease_s=LEASE_S))
            self.tokens |= {one.id: one.token for one in turn.claimed}
            assert job in self.tokens, f"{NAMES[job]} can't be claimed in the scene {self.name}"

    def end(self, job: UUID, outcome: Outcome, **more: Any) -> None:
        turn = self.run(store.end_and_claim(ANNA, [Ended(self.tokens[job], outcome, **more)]))
        assert turn.refused == []

    def wait(self, job: UUID, **wait: Any) -> None:
        self.run(store.keep_steps(ANNA, [self.tokens[job]], [KeptStep("ask", b"1", None, 0.1)]))
        self.run(store.suspend(ANNA, Wait(self.tokens[job], "wait", **wait)))

    def settle(self) -> None:
        """Do what is left for later, as watchers do within a second."""
        settle(self.connection)


def settle(connection: db.Connection) -> None:
    db.run(connection, store.requeue_missed())
    db.run(connection, store.check_late_ends())
    for later in (store.follow_late_ends, store.admit_due):
        for _ in range(5):
            if db.run(connection, later()) == 0:
                break


def job(id: UUID, *, priority: int = 5, dedupe_key: str | None = None, source: str = "", **links: Any) -> JobRequest:
    encoded = msgspec.json.encode(links, enc_hook=str) if links else None
    return JobRequest(id, TASK, b"{}", priority=priority, dedupe_key=dedupe_key, source=source, links=encoded)


def new(name: str) -> UUID:
    """The id of a job that an action makes. The jobs of two actions have different ones."""
    id = UUID(int=0x1000 + len(NAMES))
    NAMES[id] = f"the job {name}"
    return id


def prepare(
    scene: Scene, *, concurrency: int | None = None, closed: bool = True, source: str = "", needed: bool = True
) -> None:
    """The workers, the task, the batch, J and K, and the jobs that wait for them."""
    limit(scene, max_crashes=2)
    for worker in (ANNA, BERT):
        register(scene.connection, worker)
    callbacks: dict[str, Any] = {event: JobRequest(id, event, b"{}") for event, id in CALLBACKS.items()}
    scene.run(store.open_batch(BATCH, "batch", **callbacks))
    own = {"key": "one", "concurrency": concurrency} if concurrency else {}
    scene.enqueue(
        job(J, priority=1, dedupe_key="j", batch=BATCH, on_failed={"task": "tell"}, source=source, **own),
        job(K, priority=2, dedupe_key="k", batch=BATCH, source=source, **own),
    )
    waiters = [(DEPENDENT, [J, K], "cancel"), (PROCEEDING, [J], "proceed"), (BLOCKED, [J], "block")]
    for id, after, on_failure in waiters if needed else []:
        extra: dict[str, Any] = {"batch": BATCH} if id == DEPENDENT else {}
        scene.enqueue(job(id, after=after, on_failure=on_failure, **extra))
    if closed:
        scene.run(store.close_batch(BATCH))
    scene.settle()


def limit(scene: Scene, *, max_crashes: int, quarantine_by: QuarantineBy = "job") -> None:
    row = TaskRow(
        name=TASK, queue="default", source="", max_attempts=3, max_crashes=max_crashes, max_losses=3,
        on_worker_death="retry", quarantine_by=quarantine_by, backoff_s=(0.0,),
    )  # fmt: skip
    scene.run(store.register_tasks([row]))


def register(connection: db.Connection, worker: UUID, formerly: UUID | None = None) -> None:
    name = NAMES[worker]
    db.run(
        connection,
        store.register_worker(
            worker, name=name, hostname="here", pid=1, version="1", queues=None, slots=100, secret=worker,
            formerly=formerly,
        ),
    )  # fmt: skip
    db.run(connection, store.tell_tasks(worker, [TASK], app="app"))


def waiting(scene: Scene) -> None:
    """Both may be claimed; K has crashed once."""
    prepare(scene)
    scene.claim(K)
    scene.end(K, Outcome.CRASHED, signal="SIGSEGV", after_s=0.0)


def queued(scene: Scene) -> None:
    """J has the slot of their key, and K queues for it."""
    prepare(scene, concurrency=1)


def running(scene: Scene) -> None:
    """Both run in Anna, which has shown no life for an hour; J has crashed once, and its deadline is over."""
    prepare(scene)
    scene.claim(J)
    scene.end(J, Outcome.CRASHED, signal="SIGSEGV", after_s=0.0)
    scene.claim(J, K)
    scene.connection.execute(
        "insert into outlive.liveness values (%s, 4711, pg_postmaster_start_time(), 1, null)", [ANNA]
    )
    scene.connection.execute("insert into outlive.expiring values (%s, true, outlive.now() + interval '1 minute')", [J])
    scene.connection.execute("update outlive.running set begun = false where id = %s", [K])
    scene.run(store.keep_steps(ANNA, [scene.tokens[J]], [KeptStep("ask", b"1", None, 0.1)]))


def keyed(scene: Scene) -> None:
    """J runs with the slot of their key, and K queues for it, and has expired."""
    prepare(scene, concurrency=1)
    scene.claim(J)
    scene.connection.execute("insert into outlive.expiring values (%s, false, outlive.now())", [K])


def orphaned(scene: Scene) -> None:
    """Both run in Anna, which was declared dead. J was lost twice before."""
    prepare(scene, concurrency=2)
    for worker in (CARL, BERT):
        register(scene.connection, worker)
        scene.claim(J, worker=worker)
        die(scene, worker)
        scene.run(store.reap())
        if worker is CARL:
            continue
        scene.tokens |= {one.id: one.token for one in scene.run(store.claim_suspect(ANNA, tasks=[TASK]))}
    scene.claim(K)
    die(scene, ANNA)


def die(scene: Scene, worker: UUID) -> None:
    scene.connection.execute(
        "update outlive.workers set state = 'dead', died_at = outlive.now() where id = %s", [worker]
    )


def suspected(scene: Scene) -> None:
    """J is a suspect because Anna and Carl, which were declared dead, lost it; K was lost once, and waits."""
    prepare(scene, concurrency=2)
    for worker, jobs in ((CARL, [J]), (ANNA, [J, K])):
        register(scene.connection, worker)
        scene.claim(*jobs, worker=worker)
        die(scene, worker)
        scene.run(store.reap())
    scene.settle()


def suspended(scene: Scene) -> None:
    """J has waited for a signal in vain, and Anna has parked it; K waits for another job."""
    prepare(scene)
    scene.claim(J, K)
    scene.wait(J, signal="go", after_s=60.0)
    scene.wait(K, spawns=b"[" + msgspec.json.encode({"id": str(SPAWNED), "task": TASK, "priority": 1}) + b"]")
    scene.settle()


def caught(scene: Scene) -> None:
    """J is in quarantine, and an operator has blocked K."""
    prepare(scene, concurrency=2)
    scene.run(store.block([K], "for a while"))
    scene.claim(J)
    scene.run(store.keep_steps(ANNA, [scene.tokens[J]], [KeptStep("ask", b"1", None, 0.1)]))
    scene.end(J, Outcome.CRASHED, after_s=0.0)
    scene.settle()
    scene.claim(J)
    scene.end(J, Outcome.CRASHED)
    scene.settle()


def finished(scene: Scene) -> None:
    """J has failed, K has succeeded, and the batch is done."""
    prepare(scene, concurrency=2)
    scene.claim(J, K)
    tokens = [scene.tokens[J], scene.tokens[K]]
    scene.run(store.keep_steps(ANNA, tokens, [KeptStep("ask", b"1", None, 0.1)] * 2))
    scene.end(K, Outcome.SUCCEEDED, result=b"1")
    scene.end(J, Outcome.FAILED, final=True)
    scene.settle()


def ended(scene: Scene) -> None:
    """J has failed, K has succeeded, and no other job needs them."""
    prepare(scene, needed=False)
    scene.claim(J, K)
    tokens = [scene.tokens[J], scene.tokens[K]]
    scene.run(store.keep_steps(ANNA, tokens, [KeptStep("ask", b"1", None, 0.1)] * 2))
    scene.end(K, Outcome.SUCCEEDED, result=b"1")
    scene.end(J, Outcome.FAILED, final=True)


def guilty(scene: Scene) -> None:
    """J has just been claimed, K has crashed, and both are over the limit of crashes, which was lowered."""
    prepare(scene)
    scene.claim(K)
    scene.end(K, Outcome.CRASHED, after_s=0.0)
    scene.claim(J)
    limit(scene, max_crashes=1, quarantine_by="fingerprint")


def late(scene: Scene) -> None:
    """J has ended at the level serializable, while OTHER was enqueued to wait for it: all that follows is left."""
    prepare(scene, concurrency=1)
    scene.claim(J)
    with scene.other.transaction():
        db.run(scene.other, store.enqueue([job(OTHER, after=[J])], max_args_bytes=1000))
        scene.connection.isolation_level = IsolationLevel.SERIALIZABLE
        with scene.connection.transaction():
            scene.run(store.write_end(ANNA, Ended(scene.tokens[J])))
        scene.connection.isolation_level = None


def paused(scene: Scene) -> None:
    """Their queue is paused, and so both wait without a slot of their key."""
    prepare(scene, concurrency=1)
    scene.run(store.pause_queue("default"))
    scene.settle()


def opened(scene: Scene) -> None:
    """The batch is open; J has succeeded, and K runs."""
    prepare(scene, closed=False)
    scene.claim(J, K)
    scene.end(J, Outcome.SUCCEEDED)
    scene.settle()


def sourced(scene: Scene) -> None:
    """Both are of a source that admits one at a time and has failed before; J runs."""
    scene.run(store.register_sources([SourceLimits(SITE, max_concurrency=1, breaker_failures=2)]))
    prepare(scene, source=SITE)
    lane = Lane("default", SITE, TASK, 1, asks=True)
    turn = scene.run(store.end_and_claim(ANNA, (), [lane], limit=1, lease_s=LEASE_S))
    scene.tokens[J] = turn.claimed[0].token
    scene.run(store.count_outcomes([(SITE, None, False)]))


def scheduled(scene: Scene) -> None:
    """A schedule is due that cancels its last job, J, which waits; K runs."""
    prepare(scene)
    scene.claim(K)
    scene.run(store.add_schedule(SCHEDULE, {"task": TASK, "every_s": 60, "overlap": "cancel"}))
    scene.connection.execute("update outlive.schedules set next_at = outlive.now(), last_job = %s", [J])


SCENES: Sequence[Callable[[Scene], None]] = (
    *(waiting, queued, running, keyed, orphaned, suspected, suspended, caught, finished, opened),
    *(ended, guilty, late, paused, sourced, scheduled),
)
