"""The command batches, and the option --batch."""

from uuid import UUID

import msgspec
import pytest

from outlive import store
from outlive.model import Ended, new_job_id
from outlive.states import Outcome
from tests.driving.making import Queue, request


@pytest.fixture
def batch(queue: Queue) -> UUID:
    """An open batch of four jobs: one has succeeded, one has failed, one runs, one waits. Another job has no batch."""
    batch = queue.run(store.open_batch(new_job_id(), "import", on_failure=request("warn")))
    queue.make_many(4, links=msgspec.json.encode({"batch": batch}))
    queue.make_many(1)
    first, second, _ = queue.claim(limit=3)
    queue.end(Ended(first.token))
    queue.end(Ended(second.token, Outcome.FAILED, final=True))
    return batch


def test_batches_are_listed(cli, batch):
    (row,) = cli("batches", "--json").json
    expected = {"id": str(batch), "name": "import", "state": "open", "jobs": 4, "progress": 0.5, "unfinished": 2}
    assert expected.items() <= row.items()
    table = cli("batches").out
    for words in (str(batch), "import", "open", "50 %"):
        assert words in table


def test_without_a_batch_there_is_a_sentence(cli):
    assert cli("batches").out == "there are no batches\n"


def test_a_batch_is_shown_with_its_callbacks(cli, batch):
    shown = cli("batches", "show", str(batch))
    assert "4 jobs: 1 succeeded, 1 failed, 0 cancelled, 0 quarantined, 2 unfinished" in shown.out
    assert "not enqueued" in shown.out
    callback = cli("batches", "show", str(batch), "--json").json["on_failure"]
    assert f"on_failure: job {callback}" in shown.out


def test_closing_and_cancelling_a_batch(cli, queue, batch):
    closed = cli("batches", "close", str(batch))
    assert closed.out == f"batch {batch} is closed; 2 of 4 jobs are left\n"
    cancelled = cli("batches", "cancel", str(batch))
    assert cancelled.out == f"batch {batch} is closed; 1 of 4 jobs are left\n"
    assert queue.count("waiting") == 1
    assert queue.count("callbacks") == 1


def test_jobs_are_chosen_by_their_batch(cli, queue, batch):
    mine = ("--batch", str(batch))
    assert len(cli("jobs", "--json").json) == 5
    assert [row["state"] for row in cli("jobs", *mine, "--json").json] == ["pending", "running", "failed", "succeeded"]
    assert len(cli("jobs", *mine, "--state", "pending", "--json").json) == 1
    assert cli("jobs", *mine, "--task", "other", "--json").json == []
    assert cli("retry", "--all", "--yes", *mine).out == "1 job retried\n"
    assert cli("cancel", "--all", "--yes", *mine, "--state", "pending").out == "2 jobs cancelled\n"
    assert queue.count("waiting") == 1
