"""Apps that set up OpenTelemetry and Sentry themselves, and receivers that don't answer."""

from uuid import UUID

import psycopg
import pytest

from outlive import State
from outlive.client.app import App
from tests.driving.receiving import receiving, tree
from tests.waiting import eventually

TASK = "select outlive.enqueue('tests.telemetry.provided.' || %s)"


def enqueued(connection: psycopg.Connection[tuple[UUID]], task: str) -> UUID:
    row = connection.execute(TASK, [task]).fetchone()
    assert row
    return row[0]


@pytest.mark.long
def test_the_last_spans_and_events_of_an_app_are_sent_by_its_own_providers_before_its_processes_exit(
    start, database_url, queue, monkeypatch
):
    client = App(database_url)
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        monkeypatch.setenv("SENTRY_DSN", receiver.address.replace("//", "//key@") + "/7")
        worker = start(slots=2, target="tests.telemetry.provided:app")
        warm, fresh = enqueued(queue, "warm"), enqueued(queue, "fresh")
        eventually(lambda: client.get_job(fresh).status() is State.FAILED)
        assert client.get_job(warm).result(timeout=20) is None
        eventually(lambda: len(receiver.of_job(fresh)) == 3 and receiver.events(), what="a fresh process sends")
        assert worker.stop() == 0
        assert tree(receiver.of_job(warm)) == {"wait default": {}, "run default": {"warm": {}}}
        assert tree(receiver.of_job(fresh)) == {"wait default": {}, "run default": {"fresh": {}}}
        assert {(span.name, span.service) for span in receiver.spans()} >= {("warm", "own"), ("fresh", "own")}
        (event,) = receiver.events()
        assert (event["environment"], event["tags"]["outlive.job_id"]) == ("own", str(fresh))
    client.connections.close()
