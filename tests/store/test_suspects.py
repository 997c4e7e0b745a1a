"""Waiting suspects: when a worker must make room for one, and when it must not; and how many run together."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from outlive import store
from outlive.db import Statement
from outlive.model import Claimed
from tests.driving.making import TASK, Queue
from tests.store.acting import ANNA, BERT, NOW, Place, bring, end_by, give_up
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]

MINUTE = timedelta(seconds=60)
CLOSED = [
    "update outlive.sources set enabled = false",
    "update outlive.sources set paused_until = outlive.now() + interval '1 hour'",
    "update outlive.sources set rate_limit_per_minute = 0.1, full_at = outlive.now() + interval '10 min'",
]


def wait(queue: Queue, tasks: tuple[str, ...] = (TASK,), queues: list[str] | None = None) -> bool:
    return queue.run(store.suspects_wait(list(tasks), queues, after_s=60))


def test_a_suspect_has_waited_too_long_after_a_minute_and_not_before(queue):
    assert not wait(queue)
    bring(queue, Place.SUSPECT)
    queue.set_now(NOW + MINUTE - timedelta(microseconds=1))
    assert not wait(queue)
    queue.set_now(NOW + MINUTE)
    assert wait(queue)
    queue.run(store.claim_suspect(ANNA, tasks=[TASK]))
    assert not wait(queue)


def test_no_worker_makes_room_for_a_suspect_that_it_could_not_run(queue):
    bring(queue, Place.SUSPECT)
    queue.set_now(NOW + MINUTE)
    assert not wait(queue, tasks=("other",))
    assert not wait(queue, queues=["slow"])
    assert wait(queue, queues=["slow", "default"])


def test_no_worker_makes_room_for_a_suspect_of_a_paused_queue(queue):
    bring(queue, Place.SUSPECT)
    queue.set_now(NOW + MINUTE)
    queue.run(store.pause_queue("default"))
    assert not wait(queue)
    queue.run(store.resume_queue("default"))
    assert wait(queue)


@pytest.mark.parametrize("closed", CLOSED)
def test_no_worker_makes_room_for_a_suspect_of_a_closed_source(queue, closed):
    bring(queue, Place.SUSPECT)
    queue.execute("update outlive.held set source = 'shop'")
    queue.execute("insert into outlive.sources (name) values ('shop')")
    queue.set_now(NOW + MINUTE)
    assert wait(queue)
    queue.execute(closed.encode())
    assert not wait(queue)
    assert queue.run(store.claim_suspect(ANNA, tasks=[TASK])) == []


def test_a_worker_makes_room_for_a_suspect_whose_source_admits_it_soon(queue):
    """Otherwise jobs that run all the time could take all that the source admits."""
    bring(queue, Place.SUSPECT)
    queue.execute("update outlive.held set source = 'shop'")
    queue.execute(
        "insert into outlive.sources (name, rate_limit_per_minute, full_at) values ('shop', 6, %s)",
        [NOW + MINUTE + timedelta(seconds=10)],
    )
    queue.set_now(NOW + MINUTE)
    assert wait(queue)


def test_a_suspect_that_has_waited_very_long_begins_beside_other_jobs(queue):
    scene = bring(queue, Place.SUSPECT)
    beside_others = store.claim_suspect(BERT, tasks=[TASK], after_s=600)
    queue.set_now(NOW + timedelta(seconds=599))
    assert queue.run(beside_others) == []
    queue.set_now(NOW + timedelta(seconds=600))
    [claimed] = queue.run(beside_others)
    assert (claimed.id, claimed.alone_s) == (scene.job, 0.0)
    assert queue.value("select alone from outlive.running") is False


# Suspects that share a process

SUSPICION = "vanished while running it: it runs alone, or beside other suspects, next (max_losses = 3)"

CROWDS = [
    *[(2, 0, 63), (3, 0, 8), (4, 0, 1), (5, 0, 1)],  # No worker died without them: the two that convict are alone.
    *[(2, 1, 500), (3, 1, 63), (4, 1, 8), (5, 1, 1), (3, 2, 500), (7, 6, 500), (8, 6, 63), (9, 6, 8), (10, 6, 1)],
    *[(9, 99, 8), (10, 99, 1)],
]


def lose(queue: Queue, claim: Statement[list[Claimed]]) -> None:
    assert queue.run(claim)
    queue.execute("update outlive.running set lease_until = outlive.now() - interval '1 s'")
    assert queue.run(store.expire())


def make_suspects(queue: Queue, number: int, *, share: int | None = 500, **wanted: Any) -> list[UUID]:
    """Make jobs of one task, and lose them all twice."""
    queue.set_now(NOW)
    queue.register_task(share=share)
    jobs = queue.make_many(number, **wanted)
    for _ in range(2):
        assert len(queue.claim(worker=ANNA, lease_s=-1.0)) == number
        assert len(queue.run(store.expire())) == number
    return jobs


def together(queue: Queue, most: int = 1024) -> list[Claimed]:
    return queue.run(store.claim_suspect(BERT, tasks=[TASK], most=[most]))


@pytest.mark.parametrize(("losses", "elsewhere", "crowd"), CROWDS)
def test_the_more_a_shared_job_was_lost_without_other_deaths_the_fewer_suspects_run_beside_it(
    queue, losses, elsewhere, crowd
):
    make_suspects(queue, 1)
    queue.execute("update outlive.held set losses = %s", [losses])
    for number in range(elsewhere):
        give_up(queue, UUID(int=2000 + number))
    assert queue.value("select outlive.crowd(h) from outlive.held h") == crowd


@pytest.mark.parametrize("share", [1, None])
def test_suspects_that_share_no_process_run_one_by_one(queue, share):
    make_suspects(queue, 3, share=share)
    give_up(queue, UUID(int=2000))
    assert len(together(queue)) == 1
    assert queue.values("select alone from outlive.running") == [True]


def test_suspects_that_share_a_process_are_claimed_together_and_are_not_alone(queue):
    jobs = make_suspects(queue, 100)
    claimed = together(queue)
    assert len(claimed) == 63
    assert {one.alone_s for one in claimed} == {5.0}, "nothing else begins beside them"
    assert queue.values("select distinct alone from outlive.running") == [False], "a loss would say little about each"
    assert len(together(queue, most=36)) == 36, "no more than the worker may begin"
    [last] = together(queue)
    assert queue.value("select alone from outlive.running where id = %s", last.id) is True
    assert {one.id for one in claimed} < set(jobs)
    end_by(queue, BERT, claimed[0].token, "fail", after_s=0.0)
    assert queue.counters(claimed[0].id) == (1, 0, 0), "it is cleared"


def test_suspects_of_other_tasks_and_with_other_losses_do_not_run_together(queue):
    jobs = make_suspects(queue, 10)
    queue.execute("update outlive.held set task = 'other' where id = any(%s)", [jobs[:2]])
    queue.execute("update outlive.held set losses = 3 where id = any(%s)", [jobs[2:5]])
    assert sorted(len(together(queue)) for _ in range(3)) == [0, 3, 5]


def test_a_claim_reads_no_more_suspects_than_it_takes(queue):
    make_suspects(queue, 100)
    queue.execute(
        "insert into outlive.held (id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes,"
        " losses) select gen_random_uuid(), why, since + n * interval '1 h', queue, source, task, priority, ready_at,"
        " attempt, failures, crashes, losses from outlive.held, generate_series(1, 99) n"
    )
    queue.execute("analyze outlive.held")
    claim = store.claim_suspect(BERT, tasks=[TASK], most=[1024])
    nodes = queue.plan(claim.text, claim.parameters)
    assert max(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in nodes) == 63


def test_suspects_whose_processes_have_died_run_alone(queue):
    jobs = make_suspects(queue, 6)
    queue.execute("update outlive.held set crashes = 1 where id = any(%s)", [[jobs[0], jobs[3]]])
    claims = [[one.id for one in together(queue)] for _ in range(3)]
    assert sorted(map(sorted, claims)) == sorted(map(sorted, [[jobs[0]], [jobs[3]], [*jobs[1:3], *jobs[4:]]]))
    assert queue.values("select id from outlive.running where alone order by id") == [jobs[0], jobs[3]]


def test_as_many_suspects_run_together_as_the_worker_can_begin_of_their_task(queue):
    make_suspects(queue, 10)
    claim = store.claim_suspect(BERT, tasks=["other", TASK], most=[500, 3])
    assert [len(queue.run(one)) for one in (claim, store.claim_suspect(BERT, tasks=[TASK]))] == [3, 1]


def test_suspects_that_run_together_pay_their_source(queue):
    queue.execute("insert into outlive.sources (name) values ('shop')")
    make_suspects(queue, 10)
    queue.execute("update outlive.held set source = 'shop'")
    queue.execute("update outlive.sources set rate_limit_per_minute = 60, burst = 4")
    assert [len(together(queue)) for _ in range(2)] == [4, 0]
    queue.set_now(NOW + timedelta(seconds=2))
    assert [len(together(queue)) for _ in range(2)] == [2, 0]


def test_suspects_that_run_together_have_slots_of_their_keys(queue):
    queue.set_now(NOW)
    make_suspects(queue, 6)
    queue.execute(
        "insert into outlive.keyed_jobs (job_id, key, most, priority, ready_at, state)"
        " select id, 'site ' || (row_number() over () % 2), 2, 5, 'infinity', 'later' from outlive.held"
    )
    assert len(together(queue)) == 4, "two of each key"


def test_a_storm_of_worker_deaths_convicts_no_shared_job_at_four_times_its_limit(queue):
    [job] = make_suspects(queue, 1)
    for losses in range(3, 18):
        give_up(queue, UUID(int=2000 + losses))
        queue.set_now(queue.value("select outlive.now()") + timedelta(hours=2))
        lose(queue, store.claim_suspect(BERT, tasks=[TASK]))
        assert queue.hold_of(job) == ("suspect", f"{losses} workers {SUSPICION}")
    give_up(queue, UUID(int=2000))
    queue.set_now(queue.value("select outlive.now()") + timedelta(hours=2))
    lose(queue, store.claim_suspect(BERT, tasks=[TASK]))
    assert queue.hold_of(job)[0] == "quarantined"
