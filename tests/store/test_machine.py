"""Many imaginary workers, clients and people, in any order that hypothesis can think of, on a real Postgres.

After every step the invariants of the store are looked at: V1 what was acknowledged is never lost; V2 a job finishes
once, and stays so until a person retries it; V3 only the current token writes; V4 nothing runs past its lease once
the reaper has swept; V5 a killer stops at its limit, with the cause stored; V6 every loss is counted once, and a false
one taken back once; who is lost once more often than it may waits as a suspect, and nowhere else; V7 a batch counts
its jobs as they are, and calls back once; V8 no more jobs of a concurrency key run than it allows, and none waits while
its key has a free slot. Jobs that wait for others are released when these have ended, and not before (`assert_sound`,
`given`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outlive import db, store
from outlive.errors import BadArguments, StaleAttempt
from outlive.model import Claimed, Ended, Lost
from outlive.states import FINISHED, Outcome, State
from tests.driving.making import TASK, Queue, request
from tests.store.acting import ENDS, LANE, NOW, assert_sound, clear, complete, contents, give_up
from tests.store.histories import SHORT, run_histories

T = TypeVar("T")
WORKERS = [UUID(int=n) for n in range(1, 6)]
BATCHES = [UUID(int=n) for n in (5001, 5002)]
LEASE_S = 300.0

# Some of everything, but most of what kills: the paths to quarantine are long.
ends = st.sampled_from([*sorted(ENDS), "crash", "crash", "overrun"])
numbers = st.integers(min_value=0, max_value=1000)
keys = st.sampled_from([None, None, "a", "b", "c"])
batches = st.sampled_from([None, *BATCHES])
limits = st.sampled_from([None, None, ("x", 1), ("x", 1), ("y", 2), ("y", 2), ("y", 3)])  # By concurrency key.


@dataclass(frozen=True, slots=True)
class Right:
    """A worker was given this token for this job. It may use the token long after it has lost the job."""

    job: UUID
    worker: UUID
    token: int


class Store(RuleBasedStateMachine):
    """A model of the answers that clients, workers and operators got, compared with the tables."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self.connection = queue
        self.now: datetime = NOW
        self.asked = 0
        self.acknowledged: list[UUID] = []
        self.rights: list[Right] = []
        self.current: dict[UUID, Right] = {}  # The last right to each job that a worker was given.
        self.leases: dict[int, datetime] = {}  # By token, until when.
        self.finished: dict[UUID, tuple[State, int]] = {}  # How, and after how many attempts.
        self.kills: Counter[UUID] = Counter()  # Crashes since a person last freed the job.
        self.history: list[UUID] = []  # Who has killed, since a person last freed any: all have the same arguments.
        self.losses: Counter[UUID] = Counter()
        self.lost_by: defaultdict[UUID, Counter[UUID]] = defaultdict(Counter)  # The losses of each worker that count.
        self.alone: set[int] = set()  # Tokens of suspects that run.
        self.workers = list(WORKERS)
        self.alive = list(WORKERS)  # The others are dead or cut off, and may return.
        self.given_up: set[UUID] = set()  # No worker can return under these ids.
        self.max_crashes, self.max_losses = 2, 3
        self.by_fingerprint = False
        self.needs: dict[UUID, list[UUID]] = {}  # What jobs wait for that only success releases, or a person.
        self.pruned: defaultdict[UUID, Counter[str]] = defaultdict(Counter)  # The jobs of each batch, by their state.
        self.called: set[UUID] = set()

    def run(self, statement: db.Statement[Any]) -> Any:
        return self.connection.run(statement)

    def one_of(self, choice: list[T], number: int) -> T:
        return choice[number % len(choice)]

    @initialize(max_losses=st.sampled_from([3, 2, 1]))
    def begin(self, max_losses: int) -> None:
        self.max_losses = max_losses
        clear(self.connection)
        self.connection.execute("select setseed(0)")  # The same steps give the same backoffs.
        self.connection.set_now(self.now)
        self.limit(2, False)
        for worker in self.workers:
            self.connection.register_worker(worker)
        for batch in BATCHES:
            callbacks: dict[str, Any] = {f"on_{event}": request(event) for event in ("success", "failure", "done")}
            self.run(store.open_batch(batch, "import", **callbacks))
        for key in (None, None, None, "a", "b"):
            self.enqueue(key, "skip", None, BATCHES[0], None)
        self.claim(0, 3)

    # Clients

    @rule(
        key=keys,
        on_conflict=st.sampled_from(["skip", "replace"]),
        delay_s=st.sampled_from([None, 0.0, 30.0]),
        batch=batches,
        limit=limits,
    )
    def enqueue(
        self,
        key: str | None,
        on_conflict: str,
        delay_s: float | None,
        batch: UUID | None,
        limit: tuple[str, int] | None,
    ) -> None:
        self.asked += 1
        job = request(
            id=UUID(int=self.asked),
            dedupe_key=key,
            on_conflict=on_conflict,
            delay_s=delay_s,
            links=_links(limit, batch=batch),
        )
        full = self.connection.execute(_FULL, [batch]).fetchone() is not None
        try:
            with db.translated_errors():
                refused = self.run(store.enqueue([job], max_args_bytes=100))
        except BadArguments:
            # The last job of its batch may have been replaced: then the batch is done.
            assert full or (key and on_conflict == "replace"), "a batch refused a job"
            return
        if job.id not in refused:
            self.acknowledged.append(job.id)
        else:
            assert self.connection.state_of(refused[job.id]) not in FINISHED
            assert on_conflict == "skip" or refused[job.id] in self.current or self.is_kept(refused[job.id])

    @precondition(lambda self: self.acknowledged)
    @rule(
        chosen=st.lists(numbers, min_size=1, max_size=3),
        on_failure=st.sampled_from(["block", "proceed", "cancel"]),
        key=keys,
        limit=limits,
    )
    def enqueue_after(self, chosen: list[int], on_failure: str, key: str | None, limit: tuple[str, int] | None) -> None:
        """A job waits for some others, in whatever state they are."""
        self.asked += 1
        needs = [self.one_of(self.acknowledged, number) for number in chosen]
        links = _links(limit, after=needs, on_failure=on_failure)
        job = request(id=UUID(int=self.asked), links=links, dedupe_key=key, on_conflict="skip")
        if self.run(store.enqueue([job], max_args_bytes=100)) == {}:
            self.acknowledged.append(job.id)
            if on_failure != "proceed":
                self.needs[job.id] = needs

    @precondition(lambda self: self.acknowledged)
    @rule(number=numbers)
    def enqueue_again(self, number: int) -> None:
        """A client that got no answer repeats its request, and nothing changes."""
        before = contents(self.connection)
        job = request(id=self.one_of(self.acknowledged, number))
        assert self.run(store.enqueue([job], max_args_bytes=100)) == {}
        assert contents(self.connection) == before

    # Workers

    def given(self, worker: UUID, claimed: list[Claimed]) -> None:
        for one in claimed:
            assert one.token not in {right.token for right in self.rights}, "a token was given twice"
            assert one.crashes < self.max_crashes, "a killer was started again"
            right = Right(one.id, worker, one.token)
            self.rights.append(right)
            assert one.id not in self.current, "it was claimed while it was running"
            self.current[one.id] = right
            self.leases[one.token] = self.now + timedelta(seconds=LEASE_S)
            assert one.losses == self.losses[one.id]
            assert (one.alone_s > 0) is (one.losses > 0 and one.losses >= self.max_losses - 1)
            if one.alone_s:
                self.alone.add(one.token)
            states = self.run(store.statuses(self.needs.get(one.id, [])))
            assert set(states.values()) <= {State.SUCCEEDED}, "it was released too early"
        assert not claimed or worker not in self.given_up, "a dead worker was given something"

    @precondition(lambda self: self.alive)
    @rule(number=numbers, limit=st.integers(1, 4))
    def claim(self, number: int, limit: int) -> None:
        worker = self.one_of(self.alive, number)
        turn = self.run(store.end_and_claim(worker, (), [LANE], limit=limit, lease_s=LEASE_S))
        self.given(worker, turn.claimed)

    @precondition(lambda self: self.alive)
    @rule(number=numbers)
    def claim_suspect(self, number: int) -> None:
        worker = self.one_of(self.alive, number)
        self.given(worker, self.run(store.claim_suspect(worker, tasks=[TASK], lease_s=LEASE_S)))

    @precondition(lambda self: self.alive)
    @rule(number=numbers)
    def renew(self, number: int) -> None:
        worker = self.one_of(self.alive, number)
        tokens = [right.token for right in self.rights if right.worker == worker]
        mine = {right.token for right in self.current.values() if right.worker == worker}
        assert set(self.run(store.renew(worker, tokens, lease_s=LEASE_S))) == mine
        self.leases |= dict.fromkeys(mine, self.now + timedelta(seconds=LEASE_S))

    @precondition(lambda self: self.current)
    @rule(number=numbers, event=ends, final=st.sampled_from([False, False, True]), late=st.booleans())
    def end(self, number: int, event: str, final: bool, late: bool) -> None:
        """A worker reports an end, also one that was declared dead and is only late."""
        right = self.one_of(list(self.current.values()), number)
        report = Ended(right.token, **ENDS[event], final=final, after_s=None if late else 0.0)
        turn = self.run(store.end_and_claim(right.worker, [report]))
        assert turn.refused == []
        self.ended(right, ENDS[event]["outcome"])
        suspected = right.token in self.alone or self.losses[right.job] >= self.max_losses - 1
        if suspected and event not in ("succeed", "hand_back", "stop"):
            self.clear_losses(right.job)
        if event in ("crash", "overrun"):
            self.kills[right.job] += 1
            self.history.append(right.job)
            [row] = self.run(store.list_attempts(right.job))[-1:]
            assert row.signal == ENDS[event]["signal"]

    @precondition(lambda self: self.current)
    @rule(number=numbers)
    def complete(self, number: int) -> None:
        right = self.one_of(list(self.current.values()), number)
        complete(self.connection, right.worker, right.token)
        self.ended(right, Outcome.SUCCEEDED)

    def ended(self, right: Right, outcome: Outcome) -> None:
        del self.current[right.job]
        found = self.run(store.ended([right.token]))
        assert found[right.token][0] is outcome
        self.note(right.job)

    @precondition(lambda self: self.rights)
    @rule(number=numbers, event=st.sampled_from([*sorted(ENDS), "complete", "renew"]), stranger=st.booleans())
    def come_back_too_late(self, number: int, event: str, stranger: bool) -> None:
        """A worker returns with a token that was taken from it, or one that was never its own: nothing is written."""
        stale = [right for right in self.rights if self.current.get(right.job) != right]
        if self.current and (stranger or not stale):
            owned = self.one_of(list(self.current.values()), number)
            token, worker = owned.token, UUID(int=99)
        else:
            lost = self.one_of(stale, number)
            token, worker = lost.token, lost.worker
        before = contents(self.connection)
        if event == "renew":
            assert self.run(store.renew(worker, [token], lease_s=LEASE_S)) == {}
        elif event == "complete":
            with pytest.raises(StaleAttempt), db.translated_errors():
                complete(self.connection, worker, token)
        else:
            turn = self.run(store.end_and_claim(worker, [Ended(token, **ENDS[event])]))
            assert turn.refused == [token]
        assert contents(self.connection) == before

    @precondition(lambda self: self.current)
    @rule(number=numbers)
    def convict(self, number: int) -> None:
        """A worker asks which of its jobs are known to kill, before it begins them."""
        worker = self.one_of(list(self.current.values()), number).worker
        mine = {right.job: right.token for right in self.current.values() if right.worker == worker}
        elsewhere = {job: sum(killer != job for killer in self.history) * self.by_fingerprint for job in mine}
        guilty = {job for job in mine if self.kills[job] + elsewhere[job] >= self.max_crashes}
        assert set(self.run(store.convict(worker, mine.values()))) == guilty
        for job in guilty:
            del self.current[job]
            self.note(job)
        assert self.run(store.ended([mine[job] for job in guilty])) == {}, "an attempt that was never made has ended"

    @rule(number=numbers)
    def vanish_or_return(self, number: int) -> None:
        worker = self.one_of(self.workers, number)
        self.alive = [other for other in self.workers if (other in self.alive) != (other == worker)]

    @rule(number=numbers)
    def give_up(self, number: int) -> None:
        worker = self.one_of(self.workers, number)
        give_up(self.connection, worker)
        self.given_up.add(worker)

    @precondition(lambda self: self.given_up.intersection(self.workers))
    @rule(number=numbers)
    def begin_again(self, number: int) -> None:
        """A worker that was declared dead lives: it registers under a new id and names its former one."""
        worker = self.one_of([one for one in self.workers if one in self.given_up], number)
        reborn = UUID(int=worker.int + 1000)
        lost = self.lost_by.pop(worker, Counter[UUID]())
        gain = {job: times for job, times in lost.items() if self.is_held_for_losses(job)}
        for _ in range(2):  # It did not hear the answer.
            self.connection.register_worker(reborn, formerly=worker)
        for job, times in gain.items():
            self.losses[job] -= times
        self.workers[self.workers.index(worker)] = reborn
        self.alive = [reborn if one == worker else one for one in self.alive]

    @rule(number=numbers, limit=st.integers(1, 4), returns=st.booleans())
    def die_with_its_jobs(self, number: int, limit: int, returns: bool) -> None:
        """Take many single steps at once: a worker claims some jobs, and is declared dead."""
        worker = self.one_of(self.workers, number)
        if worker in self.given_up:
            self.begin_again(0)
        worker = self.one_of(self.workers, number)
        self.given(worker, self.run(store.claim_suspect(worker, tasks=[TASK], lease_s=LEASE_S)))
        turn = self.run(store.end_and_claim(worker, (), [LANE], limit=limit, lease_s=LEASE_S))
        self.given(worker, turn.claimed)
        self.give_up(number)
        self.reap()
        if returns:
            self.begin_again(0)

    def is_kept(self, job: UUID) -> bool:
        """Whether a job is a killer or a suspect, which `replace` must not set free."""
        kept = "select from outlive.held where id = %s and why in ('quarantined', 'suspect')"
        return self.connection.execute(kept, [job]).fetchone() is not None

    def is_held_for_losses(self, job: UUID) -> bool:
        """Whether a loss that is taken back can change the place of a job."""
        state = self.connection.state_of(job)
        if state is State.QUARANTINED:
            held = self.connection.execute("select details from outlive.held where id = %s", [job]).fetchone()
            return held is not None and "vanished" in held[0]
        return state in (State.PENDING, State.RETRYABLE, State.RUNNING)

    # Time and the reaper

    @rule(seconds=st.sampled_from([1.0, 60.0, LEASE_S, LEASE_S + 1, 86400.0]))
    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.connection.set_now(self.now)

    @rule(seconds=st.sampled_from([0.0, 1.0, LEASE_S, LEASE_S + 1]))
    def expire(self, seconds: float) -> None:
        self.advance(seconds)
        due = {right.token for right in self.current.values() if self.leases[right.token] < self.now}
        lost = self.run(store.expire())
        assert {one.token for one in lost} == due
        self.lost(lost)
        over = "select id from outlive.running where lease_until < outlive.now()"
        assert self.connection.execute(over).fetchall() == [], "it runs past its lease"
        assert self.run(store.list_stuck()) == []

    @rule()
    def reap(self) -> None:
        due = {right.token for right in self.current.values() if right.worker in self.given_up}
        lost = self.run(store.reap())
        assert {one.token for one in lost} == due
        self.lost(lost)

    def lost(self, lost: list[Lost]) -> None:
        for one in lost:
            right = self.current[one.id]
            assert (one.token, one.worker) == (right.token, right.worker)
            self.ended(right, Outcome.LOST)
            self.losses[one.id] += 1
            self.lost_by[one.worker][one.id] += 1

    def clear_losses(self, job: UUID) -> None:
        self.losses.pop(job, None)
        for lost in self.lost_by.values():
            lost.pop(job, None)

    @rule()
    def quarantine_killers(self) -> None:
        self.run(store.quarantine_killers())
        over = "select id from outlive.waiting where crashes >= %s"
        assert self.connection.execute(over, [self.max_crashes]).fetchall() == []

    @rule(number=numbers, limit=limits, verb=st.sampled_from(["fail", "succeed", "hand_back"]))
    def crowd(self, number: int, limit: tuple[str, int] | None, verb: str) -> None:
        """Take many single steps at once: jobs of one key are enqueued, claimed and ended."""
        for _ in range(3):
            self.enqueue(None, "skip", None, None, limit)
        if self.alive:
            self.claim(number, 3)
        if self.current:
            self.end(number, verb, False, late=False)

    @rule()
    def admit_due(self) -> None:
        self.run(store.admit_due())
        forgotten = "select from outlive.keyed_jobs where state = 'later' and ready_at <= outlive.now()"
        assert self.connection.execute(forgotten).fetchall() == []
        assert self.connection.execute("select from outlive.key_turns").fetchall() == []

    @rule()
    def end_time_alone(self) -> None:
        for right in self.current.values():
            if right.token in self.alone:
                assert self.run(store.end_time_alone(right.worker, right.token))
                self.alone.discard(right.token)

    @rule(max_crashes=st.integers(1, 3), by_fingerprint=st.booleans())
    def limit(self, max_crashes: int, by_fingerprint: bool) -> None:
        self.max_crashes, self.by_fingerprint = max_crashes, by_fingerprint
        by = "fingerprint" if by_fingerprint else "job"
        self.connection.register_task(
            max_attempts=3, max_crashes=max_crashes, max_losses=self.max_losses, quarantine_by=by
        )

    # People

    @precondition(lambda self: self.acknowledged)
    @rule(number=numbers, verb=st.sampled_from(["cancel", "retry", "release", "block"]))
    def operate(self, number: int, verb: str) -> None:
        job = self.one_of(self.acknowledged, number)
        statement: Callable[[list[UUID]], db.Statement[Any]] = {
            "cancel": store.cancel,
            "retry": store.retry,
            "release": store.release,
            "block": lambda ids: store.block(ids, "for a while"),
        }[verb]
        before = contents(self.connection)
        [change] = self.run(statement([job]))
        assert change.state == self.connection.state_of(job)
        if not change.changed:
            assert change.note
            assert contents(self.connection) == before
        elif verb in ("retry", "release"):
            self.finished.pop(job, None)
            self.needs.pop(job, None)
            self.kills.pop(job, None)
            self.clear_losses(job)
            if verb == "release":
                self.history.clear()
        self.note(job)

    @precondition(lambda self: self.acknowledged)
    @rule(number=numbers)
    def prune(self, number: int) -> None:
        job = self.one_of(self.acknowledged, number)
        needed = self.connection.execute("select from outlive.dependencies where needs = %s", [job]).fetchone()
        state = self.connection.state_of(job)
        forgettable = state in {*FINISHED, State.QUARANTINED} and needed is None
        [[batch]] = self.connection.execute("select batch from outlive.jobs where id = %s", [job]).fetchall()
        assert self.run(store.prune_jobs([job])) == forgettable
        if forgettable:
            assert self.connection.state_of(job) is None
            self.acknowledged.remove(job)
            self.pruned[batch][str(state)] += 1
            self.finished.pop(job, None)
            self.kills.pop(job, None)
            self.clear_losses(job)

    @rule(batch=st.sampled_from(BATCHES))
    def close(self, batch: UUID) -> None:
        self.run(store.close_batch(batch))

    @rule(batch=st.sampled_from(BATCHES), really=st.sampled_from([False, False, True]))
    def cancel_all(self, batch: UUID, really: bool) -> None:
        if really:
            self.run(store.close_batch(batch, cancelling=True))
            self.run(store.cancel_batch(batch))
            for job in self.acknowledged:
                self.note(job)

    # What must always be true

    def note(self, job: UUID) -> None:
        """Remember that a job has finished; it must not change any more."""
        state = self.connection.state_of(job)
        if state in FINISHED and job not in self.finished:
            assert state is not None
            self.finished[job] = (state, len(self.run(store.list_attempts(job))))

    @invariant()
    def sound(self) -> None:
        assert_sound(self.connection)

    @invariant()
    def verify_raises_no_false_alarm(self) -> None:
        assert self.run(store.verify_jobs(UUID(int=0), batch=1000)).wrong == []
        assert self.run(store.verify_keys()).wrong == []
        assert self.run(store.verify_batches()).wrong == []

    @invariant()
    def v1_what_was_acknowledged_is_there(self) -> None:
        states = self.run(store.statuses(self.acknowledged))
        assert set(states) == set(self.acknowledged)
        running = {job for job, state in states.items() if state is State.RUNNING}
        assert running == set(self.current)

    @invariant()
    def v2_what_has_finished_stays_so(self) -> None:
        rows = self.connection.execute("select job_id, count(*) from outlive.attempts group by 1").fetchall()
        attempts: dict[UUID, int] = dict(rows)
        states = self.run(store.statuses(self.acknowledged))
        found = {job: (states[job], attempts[job]) for job in self.finished}
        assert found == self.finished
        for job, state in states.items():
            if state in FINISHED and job not in self.finished:  # It was replaced by another with its key.
                assert state is State.CANCELLED
                self.finished[job] = (state, attempts[job])

    @invariant()
    def v3_the_current_token_is_the_one_in_the_table(self) -> None:
        rows = self.connection.execute("select id, worker, token from outlive.running").fetchall()
        assert {Right(*row) for row in rows} == set(self.current.values())

    @invariant()
    def v8_no_key_has_more_running_than_it_allows(self) -> None:
        running = """select j.concurrency_key from outlive.running r join outlive.jobs j using (id)
          group by 1 having count(*) > max(j.concurrency)"""
        assert self.connection.execute(running).fetchall() == []

    @invariant()
    def v5_a_killer_stops_with_its_cause_stored(self) -> None:
        crashes: dict[UUID, int] = dict(
            self.connection.execute("select id, crashes from outlive.job_states").fetchall()
        )
        assert all(crashes[job] == kills for job, kills in self.kills.items())
        assert max(crashes.values(), default=0) <= 3
        killers = self.run(store.list_killers(limit=1000))
        assert all(killer["outcome"] or "as other jobs" in killer["details"] for killer in killers)
        held = {job for job, state in self.run(store.statuses(self.acknowledged)).items() if state is State.QUARANTINED}
        assert {killer["id"] for killer in killers} == held
        assert Counter(self.history) == Counter(dict(self.connection.execute(_HISTORY).fetchall()))

    @invariant()
    def v6_every_loss_is_counted_once(self) -> None:
        rows = self.connection.execute(
            "select id, losses from outlive.job_states where completed_at is null"
        ).fetchall()
        assert {job: losses for job, losses in rows if losses} == {
            job: self.losses[job] for job, _ in rows if self.losses[job]
        }
        most = self.max_losses
        misplaced = self.connection.execute(_MISPLACED, [max(1, most - 1), most - 1, 4 * most]).fetchall()
        assert misplaced == [], "a suspect is not where suspects are"

    @invariant()
    def v7_a_batch_counts_its_jobs_as_they_are(self) -> None:
        for batch in BATCHES:
            here = Counter(dict(self.connection.execute(_JOBS_OF, [batch]).fetchall())) + self.pruned[batch]
            found = self.run(store.batch_counts(batch))
            if found is None:  # Nothing has begun yet.
                return
            ended = [here[state] for state in ("succeeded", "failed", "cancelled", "quarantined")]
            counted = [found.succeeded, found.failed, found.cancelled, found.quarantined]
            assert counted == ended
            assert (found.jobs, found.left) == (here.total(), here.total() - sum(ended))
            [[closed]] = self.connection.execute(_CLOSED, [batch]).fetchall()
            assert found.done == (closed and found.left == 0)
            called: dict[str, UUID] = dict(self.connection.execute(_CALLED, [batch]).fetchall())
            if found.done:
                assert {"done", "success" if found.succeeded == found.jobs else "failure"} <= called.keys()
            assert closed or not called
        made = [job for [job] in self.connection.execute(_CALLBACKS).fetchall()]
        assert self.called <= set(made)
        self.called = set(made)


def _links(limit: tuple[str, int] | None, **others: object) -> bytes | None:
    key, concurrency = limit or (None, None)
    given = {name: value for name, value in (others | {"key": key, "concurrency": concurrency}).items() if value}
    return msgspec.json.encode(given) if given else None


_FULL = "select from outlive.batches where id = %s and (done_at is not null or cancelled_at is not null)"
_CLOSED = "select closed_at is not null from outlive.batches where id = %s"
_JOBS_OF = "select outlive.state_of(id), count(*) from outlive.jobs where batch = %s group by 1"
_CALLED = "select event, job from outlive.callbacks where batch = %s and called_at is not null"
_CALLBACKS = """
select j.id from outlive.jobs j full join outlive.callbacks c on c.job = j.id and c.called_at is not null
where j.task in ('success', 'failure', 'done') or c.called_at is not null
"""
_HISTORY = "select job_id, count(*) from outlive.crashes group by job_id"
_MISPLACED = """
select id from outlive.waiting where losses >= %s
union all select id from outlive.held where why = 'suspect' and (losses < %s or losses >= %s)
"""

LONG = settings(SHORT, max_examples=1500, stateful_step_count=80, derandomize=False)


@pytest.mark.timeout(400)  # A failure is first made as small as possible.
def test_the_invariants_hold_in_short_random_histories(queue):
    run_histories(Store, queue)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_invariants_hold_in_long_random_histories(queue):
    run_histories(Store, queue, LONG)
