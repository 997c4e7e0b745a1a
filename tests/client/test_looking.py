"""Programs list jobs by the same filter as the commands."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import outlive
from outlive import State
from outlive.states import Outcome
from tests.client.example import add, fetch

EARLIER = datetime.now(UTC) - timedelta(hours=1)


def test_jobs_are_listed_by_state_task_queue_and_text_the_newest_first(app, queue):
    failed, waiting, other = add.enqueue(1), add.using(queue="mail").enqueue(2, b=3), fetch.enqueue("u")
    queue.run_job(failed.id, Outcome.FAILED, error="ValueError: no price", final=True)
    for which, ids in (
        ({}, [other.id, waiting.id, failed.id]),
        ({"limit": 1}, [other.id]),
        ({"state": "failed"}, [failed.id]),
        ({"state": [State.PENDING, State.RUNNING], "task": add.name}, [waiting.id]),
        ({"queue": "mail"}, [waiting.id]),
        ({"text": "price"}, [failed.id]),
        ({"state": "failed", "since": "1h"}, [failed.id]),
        ({"older_than": "1h"}, []),
        ({"state": "failed", "since": EARLIER}, [failed.id]),
        ({"older_than": EARLIER.isoformat()}, []),
    ):
        found = app.jobs(**which)
        assert [one.id for one in found] == ids, which
        assert asyncio.run(app.ajobs(**which)) == found
    assert (waiting.info().args, waiting.info().queue, waiting.info().attempt) == ({"a": 2, "b": 3}, "mail", 0)
    assert (failed.info().error, failed.info().state) == ("ValueError: no price", "failed")


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        ({"status": "failed"}, "app.jobs has the unknown option status; did you mean state?"),
        ({"state": "broken"}, "state is 'broken': it must be pending"),
        ({"since": "soon"}, "since is 'soon': it must be a duration"),
        ({"since": "14:05"}, "since is '14:05': it must be a duration like .* or a datetime with a time zone"),
        ({"since": EARLIER.replace(tzinfo=None)}, "since is datetime.*: it must be a duration"),
        ({"limit": 0}, "limit is 0: it must be a whole number from 1 to 10000"),
        ({"batch": "7"}, "batch is '7': it must be a UUID"),
    ],
)
def test_what_is_no_filter_is_refused(app, which, reason):
    with pytest.raises(outlive.ConfigError, match=reason):
        app.jobs(**which)


def test_a_job_that_is_not_there_has_no_info(app, queue):
    with pytest.raises(outlive.JobNotFound):
        app.get_job("00000000-0000-0000-0000-000000000007").info()
