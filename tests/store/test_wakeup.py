"""Waking workers: a notification while a worker sleeps, and no notification while all are awake."""

import json
from collections.abc import Callable

import psycopg
import pytest

from outlive import App, store
from outlive.model import Ended
from outlive.states import Outcome
from outlive.worker.claiming.lanes import LaneKey
from outlive.worker.wakeup import CANCEL, MAX_HINTS, Wakeup
from tests.driving.making import TASK, WORKER, Connect, Queue, new_worker, request

MARKER = "marker"


class Listener:
    """Receives the notifications of a channel, without waiting for more."""

    def __init__(self, queue: Queue, marking: Queue, channel: str = "outlive") -> None:
        self._connection, self._marking, self._channel = queue, marking, channel
        queue.execute(f"listen {channel}".encode())
        self.heard()

    def heard(self) -> int:
        """The number of notifications that have come."""
        return len(self.payloads())

    def payloads(self) -> list[str]:
        """The payloads of the notifications that have come.

        They come in the order of their commits, so all that were sent are here before the marker, which is sent last.
        """
        self._marking.execute("select pg_notify(%s, %s)", [self._channel, MARKER])
        heard: list[str] = []
        for one in self._connection.notifies(timeout=10):
            if one.payload == MARKER:
                return heard
            heard.append(one.payload)
        raise AssertionError("the marker did not come")


@pytest.fixture
def listener(connect: Connect) -> Listener:
    return Listener(connect(), connect())


def sleep(queue: Queue) -> None:
    queue.run(store.sleep(WORKER))


def test_enqueuing_notifies_while_a_worker_sleeps_and_plain_sql_always(queue, listener):
    queue.make()
    assert listener.heard() == 0
    sleep(queue)
    sleep(queue)
    queue.enqueue([request() for _ in range(100)])
    assert listener.heard() == 1
    queue.run(store.sleep(other := new_worker()))
    queue.run(store.wake(WORKER))
    queue.make()
    assert listener.heard() == 1, "the other one sleeps"
    queue.run(store.wake(other))
    assert queue.count("sleepers") == 0
    queue.make()
    assert listener.heard() == 0
    queue.execute("select outlive.enqueue('work')")
    assert listener.heard() == 1


def test_a_job_without_a_source_sends_workers_to_its_lane_unless_its_queue_is_paused(queue, listener):
    sleep(queue)
    queue.enqueue([request()])
    [payload] = listener.payloads()
    assert json.loads(payload) == ["default", TASK, 5]
    queue.enqueue([request(source="shop")])
    queue.enqueue([request(), request(source="shop")])
    queue.run(store.pause_queue("default"))
    queue.enqueue([request()])
    assert listener.payloads() == ["", "", ""]


def test_a_cancel_request_reaches_the_worker_of_a_running_job_at_once(queue, listener):
    running = queue.make()
    queue.claim()
    queue.run(store.cancel([queue.make()]))
    assert listener.payloads() == []
    queue.run(store.cancel([running]))
    assert listener.payloads() == [CANCEL]


def test_a_task_whose_name_is_too_long_for_a_notification_can_be_enqueued(queue, listener):
    sleep(queue)
    queue.enqueue([request(task="\N{SMILING FACE WITH SUNGLASSES}" * 3000)])
    [payload] = listener.payloads()
    wake = Wakeup()
    wake.look = False
    wake.notify(payload)
    assert wake.look


@pytest.mark.parametrize(
    ("payload", "lanes", "sources", "cancels", "hints"),
    [
        ("", True, True, False, []),
        ('["slow", "shop.visit", 3]', False, False, False, [LaneKey("slow", "", "shop.visit", 3)]),
        (CANCEL, False, False, True, []),
    ],
)
def test_a_worker_looks_only_for_what_a_notification_says(payload, lanes, sources, cancels, hints):
    wake = Wakeup()
    wake.look = wake.look_at_sources = False
    wake.notify(payload)
    assert (wake.look, wake.look_at_sources, wake.cancel.is_set()) == (lanes, sources, cancels)
    assert list(wake.hints) == hints


@pytest.mark.parametrize("payload", ['["default", "work", -1]', '["default", "work", 10]', '["a\\u0000b", "work", 5]'])
def test_a_notification_of_a_stranger_that_names_no_possible_lane_only_makes_a_worker_look(payload):
    wake = Wakeup()
    wake.look = False
    wake.notify(payload)
    assert wake.look
    assert not wake.hints


def test_a_busy_worker_keeps_few_hints_and_looks_for_the_rest():
    wake = Wakeup()
    wake.look = False
    for _ in range(2):
        for n in range(MAX_HINTS):
            wake.notify(json.dumps(["default", f"task {n}", 5]))
    assert len(wake.hints) == MAX_HINTS
    wake.notify(json.dumps(["default", "one more", 5]))
    assert len(wake.hints) == MAX_HINTS
    assert wake.look


def noop() -> None: ...


def test_a_client_notifies_for_sure_only_on_a_connection_that_it_was_given(queue, database_url, listener):
    app = App(database_url)
    task = app.task(noop)
    try:
        task.enqueue()
        assert listener.heard() == 0
        with psycopg.connect(database_url) as callers:
            task.using(connection=callers).enqueue()
            assert listener.heard() == 0
        assert listener.heard() == 1
    finally:
        app.connections.close()


Revival = Callable[[Queue], object]


def retry_a_finished_one(queue: Queue) -> Revival:
    job = queue.make_finished(Outcome.FAILED)
    return lambda on: on.run(store.retry([job]))


def retry_a_retryable_one(queue: Queue) -> Revival:
    job = queue.make()
    queue.end(Ended(queue.claim()[0].token, Outcome.FAILED))
    return lambda on: on.run(store.retry([job]))


def release_from_quarantine(queue: Queue) -> Revival:
    job = queue.make_quarantined()
    return lambda on: on.run(store.release([job]))


def lose(queue: Queue) -> Revival:
    queue.make()
    queue.claim()
    queue.set_now()
    return lambda on: on.run(store.expire())


def hand_back(queue: Queue) -> Revival:
    queue.make()
    (claimed,) = queue.claim()
    return lambda on: on.end(Ended(claimed.token, Outcome.RELEASED))


def resume(queue: Queue) -> Revival:
    queue.run(store.pause_queue("default"))
    return lambda on: on.run(store.resume_queue("default"))


REVIVALS = (retry_a_finished_one, retry_a_retryable_one, release_from_quarantine, lose, hand_back, resume)


@pytest.mark.parametrize("prepare", REVIVALS, ids=lambda one: one.__name__)
def test_making_a_job_ready_again_notifies_a_sleeping_worker(queue, listener, prepare):
    revive = prepare(queue)
    sleep(queue)
    assert listener.heard() == 0
    revive(queue)
    assert listener.heard() == 1


@pytest.mark.parametrize(
    "end_it",
    [{"outcome": Outcome.SUCCEEDED}, {"outcome": Outcome.FAILED}, {"outcome": Outcome.CRASHED, "signal": "SIGSEGV"}],
    ids=lambda one: str(one["outcome"]),
)
def test_an_end_that_makes_nothing_ready_sends_no_notification(queue, listener, end_it):
    queue.make()
    (claimed,) = queue.claim()
    sleep(queue)
    queue.end(Ended(claimed.token, **end_it))
    assert listener.heard() == 0


def test_of_many_that_sleep_three_that_have_the_task_are_woken_for_one_job(queue, connect):
    able, others = [new_worker() for _ in range(5)], [new_worker() for _ in range(5)]
    heard = {}
    for worker in (*able, *others):
        queue.run(store.register_worker(worker, name="n", hostname="h", pid=1, version="v", queues=None, slots=1))
        queue.run(store.tell_tasks(worker, [TASK if worker in able else "other"], app="shop:app"))
        queue.run(store.sleep(worker))
        heard[worker] = Listener(connect(), queue, f"outlive_{str(worker)[:8]}")
    all_of_them = Listener(connect(), queue)
    queue.enqueue([request()])
    woken = [worker for worker in heard if heard[worker].payloads() == ['["default", "work", 5]']]
    assert len(woken) == 3
    assert set(woken) <= set(able)
    assert all_of_them.heard() == 0
    for worker in able[:2]:
        queue.run(store.wake(worker))
    queue.enqueue([request()])
    assert all_of_them.heard() == 1, "few are left"
