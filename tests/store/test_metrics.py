"""The figures of the whole database, as the view `outlive.metrics` has them and as Prometheus reads them."""

from datetime import timedelta
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outlive import db, store
from outlive.metrics import database, exposition
from outlive.metrics.catalogue import OF_DATABASE
from outlive.model import Schedule, SourceLimits
from outlive.states import Outcome
from tests.driving.making import (
    NOON,
    claim,
    make,
    make_finished,
    make_many,
    make_quarantined,
    register_task,
    register_worker,
    set_now,
)


def read(connection: db.Connection) -> dict[tuple[str, str], float]:
    """Every figure by the name of its metric and the value of its label, as a scraper reads it."""
    text = exposition.text(database.by_metric(db.run(connection, store.metrics()))).decode()
    families = list(text_string_to_metric_families(text))
    assert [family.name for family in families] == [metric.name for metric in OF_DATABASE]
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in families
        for sample in family.samples
    }


def test_an_empty_database_has_a_zero_for_each_state(connection: db.Connection) -> None:
    figures = read(connection)
    assert set(figures.values()) == {0.0}
    assert ("outlive_workers", "dead") in figures
    assert ("outlive_jobs", "quarantined") in figures
    assert not any(name.startswith("outlive_queue") for name, _ in figures)


def test_jobs_are_counted_by_state_and_by_queue(connection: db.Connection) -> None:
    set_now(connection)
    register_task(connection, name="quiet", queue="quiet")
    make_quarantined(connection)
    make_finished(connection)
    make_finished(connection, Outcome.FAILED)
    make_many(connection, 3)
    make(connection, queue="night", run_at=NOON + timedelta(hours=1))
    db.run(connection, store.pause_queue("night"))
    claim(connection, limit=1, lease_s=30)
    set_now(connection, later_s=90)
    figures = read(connection)
    states = {state: count for (name, state), count in figures.items() if name == "outlive_jobs" and count}
    assert states == {"quarantined": 1, "succeeded": 1, "failed": 1, "pending": 3, "running": 1}
    queues = {key: value for key, value in figures.items() if key[0].startswith("outlive_queue") and value}
    assert queues == pytest.approx(
        {
            ("outlive_queue_waiting_jobs", "default"): 2,
            ("outlive_queue_ready_jobs", "default"): 2,
            ("outlive_queue_running_jobs", "default"): 1,
            ("outlive_queue_oldest_ready_seconds", "default"): 90,
            ("outlive_queue_waiting_jobs", "night"): 1,
            ("outlive_queue_paused", "night"): 1,
        }
    )
    assert figures["outlive_queue_waiting_jobs", "quiet"] == 0
    assert figures["outlive_stuck_jobs", ""] == 1


def test_a_dead_worker_is_counted_and_serves_no_queue(connection: db.Connection) -> None:
    make(connection)
    register_worker(connection, UUID(int=1))
    register_worker(connection, UUID(int=2), state="dead")
    figures = read(connection)
    assert (figures["outlive_workers", "active"], figures["outlive_workers", "dead"]) == (1, 1)
    assert figures["outlive_queue_workers", "default"] == 1
    connection.execute("update outlive.workers set queues = '{night}'")
    assert read(connection)["outlive_queue_workers", "default"] == 0


def test_sources_show_their_tokens_and_whether_they_are_open(connection: db.Connection) -> None:
    shop, bank = SourceLimits("shop", rate_limit_per_minute=60, burst=5), SourceLimits("bank")
    db.run(connection, store.register_sources([shop, bank]))
    connection.execute("update outlive.sources set paused_until = outlive.now() + interval '1m' where name = 'bank'")
    figures = read(connection)
    assert (figures["outlive_sources", "open"], figures["outlive_sources", "closed"]) == (1, 1)
    assert figures["outlive_source_tokens", "shop"] == 5
    assert ("outlive_source_tokens", "bank") not in figures
    assert [figures[f"outlive_source_{what}", "bank"] for what in ("breaker_open", "paused")] == [1, 1]
    assert [figures[f"outlive_source_{what}", "shop"] for what in ("breaker_open", "paused")] == [0, 0]


def test_a_schedule_that_does_not_fire_is_behind(connection: db.Connection) -> None:
    set_now(connection)
    made = [Schedule(name=name, task="work", args=b"{}", every_s=60.0) for name in ("late", "paused", "in time")]
    db.run(connection, store.declare_schedules(made, "shop:app"))
    connection.execute("update outlive.schedules set next_at = outlive.now() - interval '90 s'")
    connection.execute("update outlive.schedules set next_at = outlive.now() + interval '1 s' where name = 'in time'")
    db.run(connection, store.pause_schedule("paused"))
    figures = read(connection)
    behind = {name: late_s for (metric, name), late_s in figures.items() if metric == "outlive_schedule_behind_seconds"}
    assert behind == {"late": 90, "in time": 0}


def test_no_label_has_more_values_than_a_server_bears(connection: db.Connection) -> None:
    for n in range(250):
        make(connection, queue=f"queue-{n:03}", source=f"source-{n:03}")
    make_many(connection, 2, queue="queue-249")
    figures = read(connection)
    for metric, most in (("outlive_queue_waiting_jobs", 201), ("outlive_source_paused", 200)):
        assert len([name for name, _ in figures if name == metric]) == most
    assert figures["outlive_queue_waiting_jobs", "other"] == 50
    assert figures["outlive_queue_waiting_jobs", "queue-249"] == 3
    assert figures["outlive_sources", "closed"] == 250


@pytest.mark.parametrize("name", ["a\nb", 'quo"ted', "back\\slash", "ünïcode \u202e"])
def test_a_hostile_name_stays_a_label(connection: db.Connection, name: str) -> None:
    make(connection, queue=name)
    assert read(connection)["outlive_queue_waiting_jobs", name] == 1
