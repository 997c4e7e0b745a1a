"""A succeeded job that runs again: as a new job, with what the old one was enqueued with."""

from uuid import uuid4

import msgspec

from outlive import store
from outlive.model import Change
from outlive.states import State
from tests.driving.making import Queue


def repeated(queue: Queue, job: object) -> Change:
    (change,) = queue.run(store.repeat([job]))  # type: ignore[list-item]
    return change


def links(**given: object) -> bytes:
    return msgspec.json.encode(given)


def newest(queue: Queue, *columns: str) -> tuple[object, ...]:
    """These of the job that was made last."""
    query = f"select {', '.join(columns)} from outlive.jobs order by id desc limit 1"  # noqa: S608
    return queue.execute(query.encode()).fetchone() or ()


def test_the_new_job_has_the_task_arguments_limits_and_keys_of_the_old_one(queue):
    given = links(key="host", concurrency=2, on_failed={"task": "tell"})
    old = queue.make_finished(args=b'{"page": 7}', queue="slow", priority=2, options={"timeout_s": 5}, links=given)
    assert repeated(queue, old).changed
    columns = ("task", "queue", "priority", "args ->> 'page'", "concurrency_key", "concurrency", "on_failed")
    assert newest(queue, *columns) == ("work", "slow", 2, "7", "host", 2, {"task": "tell"})
    assert newest(queue, "options") == ({"timeout_s": 5, "repeats": str(old)},)
    assert queue.state_of(old) is State.SUCCEEDED


def test_it_is_not_counted_in_the_batch_of_the_old_one_nor_made_by_its_schedule(queue):
    batch = queue.run(store.open_batch(uuid4(), "import"))
    old = queue.make_finished(options={"schedule": "nightly", "traceparent": "00-1-2-01"}, links=links(batch=batch))
    assert repeated(queue, old).changed
    assert newest(queue, "batch", "options") == (None, {"repeats": str(old)})


def test_a_dedupe_key_that_another_job_has_is_refused(queue):
    old = queue.make_finished(dedupe_key="page-7")
    holder = queue.make(dedupe_key="page-7")
    change = repeated(queue, old)
    assert (change.changed, change.note) == (False, f"its dedupe key 'page-7' is taken by job {holder}")
    queue.run(store.cancel([holder]))
    assert repeated(queue, old).changed
    assert newest(queue, "dedupe_key") == ("page-7",)


def test_it_gets_the_results_again_that_the_old_one_got(queue):
    needed = queue.make_finished()
    old = queue.make_finished(links=links(after=[needed]))
    assert repeated(queue, old).changed
    assert newest(queue, "after", "outlive.state_of(id)") == ([needed], "pending")


def test_without_a_job_whose_result_it_may_need_it_is_refused(queue):
    needed = queue.make_finished()
    old = queue.make_finished(links=links(after=[needed]))
    queue.run(store.prune_jobs([needed]))
    change = repeated(queue, old)
    assert (change.changed, change.note) == (
        False,
        "a job that it has waited for was deleted: its result may be needed",
    )


def test_the_audit_counts_and_names_it(queue):
    old, other = queue.make_finished(), queue.make()
    changes = queue.run(store.act("repeat", [old, other], who="anna", entry=uuid4()))
    assert [change.changed for change in sorted(changes, key=lambda one: one.id)] == [True, False]
    (entry,) = queue.run(store.list_audit())
    assert (entry["action"], entry["jobs"]) == ("repeat", 1)
    assert msgspec.json.decode(entry["what"]) == {"ids": [str(old)]}, "the other one was not changed"
