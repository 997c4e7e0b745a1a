"""Batches of real workers: jobs that add to their own batch, that kill, and whose batch is locked."""

from uuid import UUID

from outlive import BatchCounts, State
from tests.driving.batches import TARGET, callbacks, calls
from tests.processes.batched import app, die, fill_a_batch, own_batch, pay, spread, step
from tests.waiting import eventually


def test_jobs_know_their_batch_add_to_it_while_it_runs_and_open_others(start, queue, database_url):
    with app.batch("tree", **callbacks()) as tree:
        spread.using(batch=tree).enqueue(3)
    with app.batch("payments") as payments:
        pay.using(batch=payments).enqueue(database_url)  # It adds to its batch, and ends in its own transaction.
    with app.batch("one") as batch:
        inside = own_batch.using(batch=batch).enqueue()
    start(target=TARGET)
    assert tree.wait(timeout=30) == BatchCounts(15, 15, 0, 0, 0, 0, True)
    eventually(lambda: calls(queue) == [("done", 1, 1), ("success", 1, 1)], what="the callbacks run")
    assert payments.wait(timeout=30).succeeded == 2
    assert inside.result(timeout=20) == str(batch.id)
    assert own_batch.enqueue().result(timeout=20) == "None"
    opened = app.get_batch(UUID(fill_a_batch.enqueue().result(timeout=20)))
    assert opened.wait(timeout=20).succeeded == 1


def test_a_job_that_kills_its_process_ends_its_batch_without_success(start, queue):
    with app.batch("bad", **callbacks()) as batch:
        killer = die.using(batch=batch).enqueue()
        step.using(batch=batch).enqueue(1)
    start(target=TARGET)
    assert batch.wait(timeout=30) == BatchCounts(2, 1, 0, 0, 1, 0, True)
    assert killer.status() is State.QUARANTINED
    eventually(lambda: calls(queue) == [("done", 1, 1), ("failure", 1, 1)], what="the callbacks run")


def test_a_batch_that_a_transaction_has_locked_holds_up_only_its_own_jobs(start, admin, queue):
    with app.batch("locked") as batch:
        step.using(batch=batch).enqueue(1)
    with admin.transaction():
        admin.execute("select from outlive.batches for no key update")
        worker = start(target=TARGET)
        worker.says("1 results wait for a lock that another transaction holds")
        for n in range(3):
            assert step.enqueue(n).result(timeout=20) is None
        assert batch.counts().left == 1
    assert batch.wait(timeout=20).succeeded == 1
    assert queue.value("select count(*) from outlive.attempts where outcome <> 'succeeded'") == 0
