"""Enqueuing: durable, idempotent, in bulk, in the caller's transaction, and never half."""

import outlive
from tests.client.example import add, app_at


def test_an_enqueued_job_is_pending(database_url: str) -> None:
    app_at(database_url)
    job = add.enqueue(1, 2)
    assert job.status() is outlive.State.PENDING
