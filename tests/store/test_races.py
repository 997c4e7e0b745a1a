"""Batches in opposite order, and a brawl of eight. `./run pairs` has every two statements on the same job."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Claimed, Ended, new_job_id
from outlive.states import FINISHED, Outcome
from tests.driving.making import TASK, Queue, links, request
from tests.store.acting import (
    ANNA,
    ENDS,
    LANE,
    Place,
    Scene,
    assert_sound,
    bring,
    fire,
    give_up,
)

# Batches that meet in opposite order. A batch can't be stopped halfway, so the first takes its two steps in
# one transaction: what it has locked by then is what a batch would have locked.


def job_ids(count: int) -> list[UUID]:
    return sorted(new_job_id() for _ in range(count))


def failed(queue: Queue, id: UUID, key: str) -> UUID:
    return bring(queue, Place.FAILED, id=id, dedupe_key=key).job


def test_cancelling_a_batch_does_not_deadlock_with_a_worker_that_claims_one_of_it_and_ends_another(ring):
    running, waiting = job_ids(2)
    scene = bring(ring.watcher, Place.RUNNING, id=running)
    ring.watcher.make(id=waiting)
    with ring.first.transaction():
        assert [claimed.id for claimed in ring.first.claim(limit=1)] == [waiting]
        answer = ring.start(lambda second: second.run(store.cancel([running, waiting])))
        assert not answer.done()
        assert ring.first.run(store.renew(ANNA, [scene.token])) == {scene.token: False}  # It is not locked.
    assert [(change.state, change.changed) for change in answer.result()] == [("running", True), ("running", True)]


def test_retrying_batches_in_opposite_order_of_their_keys_does_not_deadlock(ring):
    one, two, three, four = job_ids(4)
    for id, key in [(one, "a"), (two, "b"), (three, "b"), (four, "a")]:
        failed(ring.watcher, id, key)
    with ring.first.transaction():
        ring.first.run(store.retry([one]))
        answer = ring.start(lambda second: second.run(store.retry([three, four])))
        ring.first.run(store.retry([two]))
    assert [change.changed for change in answer.result()] == [False, False]
    assert_sound(ring.watcher)


@pytest.mark.long
def test_replacing_and_retrying_the_jobs_of_the_same_keys_never_deadlocks(connect):
    keys = [f"{n}" for n in range(30)]
    made: list[UUID] = []

    def replace(queue: Queue, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            chosen = chance.sample(keys, 20)
            asked = [request(dedupe_key=key, on_conflict="replace") for key in chosen]
            queue.enqueue(asked)
            made.extend(one.id for one in asked)

    def retry(queue: Queue, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            some = made[-120:]
            queue.run(store.retry(chance.sample(some, min(len(some), 40))))

    with ThreadPoolExecutor(4) as threads:
        racers = [(replace, 1), (replace, 2), (retry, 3), (retry, 4)]
        for one in [threads.submit(act, connect(), seed) for act, seed in racers]:
            one.result()
    assert_sound(connect())


# A brawl.


@dataclass(slots=True)
class Fighter:
    """A worker, client and operator in one, which does everything at random and remembers each answer."""

    connection: Queue
    worker: UUID
    random: random.Random
    jobs: list[UUID]  # Shared by all of them.
    owners: dict[int, UUID] = field(default_factory=dict)  # Every token that it was ever given, and under which id.
    reported: dict[int, Outcome] = field(default_factory=dict)  # The ends that the store accepted.
    retried: Counter[UUID] = field(default_factory=Counter)

    def fight(self, rounds: int) -> None:
        rare = [self.sweep, self.keep, self.finish, self.ask, self.take_suspect, self.be_given_up]
        acts = [self.turn] * 6 + [self.operate] * 4 + rare
        for _ in range(rounds):
            self.random.choice(acts)()

    def some(self, of: list[UUID]) -> list[UUID]:
        return self.random.sample(of, min(len(of), self.random.randint(1, 12)))

    def turn(self) -> None:
        """End some attempts, also stale ones, and claim others, some of them with leases that are over at once."""
        tokens = self.random.sample(list(self.owners), min(len(self.owners), self.random.randint(0, 6)))
        events = {token: self.random.choice(list(ENDS)) for token in tokens}
        ends = [Ended(token, **ENDS[event], after_s=0.0) for token, event in events.items()]
        lease_s = self.random.choice([300.0, -1.0])
        turn = self.connection.run(store.end_and_claim(self.worker, ends, [LANE], limit=6, lease_s=lease_s))
        self.begin(turn.claimed)
        for token in set(tokens) - set(turn.refused):
            assert token not in self.reported
            self.reported[token] = ENDS[events[token]]["outcome"]

    def take_suspect(self) -> None:
        claimed = self.connection.run(store.claim_suspect(self.worker, tasks=[TASK]))
        self.begin(claimed)

    def begin(self, claimed: list[Claimed]) -> None:
        """Begin the claimed jobs, except known killers, which count no attempt."""
        caught = self.connection.run(store.convict(self.worker, [one.token for one in claimed]))
        self.owners |= {one.token: self.worker for one in claimed if one.id not in caught}

    def finish(self) -> None:
        if self.owners:
            token = self.random.choice(list(self.owners))
            fire(self.connection, "complete", Scene(self.jobs[0], self.owners[token], token))

    def keep(self) -> None:
        self.connection.run(store.renew(self.worker, self.owners))

    def be_given_up(self) -> None:
        """Be declared dead and lose the jobs, and come back under a new id."""
        give_up(self.connection, self.worker)
        turn = self.connection.run(store.end_and_claim(self.worker, (), [LANE], limit=6))
        assert turn.claimed == []
        if self.random.random() < 0.5:
            self.connection.run(store.reap(batch=50))
        formerly, self.worker = self.worker, UUID(int=self.worker.int + 100)
        self.connection.register_worker(self.worker, formerly=formerly)

    def sweep(self) -> None:
        self.connection.run(store.admit_due())
        self.connection.run(store.check_late_ends())
        self.connection.run(store.reap(batch=50))
        self.connection.run(store.expire(batch=50))
        self.connection.run(store.quarantine_killers())
        for job in self.connection.run(store.held_attempts(self.worker)):
            if job.alone_s:
                self.connection.run(store.end_time_alone(self.worker, job.token))

    def ask(self) -> None:
        """Enqueue jobs with a few keys that all fighters use."""
        batch = [request(dedupe_key=key, on_conflict="replace") for key in self.random.sample("abcdefgh", 3)]
        batch += [request(links=links(key, 2)) for key in self.random.sample("uvwxyz", 3)]
        refused = self.connection.enqueue(batch)
        self.jobs += [job.id for job in batch if job.id not in refused]

    def operate(self) -> None:
        ids = self.some(self.jobs)
        match self.random.choice(["cancel", "retry", "release", "block"]):
            case "cancel":
                self.connection.run(store.cancel(ids))
            case "retry":
                changes = self.connection.run(store.retry(ids))
                self.retried.update(change.id for change in changes if change.changed)
            case "release":
                self.connection.run(store.release(ids))
            case "block":
                self.connection.run(store.block(ids, "for a while"))


def drain(queue: Queue, worker: UUID, jobs: list[UUID]) -> None:
    """Reap, claim and finish until nothing is left: every round finishes some job."""
    left = len(jobs) + 1
    while left:
        queue.execute("update outlive.running set lease_until = '2000-01-01Z'")  # Everybody else is gone.
        queue.run(store.expire(batch=10_000))
        queue.execute("update outlive.held set ready_at = outlive.now() where why = 'suspect'")  # The storm is over.
        queue.run(store.release(jobs))
        queue.follow()  # Jobs that queue for a slot of their key are admitted by reapers.
        claimed = queue.claim(worker=worker, limit=512)
        queue.run(store.end_and_claim(worker, [Ended(one.token) for one in claimed]))
        before, left = left, sum(state not in FINISHED for state in queue.run(store.statuses(jobs)).values())
        assert left < before, "a round finished nothing"


@pytest.mark.parametrize("seed", [1, 2])
def test_in_a_brawl_of_eight_every_job_ends_once_and_no_token_is_given_twice(connect, seed):
    connection = connect()
    limits = {"max_attempts": 3, "max_crashes": 2, "max_losses": 3}
    connection.register_task(**limits, quarantine_by="fingerprint", backoff_s=(0.0,))
    batch = [request(args=b"[%d]" % (n // 2)) for n in range(500)]
    connection.enqueue(batch)
    jobs = [job.id for job in batch]
    fighters = [Fighter(connect(), UUID(int=n), random.Random(seed * 100 + n), jobs) for n in range(8)]
    with ThreadPoolExecutor(len(fighters)) as threads:
        fights = [threads.submit(fighter.fight, 60) for fighter in fighters]
        for fight in fights:
            fight.result(timeout=60)
    assert_sound(connection)

    tokens = [(token, worker) for fighter in fighters for token, worker in fighter.owners.items()]
    assert len({token for token, _ in tokens}) == len(tokens) > 500
    drain(connection, UUID(int=99), jobs)
    assert_sound(connection)
    rows = connection.execute("select token, worker, outcome, state, job_id from outlive.attempts").fetchall()
    ended = {token: (worker, outcome) for token, worker, outcome, _, _ in rows}
    for token, worker in tokens:
        assert ended[token][0] == worker
    for fighter in fighters:
        for token, outcome in fighter.reported.items():
            assert ended[token] == (fighter.owners[token], outcome)
    finished = Counter(job for *_, state, job in rows if state in FINISHED)
    retried = sum((fighter.retried for fighter in fighters), Counter[UUID]())
    assert set(finished) == set(jobs)
    assert all(times <= 1 + retried[job] for job, times in finished.items())
    worst = connection.execute("select min(losses), max(losses) from outlive.attempts").fetchone()
    assert worst is not None
    assert 0 <= worst[0] < worst[1] <= 4 * limits["max_losses"]
