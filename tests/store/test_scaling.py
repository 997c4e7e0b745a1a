"""What an autoscaler asks for: the view `outlive.scaling`."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

from outlive import store
from outlive.model import SourceLimits
from tests.driving.making import NOON, WORKER, Queue

SCALING = """
select queue, needs, ready, round(oldest_ready_s), busy_slots, wanted_slots, slots, workers from outlive.scaling"""
MANY = """
insert into outlive.waiting (queue, source, task, priority, ready_at, id)
select 'many', '', 'work', 5, outlive.now(), lpad(n::text, 32, '0')::uuid from generate_series(1, 100000) n"""


def scaling(queue: Queue) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """Ready jobs, the age of the oldest, busy, wanted and all slots, and workers, by queue and needs."""
    rows = queue.execute(SCALING)
    return {(name, *needs): tuple(found) for name, needs, *found in rows}


def test_a_queue_has_ready_jobs_busy_slots_and_slots(queue):
    queue.set_now()
    assert scaling(queue) == {}
    queue.make_many(3)
    queue.make(run_at=NOON + timedelta(hours=1))
    assert scaling(queue) == {("default",): (3, 0, 0, 3, 0, 0)}
    queue.register_worker(WORKER)
    queue.claim(limit=1)
    queue.set_now(later_s=90)
    assert scaling(queue) == {("default",): (2, 90, 1, 3, 4, 1)}
    queue.execute("update outlive.workers set state = 'draining'")
    assert scaling(queue) == {("default",): (2, 90, 0, 2, 0, 0)}, "its jobs end without a slot that is wanted"


def test_jobs_beyond_the_slots_of_a_worker_take_none_and_jobs_that_share_take_few(queue):
    queue.set_now()
    queue.register_task(name="work", share=10)
    queue.make_many(95)
    assert scaling(queue)["default",][:4] == (95, 0, 0, 10)
    queue.register_worker(WORKER)
    queue.claim(limit=70)
    assert scaling(queue)["default",][2:] == (4, 7, 4, 1), "seven slots would hold them, and it has four"


def test_what_is_paused_wants_no_slots(queue):
    queue.run(store.register_sources([SourceLimits("shop")]))
    queue.make_many(2, source="shop")
    queue.make(queue="mail")
    queue.run(store.pause_queue("mail"))
    assert scaling(queue)["default",][3] == 2
    queue.run(store.pause_source("shop"))
    assert sum(figures[3] for figures in scaling(queue).values()) == 0


def test_jobs_that_need_a_label_want_workers_with_it(queue):
    queue.register_task(name="draw", needs=("gpu",))
    queue.register_task(name="work")
    queue.register_worker(UUID(int=1))
    queue.register_worker(UUID(int=2), labels="gpu,eu")
    queue.make_many(2)
    queue.make("draw")
    figures = scaling(queue)
    assert (figures["default",][3:], figures["default", "gpu"][3:]) == ((2, 8, 2), (1, 4, 1))


def test_a_hundred_thousand_jobs_are_not_read(queue):
    queue.execute(MANY)
    [(ready, *_)] = scaling(queue).values()
    assert ready == 5000
    plan = queue.values("explain (analyze, buffers) select * from outlive.scaling")
    read = int(re.findall(r"shared hit=(\d+)", "\n".join(plan))[0])
    pages = queue.value("select pg_relation_size('outlive.waiting') / current_setting('block_size')::int")
    assert read < pages / 2, plan
