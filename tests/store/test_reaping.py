"""Reaping the jobs of a dead worker: each is lost once, and keeps its place."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from uuid import UUID, uuid4

import pytest

from outlive import store, wire
from outlive.model import Ended, Lost
from outlive.states import Outcome, State
from tests.driving.making import TASK, Queue, plan
from tests.store.acting import ANNA, BERT, CARL, LANE, Place, assert_sound, bring, complete, fire, give_up
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]


def reap(queue: Queue) -> list[Lost]:
    return queue.run(store.reap())


def stop(queue: Queue, worker: UUID) -> None:
    queue.run(store.stop_worker(worker))


def die(queue: Queue, n: int) -> None:
    """Let a worker claim the next job and die, and reap it."""
    worker = UUID(int=100 + n)
    assert len(queue.claim(worker=worker, limit=1)) == 1
    give_up(queue, worker)
    assert len(reap(queue)) == 1


def test_only_the_attempts_of_the_dead_end(queue):
    jobs = {}
    for worker in (ANNA, BERT, CARL):
        queue.make()
        [jobs[worker]] = queue.claim(worker=worker, limit=1)
    queue.register_worker(BERT)  # Carl is in no list at all, and Anna is dead.
    give_up(queue, ANNA)
    lost = jobs[ANNA]
    assert reap(queue) == [Lost(lost.token, lost.id, lost.task, ANNA, "crawler-1", State.PENDING)]
    assert [queue.state_of(jobs[worker].id) for worker in (BERT, CARL)] == [State.RUNNING] * 2
    [attempt] = queue.run(store.list_attempts(lost.id))
    assert (attempt.outcome, attempt.error) == (Outcome.LOST, "Worker died unexpectedly")
    assert attempt.worker == "crawler-1"


def test_attempts_are_not_read_every_second_if_no_worker_has_ended_lately(queue):
    """While a transaction holds a snapshot, `running` may have a million dead rows."""
    queue.make()
    [job] = queue.claim(worker=ANNA, limit=1)
    give_up(queue, ANNA)
    queue.execute("update outlive.workers set died_at = died_at - interval '1 hour' where id = %s", [ANNA])
    lately = store.reap(lately_s=600.0)
    read = [node for node in plan(queue, lately.text, lately.parameters) if node.get("Relation Name") == "running"]
    assert [node["Actual Loops"] for node in read] == [0]
    assert queue.run(store.reap(lately_s=600.0)) == []
    assert [lost.token for lost in queue.run(store.reap(lately_s=7200.0))] == [job.token]


@pytest.mark.parametrize("on_worker_death", ["retry", "fail"])
@pytest.mark.parametrize("max_losses", [1, 3])
def test_a_job_that_was_to_be_cancelled_is_so_when_its_worker_dies(queue, on_worker_death, max_losses):
    queue.register_task(on_worker_death=on_worker_death, max_losses=max_losses)
    scene = bring(queue, Place.RUNNING)
    fire(queue, "cancel", scene)
    give_up(queue, ANNA)
    assert [lost.state for lost in reap(queue)] == [State.CANCELLED]
    assert queue.state_of(scene.job) is State.CANCELLED


def test_a_batch_is_reaped_the_oldest_attempts_first(queue):
    for _ in range(5):
        queue.make()
    tokens = sorted(claimed.token for claimed in queue.claim(worker=ANNA, limit=5))
    give_up(queue, ANNA)
    batches = [queue.run(store.reap(batch=2)) for _ in range(4)]
    assert [sorted(lost.token for lost in batch) for batch in batches] == [tokens[:2], tokens[2:4], tokens[4:], []]


def test_many_reapers_at_once_count_every_loss_once(queue, connect):
    for _ in range(200):
        queue.make()
    claimed = queue.claim(worker=ANNA, limit=200)
    give_up(queue, ANNA)
    reapers = [connect() for _ in range(4)]

    def sweep(reaper: Queue) -> list[Lost]:
        """Reap until the others are done: an empty batch may only mean that they hold the locks."""
        return [lost for _ in range(20) for lost in reaper.run(store.reap(batch=10))]

    with ThreadPoolExecutor(len(reapers)) as threads:
        lost = list(chain.from_iterable(threads.map(sweep, reapers)))
    lost += reap(queue)
    assert Counter(one.token for one in lost) == Counter(one.token for one in claimed)
    assert queue.execute("select distinct losses, attempt from outlive.waiting").fetchall() == [(1, 1)]
    assert (queue.count("waiting"), queue.count("attempts")) == (200, 200)
    assert_sound(queue)


@pytest.mark.parametrize("commits", [True, False])
def test_an_attempt_that_ends_in_its_own_transaction_is_left_to_it(queue, connect, commits):
    scene, other = bring(queue, Place.RUNNING), bring(queue, Place.RUNNING)
    give_up(queue, ANNA)
    child = connect()
    with child.transaction(force_rollback=not commits):
        complete(child, ANNA, scene.token)
        assert [lost.id for lost in reap(queue)] == [other.job]
    assert [lost.id for lost in reap(queue)] == ([] if commits else [scene.job])
    assert queue.state_of(scene.job) is (State.SUCCEEDED if commits else State.PENDING)


def test_an_attempt_whose_end_another_transaction_holds_up_delays_no_other(queue, connect):
    """A user's open transaction has locked its batch, as ctx.complete does."""
    queue.register_task(on_worker_death="fail")
    batch = queue.run(store.open_batch(uuid4(), "import"))
    held_up = queue.make(links=wire.encode({"batch": str(batch)}))
    others = [queue.make() for _ in range(3)]
    queue.claim(worker=ANNA)
    give_up(queue, ANNA)
    stranger = connect()
    with stranger.transaction():
        stranger.execute("select from outlive.batches for update")
        ended = {lost.id: lost.state for lost in reap(queue)}
        assert ended == {held_up: None, **dict.fromkeys(others, State.FAILED)}
        assert [lost.state for lost in reap(queue)] == [None]
        assert queue.run(store.reap(after=max(lost.token for lost in reap(queue)))) == []
        assert queue.state_of(held_up) is State.RUNNING
    assert [lost.id for lost in reap(queue)] == [held_up]


def test_a_dead_worker_claims_nothing_but_may_still_say_how_something_ended(queue):
    scene = bring(queue, Place.RUNNING)
    bring(queue, Place.SUSPECT)
    queue.make()
    give_up(queue, ANNA)
    turn = queue.run(store.end_and_claim(ANNA, [Ended(scene.token)], [LANE], limit=10))
    assert (turn.claimed, turn.refused) == ([], [])
    assert queue.state_of(scene.job) is State.SUCCEEDED
    assert queue.run(store.claim_suspect(ANNA, tasks=[TASK])) == []
    assert len(queue.claim(worker=BERT, limit=10)) == 1
    assert len(queue.run(store.claim_suspect(BERT, tasks=[TASK]))) == 1


def test_a_loss_is_not_counted_before_the_job_had_begun_and_is_counted_the_next_time(queue):
    queue.register_worker(ANNA)
    job = queue.make()
    turn = queue.run(store.end_and_claim(ANNA, lanes=[LANE], limit=1, begun=False))
    assert [one.id for one in turn.claimed] == [job]
    give_up(queue, ANNA)
    reap(queue)
    assert queue.counters(job) == (0, 0, 0)
    [released] = queue.run(store.list_attempts(job))
    assert (released.outcome, released.error) == (Outcome.RELEASED, "Worker died unexpectedly, before the job began")
    queue.register_worker(BERT)
    queue.run(store.end_and_claim(BERT, lanes=[LANE], limit=1, begun=False))
    give_up(queue, BERT)
    reap(queue)
    assert queue.counters(job) == (0, 0, 1)


def test_a_job_that_was_claimed_ahead_and_has_begun_is_charged_with_its_loss(queue):
    queue.register_worker(ANNA)
    job = queue.make()
    [claimed] = queue.run(store.end_and_claim(ANNA, lanes=[LANE], limit=1, begun=False)).claimed
    queue.run(store.mark_begun(BERT, [claimed.token]))  # It is not Bert's.
    queue.run(store.mark_begun(ANNA, [claimed.token]))
    give_up(queue, ANNA)
    reap(queue)
    assert queue.counters(job) == (0, 0, 1)


def test_the_begin_of_a_job_whose_row_is_locked_is_marked_later(connect):
    """Another job is enqueued at that moment, to wait for it."""
    ours, theirs = connect(), connect()
    ours.register_worker(ANNA)
    ours.make()
    [claimed] = ours.run(store.end_and_claim(ANNA, lanes=[LANE], limit=1, begun=False)).claimed
    with theirs.transaction():
        theirs.execute("update outlive.running set begun = begun")
        assert ours.run(store.mark_begun(ANNA, [claimed.token])) == set()
    assert ours.run(store.mark_begun(ANNA, [claimed.token])) == {claimed.token}


@pytest.mark.parametrize(
    ("end", "words"), [(give_up, "Worker died unexpectedly"), (stop, "its worker stopped")], ids=["dead", "stopped"]
)
def test_a_loss_is_not_counted_for_a_worker_that_was_told_to_stop(queue, end, words):
    queue.register_worker(ANNA)
    job = queue.make()
    assert queue.claim(worker=ANNA, limit=1)
    assert queue.run(store.heartbeat(ANNA, "draining"))
    end(queue, ANNA)
    reap(queue)
    assert (queue.counters(job), queue.state_of(job)) == ((0, 0, 0), State.PENDING)
    [released] = queue.run(store.list_attempts(job))
    assert (released.outcome, released.error) == (Outcome.RELEASED, f"{words}, after a request to stop")
