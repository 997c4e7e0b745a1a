"""on_failed: the job that follows a failure, enqueued in the transaction that ends the other one, and once."""

from typing import Any
from uuid import uuid4

import msgspec
import pytest
from psycopg import errors

from outlive import State, store
from outlive.humanize import short_id
from outlive.model import Ended
from outlive.states import Outcome
from tests.driving.making import KILLED, WORKER, Queue


def telling(**fields: Any) -> bytes:
    return msgspec.json.encode({"on_failed": {"task": "tell", **fields}})


def told(queue: Queue) -> list[tuple[Any, ...]]:
    return queue.execute("select args, queue, priority from outlive.jobs where task = 'tell' order by id").fetchall()


def test_a_failed_job_enqueues_it_with_its_id_and_error_once(queue):
    job = queue.make(links=telling(queue="alerts", priority=1))
    queue.run_job(job, Outcome.FAILED, error="ValueError: no", after_s=0.0)
    assert told(queue) == []
    queue.run_job(job, Outcome.FAILED, error="ValueError: never", final=True)
    assert told(queue) == [([str(job), "ValueError: never"], "alerts", 1)]
    queue.run(store.retry([job]))
    queue.run_job(job, Outcome.FAILED, error="ValueError: again", final=True)
    assert queue.state_of(job) is State.FAILED
    assert len(told(queue)) == 1


def test_jobs_that_share_it_enqueue_it_once_with_the_first_of_them_that_fails(queue):
    jobs = queue.make_many(3, links=telling(once_for=str(uuid4())))
    other = queue.make(links=telling(once_for=str(uuid4())))
    ends = [Ended(one.token, Outcome.FAILED, error="no", final=True) for one in queue.claim()]
    queue.end(*ends[1:])
    queue.end(ends[0])
    assert sorted(args for args, *_ in told(queue)) == [[str(jobs[1]), "no"], [str(other), "no"]]


def test_a_quarantined_job_enqueues_it_with_the_reason(queue):
    job = queue.make(options={"max_crashes": 1}, links=telling())
    queue.run_job(job, Outcome.CRASHED, **KILLED)
    assert told(queue) == [([str(job), "killed its process once (max_crashes = 1)"], "default", 5)]


def test_a_job_that_is_quarantined_before_it_starts_enqueues_it_too(queue):
    """Another one with the same arguments has killed, or the limit was lowered."""
    queue.register_task(max_crashes=1, quarantine_by="fingerprint")
    queue.run_job(queue.make(), Outcome.CRASHED, **KILLED)
    queue.make(links=telling())
    [claimed] = queue.claim()
    queue.run(store.convict(WORKER, [claimed.token]))
    [([first, reason], *_)] = told(queue)
    assert (first, reason[:21]) == (str(claimed.id), "killed its process 0 ")
    queue.register_task(max_crashes=9)
    job = queue.make(links=telling(), args=b'{"n": 1}')
    queue.run_job(job, Outcome.CRASHED, after_s=0.0, **KILLED)
    queue.register_task(max_crashes=1)
    assert queue.claim() == []
    assert [str(job), "killed its process once (max_crashes = 1)"] in [args for args, *_ in told(queue)]


def test_a_job_that_is_lost_for_good_enqueues_it(queue):
    job = queue.make(options={"on_worker_death": "fail"}, links=telling())
    queue.register_worker()
    queue.claim()
    queue.execute("update outlive.workers set state = 'dead'")
    assert len(queue.run(store.reap())) == 1
    [(args, *_)] = told(queue)
    assert args[0] == str(job)
    assert args[1]


def test_the_one_of_the_app_follows_where_a_job_names_none_and_never_itself(queue):
    queue.register_task(on_failed={"task": "tell", "queue": "alerts"})
    queue.register_task(name="tell", on_failed={"task": "tell", "queue": "alerts"})
    own, other = queue.make(links=telling(queue="own")), queue.make()
    for job in (own, other):
        queue.run_job(job, Outcome.FAILED, error="no", final=True)
    assert sorted(told(queue)) == [([str(own), "no"], "own", 5), ([str(other), "no"], "alerts", 5)]
    for job in queue.values("select id from outlive.jobs where task = 'tell'"):
        queue.run_job(job, Outcome.FAILED, error="not this either", final=True)
    assert len(told(queue)) == 2


def test_jobs_that_succeed_or_are_cancelled_enqueue_nothing(queue):
    done, cancelled = queue.make(links=telling()), queue.make(links=telling())
    queue.run_job(done)
    queue.run(store.cancel([cancelled]))
    assert told(queue) == []


def test_many_ends_of_one_statement_enqueue_each_their_own(queue):
    jobs = queue.make_many(20, links=telling())
    for claimed in queue.claim():
        queue.end(Ended(claimed.token, Outcome.FAILED, error=str(claimed.id), final=True))
    assert sorted(args for args, *_ in told(queue)) == sorted([str(job), str(job)] for job in jobs)


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, {"task": 3}, {"task": "tell", "args": {}}, {"task": "tell", "dedupe_key": "k"}),
        *({"task": "tell", "links": {}}, {"task": "tell", "once_for": "7"}),
    ],
)
def test_what_is_no_job_is_refused(queue, wrong):
    with pytest.raises(errors.DatabaseError, match="on_failed is a job as an object, with a task"):
        queue.make(links=msgspec.json.encode({"on_failed": wrong}))


def test_one_that_could_not_be_enqueued_is_refused_before_it_is_needed(queue):
    with pytest.raises(errors.DatabaseError, match="names of at most 200 bytes"):
        queue.make(links=telling(queue="q" * 201))
    assert queue.count("jobs") == 0


def test_plain_sql_has_it_too(queue):
    job = queue.value("""select outlive.enqueue('work', on_failed => '{"task": "tell"}')""")
    queue.run_job(job, Outcome.FAILED, error="no", final=True)
    assert told(queue) == [([str(job), "no"], "default", 5)]


def test_it_has_another_short_id_than_its_job(queue):
    """Its id begins as that of the failed job, and goes on with another digit and a hash."""
    queue.make_many(50, links=telling())
    for claimed in queue.claim():
        queue.end(Ended(claimed.token, Outcome.FAILED, final=True))
    pairs = queue.execute("select args ->> 0, id from outlive.jobs where task = 'tell'").fetchall()
    assert len(pairs) == 50
    assert [id for job, id in pairs if short_id(job) == short_id(id)] == []
    assert all(str(id).startswith(job[:21]) for job, id in pairs)
