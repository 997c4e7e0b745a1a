"""Watchers: three workers watch over all others, and any other takes the place of one that is gone.

The bounds are exact where they are run with `--long`, on a machine that has nothing else to do.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from outlive.states import State
from tests import faults
from tests.driving.jobs import begun, finished, hook_calls, hook_into
from tests.driving.making import Queue
from tests.driving.scraping import ANY_PORT, place_of, scrape
from tests.driving.workers import Start, Worker, freeze
from tests.proxy import Boundary, Proxy, Side
from tests.waiting import eventually

TOLD_WITHIN_S = [pytest.param(6.0, id="busy"), pytest.param(2.0, id="exact", marks=pytest.mark.long)]
THAWED_WITHIN_S = [pytest.param(15.0, id="busy"), pytest.param(5.0, id="exact", marks=pytest.mark.long)]


def seats(queue: Queue) -> list[str]:
    """The watchers, while their terms last."""
    return [str(worker) for worker in queue.values("select worker from outlive.watchers where until > now()")]


def fleet(start: Start, queue: Queue, size: int, **settings: str) -> tuple[list[Worker], list[Worker]]:
    """Start so many workers; returns the three that are watchers, and the others."""
    workers = [start(slots=1, wait=False, **settings) for _ in range(size)]
    ids = {worker.started().id: worker for worker in workers}
    eventually(lambda: len(seats(queue)) == 3, within_s=20, what="all seats are taken")
    found = seats(queue)
    return [ids[id] for id in found], [worker for id, worker in ids.items() if id not in found]


def dead(queue: Queue, *workers: Worker) -> bool:
    ids = [UUID(worker.id) for worker in workers]
    return set(queue.values("select id from outlive.workers where state = 'dead'")) >= set(ids)


@contextmanager
def frozen(*workers: Worker) -> Iterator[None]:
    freeze([worker.pid for worker in workers])
    try:
        yield
    finally:
        for worker in workers:
            os.kill(worker.pid, signal.SIGCONT)


@pytest.mark.parametrize("within_s", TOLD_WITHIN_S)
def test_when_all_watchers_are_killed_at_once_the_last_worker_notices(start, queue, within_s):
    watchers, (last,) = fleet(start, queue, 4)
    killed = time.monotonic()
    for worker in watchers:
        os.kill(worker.pid, signal.SIGKILL)
    eventually(lambda: dead(queue, *watchers), within_s=within_s, what="all three are declared dead")
    print(f"dead after {time.monotonic() - killed:.2f} s")
    assert last.id in seats(queue)


@pytest.mark.parametrize("within_s", TOLD_WITHIN_S)
def test_a_death_is_noticed_while_watchers_are_killed_one_after_the_other(start, queue, tmp_path, within_s):
    watchers, others = fleet(start, queue, 5)
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    (victim,) = [UUID(str(one)) for one in queue.values("select worker from outlive.running")]
    for worker in [one for one in (*watchers, *others) if one.id == str(victim)]:
        os.kill(worker.pid, signal.SIGKILL)
    left = [worker for worker in watchers if worker.id != str(victim)]
    os.kill(left[0].pid, signal.SIGKILL)
    begun(tmp_path / "go", times=2, within_s=within_s + 1)
    assert dead(queue, left[0])
    (tmp_path / "go").touch()
    finished(job, State.SUCCEEDED)


@pytest.mark.parametrize("within_s", THAWED_WITHIN_S)
def test_a_death_is_noticed_while_all_watchers_are_frozen(start, queue, within_s):
    """Their sessions stand, so only the end of their terms shows it."""
    watchers, (victim, last) = fleet(start, queue, 5)
    with frozen(*watchers):
        victim.kill()
        killed = time.monotonic()
        eventually(lambda: dead(queue, victim), within_s=within_s, what="it is declared dead")
        print(f"dead after {time.monotonic() - killed:.2f} s")
        assert seats(queue) == [last.id]
    eventually(lambda: len(seats(queue)) == 3, what="two of them are watchers again")
    assert not dead(queue, watchers[0])
    assert [worker.log().count(" started") for worker in watchers] == [1, 1, 1]


def test_a_frozen_watcher_loses_its_seat_and_wakes_up_without_one(start, queue):
    watchers, (other,) = fleet(start, queue, 4)
    with frozen(watchers[0]):
        eventually(lambda: other.id in seats(queue), what="the fourth has its seat")
    done = faults.add.enqueue(1, 1)
    assert done.result(timeout=20) == 2
    assert watchers[0].id not in seats(queue)


def test_a_watcher_that_loses_its_session_is_not_declared_dead_and_three_watch(start, queue):
    watchers, others = fleet(start, queue, 4)
    for worker in (*watchers, *others):
        queue.execute(
            "select pg_terminate_backend(backend_pid) from outlive.liveness where worker = %s", [UUID(worker.id)]
        )
    eventually(lambda: len(seats(queue)) == 3)
    held = "select count(*) from outlive.watchers w join outlive.liveness l using (worker, key)"
    eventually(lambda: queue.value(held) == 3, what="their seats have the keys of their new sessions")
    assert not any("Dead worker" in worker.log() for worker in (*watchers, *others))


def test_a_worker_that_does_not_hear_that_it_has_a_seat_takes_no_second_one(start, queue, database_url, tmp_path):
    kept: list[Boundary] = []
    cuts: list[Boundary] = []

    def cut_once(at: Boundary) -> None:
        if at.side is Side.AFTER and "insert into outlive.watchers" in at.text and not cuts and seats(queue):
            cuts.append(at)
            at.link.cut()
        elif at.side is Side.AFTER and "update outlive.watchers" in at.text and cuts:
            kept.append(at)

    with Proxy(database_url, tmp_path, at_boundary=cut_once) as proxy:
        worker = start(url=proxy.url, slots=1)
        eventually(lambda: len(kept) > 2, within_s=20, what="it keeps its seat")
        assert seats(queue) == [worker.id]
        worker.stop()


def test_an_idle_worker_that_is_no_watcher_asks_the_database_once_a_second(start, queue):
    _, (idle,) = fleet(start, queue, 4, metrics_listen=ANY_PORT)
    place = place_of(idle)

    def trips() -> dict[str, float]:
        found = scrape(place)
        name = "outlive_database_round_trips_total"
        return {labels["statement"]: found(name, **labels) or 0 for labels in found.labels_of(name)}

    eventually(lambda: trips().get("tick", 0) >= 8, within_s=40, what="it has settled")
    quiet = trips()
    eventually(lambda: trips()["tick"] >= quiet["tick"] + 10, within_s=60)
    after = trips()
    asked = {name: count - quiet.get(name, 0) for name, count in after.items() if count > quiet.get(name, 0)}
    assert "absent" not in asked
    assert sum(asked.values()) <= asked["tick"] + 2, f"beside its ticks it has asked: {asked}"


def test_a_delayed_job_begins_in_a_worker_that_sleeps_though_no_notification_tells_it(start, queue):
    fleet(start, queue, 4)
    delayed = faults.add.using(delay=5).enqueue(1, 1)  # Until then they have searched all sources, and sleep.
    assert delayed.result(timeout=20) == 2


def test_a_worker_with_a_command_sends_the_alert_of_a_death_that_watchers_have_noticed(start, queue, tmp_path):
    watchers, _ = fleet(start, queue, 3)
    teller = start(slots=1, on_worker_dead=hook_into(tmp_path))
    victim = start(slots=1)
    victim.kill()
    (fact,) = eventually(lambda: hook_calls(tmp_path), what="the command was run")
    assert fact["id"] == victim.id
    assert teller.id not in seats(queue)
    assert any(f"pid {victim.pid}" in worker.log() for worker in watchers)
