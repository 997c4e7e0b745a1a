"""Watchers: who has a seat, when it is vacant, and what every worker learns from its tick."""

from datetime import timedelta
from uuid import UUID

import pytest

from outlive import store
from outlive.store import Tick
from tests.driving.making import Connect, Queue, request
from tests.store.acting import ANNA, BERT, CARL, NOW
from tests.store.noon import database_url, fresh_at_noon
from tests.waiting import eventually

__all__ = ["database_url", "fresh_at_noon"]

DORA = UUID(int=4)
TERM_S = 3.0


@pytest.fixture(autouse=True)
def no_watchers(queue: Queue) -> None:
    queue.execute("truncate outlive.watchers, outlive.liveness, outlive.workers")


def join(queue: Queue, worker: UUID, *, host: str = "one", app: str | None = "shop:app") -> None:
    queue.run(store.register_worker(worker, name="n", hostname=host, pid=1, version="v", queues=None, slots=1))
    queue.run(store.tell_tasks(worker, ["work"], app=app))


def live(queue: Queue, connect: Connect, worker: UUID, *, host: str = "one") -> Queue:
    """Register a worker, and let a session show that it lives; returns the session."""
    join(queue, worker, host=host)
    session = connect()
    assert session.run(store.hold_liveness_lock(worker, worker.int))
    return session


def take(queue: Queue, worker: UUID, *, anyway: bool = False) -> bool:
    return queue.run(store.take_seat(worker, term_s=TERM_S, anyway=anyway))


def keep(queue: Queue, worker: UUID) -> bool:
    return queue.run(store.keep_seat(worker, term_s=TERM_S))


def watchers(queue: Queue) -> list[UUID]:
    return queue.values("select worker from outlive.watchers order by seat")


def tick(queue: Queue, worker: UUID = DORA, *, watching: bool = False, alerts: bool = False, **said: list[str]) -> Tick:
    tasks, queues = said.get("tasks", ["work"]), said.get("queues")
    return queue.run(store.tick(worker, tasks, queues, watching=watching, alerts=alerts))


def later(queue: Queue, seconds: float) -> None:
    queue.set_now(NOW + timedelta(seconds=seconds))


# Seats


def test_the_first_three_workers_are_watchers_and_the_fourth_is_not(queue, connect):
    for worker in (ANNA, BERT, CARL):
        live(queue, connect, worker)
        assert tick(queue, worker).vacant
        assert take(queue, worker)
    live(queue, connect, DORA)
    assert not tick(queue).vacant
    assert not take(queue, DORA)
    assert watchers(queue) == [ANNA, BERT, CARL]


def test_the_seat_of_a_watcher_whose_session_is_gone_is_vacant_at_once(queue, connect):
    sessions = [live(queue, connect, worker) for worker in (ANNA, BERT, CARL)]
    assert all(take(queue, worker) for worker in (ANNA, BERT, CARL))
    live(queue, connect, DORA)
    sessions[1].close()
    eventually(lambda: tick(queue).vacant, what="the server has noticed")
    assert take(queue, DORA)
    assert watchers(queue) == [ANNA, DORA, CARL]
    assert not keep(queue, BERT), "another worker has its seat"
    assert not tick(queue).vacant


def test_the_seat_of_a_frozen_watcher_is_vacant_when_its_term_has_ended(queue, connect):
    for worker in (ANNA, BERT, CARL):
        live(queue, connect, worker)
        assert take(queue, worker)
    later(queue, TERM_S - 0.1)
    assert keep(queue, ANNA)
    assert keep(queue, CARL)
    assert not tick(queue).vacant
    later(queue, TERM_S + 0.1)
    assert tick(queue).vacant
    assert take(queue, DORA)
    assert watchers(queue) == [ANNA, DORA, CARL]


def test_a_watcher_whose_term_has_ended_goes_on_if_no_other_has_its_seat(queue, connect):
    live(queue, connect, ANNA)
    assert take(queue, ANNA)
    later(queue, 60)
    assert keep(queue, ANNA)
    assert watchers(queue) == [ANNA]


def test_a_watcher_that_lost_its_session_and_has_another_keeps_its_seat(queue, connect):
    live(queue, connect, ANNA).close()
    assert take(queue, ANNA)
    fresh = connect()
    assert fresh.run(store.hold_liveness_lock(ANNA, 99))
    assert keep(queue, ANNA)
    assert queue.value("select key from outlive.watchers") == 99


def test_a_clock_that_was_set_back_keeps_no_seat_taken(queue, connect):
    for worker in (ANNA, BERT, CARL):
        live(queue, connect, worker)
        assert take(queue, worker)
    later(queue, -3600)
    assert tick(queue).vacant
    assert take(queue, DORA)


def test_behind_a_pooler_the_term_alone_decides(queue):
    for worker in (ANNA, BERT, CARL):
        join(queue, worker)
        assert take(queue, worker)
    assert not tick(queue).vacant
    later(queue, TERM_S + 0.1)
    assert tick(queue).vacant


def test_a_worker_that_stops_gives_up_its_seat(queue, connect):
    live(queue, connect, ANNA)
    assert take(queue, ANNA)
    queue.run(store.stop_worker(ANNA))
    assert watchers(queue) == []


def test_a_worker_learns_that_nothing_can_be_written(queue):
    queue.execute("set default_transaction_read_only = on")
    assert tick(queue).read_only
    queue.execute("set default_transaction_read_only = off")
    assert not tick(queue).read_only


# Hosts


def test_a_watcher_beside_another_leaves_its_seat_to_a_host_that_has_none(queue, connect):
    for worker in (ANNA, BERT):
        live(queue, connect, worker, host="one")
        assert take(queue, worker)
    assert not queue.run(store.leave_crowd(BERT)), "there is no other host"
    live(queue, connect, CARL, host="two")
    assert not queue.run(store.leave_crowd(ANNA)), "it is the first of its host"
    assert queue.run(store.leave_crowd(BERT))
    assert not take(queue, BERT), "the seat is left to the other host"
    assert take(queue, CARL)
    assert take(queue, BERT), "now each host has a watcher"
    assert watchers(queue) == [ANNA, CARL, BERT]


def test_a_seat_that_the_other_host_does_not_take_is_taken_all_the_same(queue, connect):
    live(queue, connect, ANNA)
    live(queue, connect, BERT)
    join(queue, CARL, host="two")
    assert take(queue, ANNA)
    assert not take(queue, BERT)
    assert take(queue, BERT, anyway=True)


def test_no_seat_is_left_to_workers_that_are_no_watchers(queue, connect):
    """Workers in other languages, and those that are dead."""
    live(queue, connect, ANNA)
    live(queue, connect, BERT)
    join(queue, CARL, host="two", app=None)
    join(queue, DORA, host="three")
    queue.execute("update outlive.workers set state = 'dead' where id = %s", [DORA])
    assert take(queue, ANNA)
    assert take(queue, BERT)
    assert not queue.run(store.leave_crowd(BERT))


def test_a_dead_watcher_of_the_same_host_keeps_no_worker_from_its_seat(queue, connect):
    session = live(queue, connect, ANNA)
    assert take(queue, ANNA)
    live(queue, connect, BERT)
    join(queue, CARL, host="two")
    assert not take(queue, BERT)
    session.close()
    eventually(lambda: take(queue, BERT), what="the server has noticed")


# The tick


def test_a_worker_learns_that_it_was_declared_dead(queue):
    join(queue, ANNA)
    assert not tick(queue, ANNA).dead
    queue.execute("update outlive.workers set state = 'dead'")
    assert tick(queue, ANNA).dead
    assert not tick(queue, BERT).dead


def test_a_worker_learns_the_time_of_the_database(queue):
    assert tick(queue).now == NOW.timestamp()


def test_a_worker_learns_of_a_job_that_is_ready_for_it(queue):
    assert not tick(queue).look
    queue.enqueue([request("other"), request(delay_s=60, queue="slow"), request("zebra")])
    assert not tick(queue).look, "its job is not ready yet"
    later(queue, 60)
    assert tick(queue).look
    assert tick(queue, queues=["slow"]).look
    assert not tick(queue, queues=["default"]).look
    assert not tick(queue, tasks=[]).look, "a busy worker searches by itself"
    queue.run(store.pause_queue("slow"))
    assert not tick(queue).look


def test_a_worker_learns_of_jobs_that_a_source_may_admit(queue):
    queue.enqueue([request(source="shop")])
    assert tick(queue).look


@pytest.mark.parametrize("alerts", [True, False])
def test_a_worker_with_a_command_learns_of_a_death_that_no_alert_has_told(queue, alerts):
    join(queue, ANNA)
    assert not tick(queue, alerts=alerts).untold
    queue.execute("update outlive.workers set state = 'dead', died_at = outlive.now()")
    assert tick(queue, alerts=alerts).untold is alerts
    queue.run(store.untold_deaths(within_s=60, batch=9))
    assert not tick(queue, alerts=alerts).untold


def test_a_watcher_learns_that_there_is_something_left_to_do(queue):
    assert not tick(queue, watching=True).leftover
    queue.execute("insert into outlive.key_turns (keys) values ('{shop}')")
    assert tick(queue, watching=True).leftover
    assert not tick(queue).leftover, "it is no watcher"
