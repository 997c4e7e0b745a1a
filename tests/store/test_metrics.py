"""The figures of the whole database, as the view `outlive.metrics` has them and as Prometheus reads them."""

from datetime import timedelta
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outlive import store
from outlive.metrics import database, exposition
from outlive.metrics.catalogue import OF_DATABASE
from outlive.model import Schedule, SourceLimits
from outlive.states import Outcome
from tests.driving.making import NOON, Queue


def read(queue: Queue) -> dict[tuple[str, str], float]:
    """Every figure by the name of its metric and the value of its label, as a scraper reads it."""
    text = exposition.text(database.by_metric(queue.run(store.metrics())), "shop").decode()
    families = list(text_string_to_metric_families(text))
    assert [family.name for family in families] == [metric.name for metric in OF_DATABASE]
    return {
        (sample.name, next((value for label, value in sample.labels.items() if label != "database"), "")): sample.value
        for family in families
        for sample in family.samples
        if sample.labels["database"] == "shop"
    }


def test_an_empty_database_has_a_zero_for_each_state(queue):
    figures = read(queue)
    assert set(figures.values()) == {0.0}
    assert ("outlive_workers", "dead") in figures
    assert ("outlive_jobs", "quarantined") in figures
    assert not any(name.startswith("outlive_queue") for name, _ in figures)


def test_jobs_are_counted_by_state_and_by_queue(queue):
    queue.set_now()
    queue.register_task(name="quiet", queue="quiet")
    queue.make_quarantined()
    queue.make_finished()
    queue.make_finished(Outcome.FAILED)
    queue.make_many(3)
    queue.make(queue="night", run_at=NOON + timedelta(hours=1))
    queue.run(store.pause_queue("night"))
    queue.claim(limit=1, lease_s=30)
    queue.set_now(later_s=90)
    figures = read(queue)
    states = {state: count for (name, state), count in figures.items() if name == "outlive_jobs" and count}
    assert states == {"quarantined": 1, "succeeded": 1, "failed": 1, "pending": 3, "running": 1}
    queues = {key: value for key, value in figures.items() if key[0].startswith("outlive_queue") and value}
    assert queues == pytest.approx(
        {
            ("outlive_queue_waiting_jobs", "default"): 2,
            ("outlive_queue_ready_jobs", "default"): 2,
            ("outlive_queue_running_jobs", "default"): 1,
            ("outlive_queue_oldest_ready_seconds", "default"): 90,
            ("outlive_queue_wanted_slots", "default"): 2,
            ("outlive_queue_waiting_jobs", "night"): 1,
            ("outlive_queue_paused", "night"): 1,
            ("outlive_queue_paused_seconds", "night"): 90,
        }
    )
    assert figures["outlive_queue_waiting_jobs", "quiet"] == 0
    assert figures["outlive_stuck_jobs", ""] == 1


def test_a_dead_worker_is_counted_and_serves_no_queue(queue):
    queue.make()
    queue.register_worker(UUID(int=1))
    queue.register_worker(UUID(int=2), state="dead")
    figures = read(queue)
    assert (figures["outlive_workers", "active"], figures["outlive_workers", "dead"]) == (1, 1)
    assert figures["outlive_queue_workers", "default"] == 1
    queue.execute("update outlive.workers set queues = '{night}'")
    assert read(queue)["outlive_queue_workers", "default"] == 0


def test_sources_show_their_tokens_and_whether_they_are_open(queue):
    shop, bank = SourceLimits("shop", rate_limit_per_minute=60, burst=5), SourceLimits("bank")
    queue.run(store.register_sources([shop, bank]))
    queue.execute("update outlive.sources set paused_until = outlive.now() + interval '1m' where name = 'bank'")
    figures = read(queue)
    assert (figures["outlive_sources", "open"], figures["outlive_sources", "closed"]) == (1, 1)
    assert figures["outlive_source_tokens", "shop"] == 5
    assert ("outlive_source_tokens", "bank") not in figures
    assert [figures[f"outlive_source_{what}", "bank"] for what in ("breaker_open", "paused")] == [1, 1]
    assert [figures[f"outlive_source_{what}", "shop"] for what in ("breaker_open", "paused")] == [0, 0]


def test_a_schedule_that_does_not_fire_is_behind(queue):
    queue.set_now()
    made = [Schedule(name=name, task="work", args=b"{}", every_s=60.0) for name in ("late", "paused", "in time")]
    queue.run(store.declare_schedules(made, "shop:app"))
    queue.execute("update outlive.schedules set next_at = outlive.now() - interval '90 s'")
    queue.execute("update outlive.schedules set next_at = outlive.now() + interval '1 s' where name = 'in time'")
    queue.run(store.pause_schedule("paused"))
    figures = read(queue)
    behind = {name: late_s for (metric, name), late_s in figures.items() if metric == "outlive_schedule_behind_seconds"}
    assert behind == {"late": 90, "in time": 0}


def test_no_label_has_more_values_than_a_server_bears(queue):
    for n in range(250):
        queue.make(queue=f"queue-{n:03}", source=f"source-{n:03}")
    queue.make_many(2, queue="queue-249")
    figures = read(queue)
    for metric, most in (("outlive_queue_waiting_jobs", 201), ("outlive_source_paused", 200)):
        assert len([name for name, _ in figures if name == metric]) == most
    assert figures["outlive_queue_waiting_jobs", "other"] == 50
    assert figures["outlive_queue_waiting_jobs", "queue-249"] == 3
    assert figures["outlive_sources", "closed"] == 250


@pytest.mark.parametrize("name", ["a\nb", 'quo"ted', "back\\slash", "ünïcode \u202e"])
def test_a_hostile_name_stays_a_label(queue, name):
    queue.make(queue=name)
    assert read(queue)["outlive_queue_waiting_jobs", name] == 1


def test_what_has_just_happened_is_counted_without_figures_of_the_past(queue):
    queue.set_now()
    queue.make_finished(Outcome.FAILED)
    queue.make_quarantined()
    queue.register_worker(state="dead")
    queue.run(store.pause_queue("mail"))
    queue.set_now(later_s=599)
    recent = [("outlive_recent_failures", ""), ("outlive_recent_quarantines", ""), ("outlive_recent_worker_deaths", "")]
    figures = read(queue)
    assert [figures[one] for one in recent] == [1, 1, 1]
    assert figures["outlive_queue_paused_seconds", "mail"] == pytest.approx(599)
    queue.set_now(later_s=601)
    figures = read(queue)
    assert [figures[one] for one in recent] == [0, 0, 0]
