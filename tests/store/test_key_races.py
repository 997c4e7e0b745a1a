"""Transactions that meet over a key: no slot is given twice, and none is forgotten."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Claimed, Ended
from tests.driving.making import Queue, links, new_worker, request
from tests.store.acting import assert_sound
from tests.store.keyed import CUSTOMER, admitted, admitted_now, claim, make_keyed, succeed
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("sound")

Act = Callable[[Queue, Claimed, UUID], object]
ACTS: dict[str, tuple[Act, int]] = {
    "enqueue": (lambda connection, running, spare: make_keyed(connection), +1),
    "end": (lambda connection, running, spare: succeed(connection, running), -1),
    "cancel": (lambda connection, running, spare: connection.run(store.cancel([spare])), -1),
    "block": (lambda connection, running, spare: connection.run(store.block([spare], "later")), -1),
}
"""What a transaction may do to the jobs of a key, and how many more or fewer are to run after that."""


@pytest.mark.parametrize(("first", "second"), list(permutations(ACTS, 2)))
def test_of_two_transactions_that_are_open_at_once_the_later_sees_the_earlier(queue, connect, first, second):
    """Both have acted before either commits, so neither has seen what the other did until then."""
    one, other = connect(), connect()
    make_keyed(queue)
    [running] = claim(queue)
    spare, another = make_keyed(queue), make_keyed(queue)
    one.execute("begin")
    other.execute("begin")
    ACTS[first][0](one, running, spare)
    ACTS[second][0](other, running, spare if first == "enqueue" else another)
    one.execute("commit")
    other.execute("commit")
    assert_sound(queue)
    queue.run(store.admit_due())
    assert queue.values("select id from outlive.key_turns") == []
    left = 3 + ACTS[first][1] + ACTS[second][1]
    if "end" not in (first, second):
        succeed(queue, running)
        left -= 1
    while claimed := claim(queue):
        assert len(claimed) == 1
        succeed(queue, *claimed)
        left -= 1
    assert left == 0


def test_an_open_transaction_that_has_enqueued_holds_up_no_other(queue, connect):
    other = connect()
    make_keyed(queue)
    [running] = claim(queue)
    waiting = make_keyed(queue)
    other.execute("begin")
    make_keyed(other)
    succeed(queue, running)
    assert admitted(queue) == [waiting]
    other.execute("rollback")


def test_while_a_key_is_locked_an_end_is_written_and_the_reaper_admits_the_next(queue, connect):
    other = connect()
    make_keyed(queue)
    [running] = claim(queue)
    waiting = make_keyed(queue)
    other.execute("begin")
    other.execute("select outlive.lock_keys(%s)", [[CUSTOMER]])
    succeed(queue, running)
    assert admitted_now(queue) == []
    assert queue.run(store.admit_due()) == 1
    assert admitted_now(queue) == []
    other.execute("commit")
    assert queue.run(store.admit_due()) == 1
    assert admitted_now(queue) == [waiting]
    assert queue.run(store.admit_due()) == 0


def test_an_end_after_which_no_job_queues_needs_no_lock(queue, connect):
    other = connect()
    make_keyed(queue)
    [running] = claim(queue)
    other.execute("begin")
    other.execute("select outlive.lock_keys(%s)", [[CUSTOMER]])
    succeed(queue, running)
    assert queue.count("key_turns") == 0
    other.execute("commit")


def test_a_job_that_queues_while_another_transaction_gives_back_the_slot_is_not_forgotten(queue, connect):
    """The end has looked for jobs that queue before there was one, and the reaper looks before the end commits."""
    other = connect()
    make_keyed(queue)
    [running] = claim(queue)
    other.execute("begin")
    succeed(other, running)
    waiting = make_keyed(queue)
    for _ in range(2):
        assert queue.run(store.admit_due()) == 1
        assert admitted_now(queue) == [running.id], "the end may be rolled back"
    other.execute("commit")
    assert queue.run(store.admit_due()) == 1
    assert admitted_now(queue) == [waiting]


def test_a_job_that_another_transaction_has_locked_is_passed_by_and_not_forgotten(queue, connect):
    other = connect()
    make_keyed(queue, concurrency=2)
    [running] = claim(queue)
    locked = make_keyed(queue, priority=0)
    free = make_keyed(queue)
    other.execute("begin")
    other.run(store.cancel([locked]))
    succeed(queue, running)
    assert admitted(queue) == [free]
    other.execute("rollback")
    succeed(queue, *claim(queue))
    assert admitted(queue) == [locked]


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_of_two_jobs_that_are_enqueued_at_once_with_one_key_one_begins(queue, connect, level):
    """Neither transaction has seen the other's job, so both jobs wait where they can be claimed."""
    other = connect()
    other.execute(f"begin isolation level {level}".encode())
    make_keyed(other)
    make_keyed(queue)
    other.execute("commit")
    assert queue.claim() == [], "each has seen the other"
    for _ in range(2):
        [running] = claim(queue)
        assert claim(queue) == []
        succeed(queue, running)


def test_the_only_job_of_a_key_is_claimed_although_the_key_is_locked(queue, connect):
    other = connect()
    make_keyed(queue)
    other.execute("begin")
    other.execute("select outlive.lock_keys(%s)", [[CUSTOMER]])
    assert len(queue.claim()) == 1
    other.execute("rollback")


@pytest.mark.parametrize("how", ["its key is locked", "the claim has an old view"])
def test_a_job_with_others_behind_it_begins_only_if_it_is_sure_to_have_the_slot(queue, connect, how):
    """Another transaction may be giving the slot to one of those, which it has seen before this one was there."""
    other = connect()
    first, second = make_keyed(queue), make_keyed(queue)
    other.execute("begin isolation level repeatable read" if how == "the claim has an old view" else "begin")
    if how == "its key is locked":
        other.execute("select outlive.lock_keys(%s)", [[CUSTOMER]])
        assert queue.claim() == []
    else:
        assert other.claim() == []
    other.execute("commit")
    assert admitted(queue) == [first]
    [running] = claim(queue)
    succeed(queue, running)
    assert [one.id for one in claim(queue)] == [second]


@pytest.mark.long
def test_batches_with_many_keys_in_any_order_never_deadlock(queue, connect):
    keys = [f"key-{n}" for n in range(50)]
    links_of = [links(key) for key in keys]
    over = "select concurrency_key from outlive.running join outlive.jobs using (id) group by 1 having count(*) > 1"

    def play(number: int) -> None:
        mine, chance = connect(), random.Random(number)
        worker = mine.register_worker(new_worker())
        for _ in range(20):
            chance.shuffle(links_of)
            with mine.transaction():
                for part in (links_of[:20], links_of[20:40]):
                    mine.enqueue([request(links=one) for one in part])
            running = claim(mine, worker=worker, limit=30)
            assert mine.values(over) == []
            mine.end(*(Ended(one.token) for one in running), worker=worker)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(play, range(4)))
    queue.follow()
    eventually(lambda: queue.run(store.admit_due()) == 0)
    assert_sound(queue)
    done = 0
    while running := claim(queue):
        assert len(running) <= len(keys)
        succeed(queue, *running)
        done += len(running)
    assert queue.values("select count(*) from outlive.attempts where state = 'succeeded'") == [4 * 20 * 40]


def test_a_batch_with_very_many_keys_is_admitted_bit_by_bit(queue):
    queue.enqueue([request(links=links(f"key-{n}", 2)) for n in range(1200)])
    queue.run(store.admit_due(500))
    [some] = queue.values("select count(*) from outlive.waiting")
    assert 0 < some < 1200
    while queue.run(store.admit_due()):
        pass
    assert queue.values("select count(*) from outlive.waiting") == [1200]


@pytest.mark.parametrize("act", ["replace", "block"])
def test_a_verb_that_has_waited_for_a_pause_finds_the_job_where_that_has_moved_it(ring, act):
    """`pause` takes the job out of `waiting`, where the verb waits for it, and holds it for its key."""
    job = ring.watcher.make(dedupe_key="a", links=links(CUSTOMER))
    other = request(dedupe_key="a", on_conflict="replace")

    def later(second: Queue) -> bool:
        if act == "replace":
            return second.run(store.enqueue([other], max_args_bytes=1000)) == {}
        [change] = second.run(store.block([job], "for a while"))
        return bool(change.changed)

    with ring.first.transaction():
        ring.first.run(store.pause_queue("default"))
        answer = ring.start(later)
        assert not answer.done()
    assert answer.result()
    assert ring.watcher.state_of(job) == ("cancelled" if act == "replace" else "blocked")
