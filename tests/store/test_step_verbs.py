"""What operators do with steps: begin again at one, and give a value in place of one."""

from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from outlive import db, store
from outlive.errors import BadArguments
from outlive.model import Ended
from outlive.protocol import KeptStep
from outlive.states import Outcome, State
from tests.driving.making import KILLED, WORKER, Queue
from tests.store.acting import assert_sound

STEPS = ("charge", "label", "mail")


def names(queue: Queue, job: UUID) -> list[str]:
    return [row["name"] for row in queue.run(store.steps_of(job))]


def refusal(queue: Queue, statement: db.Statement[Any]) -> str:
    with pytest.raises(BadArguments) as refused, db.translated_errors():
        queue.run(statement)
    return str(refused.value)


def supply(job: UUID, step: str, value: object, *, replacing: bool = False) -> db.Statement[str]:
    return store.supply(job, step, msgspec.json.encode(value), "anna", replacing=replacing)


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED])
def test_a_finished_job_begins_again_at_a_step_and_keeps_those_before(queue, outcome):
    job = queue.make_finished(outcome)
    queue.keep_steps(job, *STEPS)
    assert queue.run(store.rerun(job, "label")) == 2
    assert queue.state_of(job) is State.PENDING
    assert names(queue, job) == ["charge"]
    queue.run_job(job)
    assert queue.state_of(job) is State.SUCCEEDED


def test_a_job_that_begins_again_at_a_step_repeats_what_that_step_had_kept_below_it(queue):
    job = queue.make_finished()
    queue.keep_steps(job, "order > charge", "pay > charge", "pay > charge > ask", "payment", "pay", "mail")
    assert queue.run(store.rerun(job, "pay")) == 4
    assert names(queue, job) == ["order > charge", "payment"]


def test_a_job_in_quarantine_or_that_waits_for_a_retry_begins_again_with_all_counters_at_zero(queue):
    killer, failing = queue.make_quarantined(crashes=2), queue.make()
    queue.run_job(failing, Outcome.FAILED)
    for job in (killer, failing):
        queue.keep_steps(job, *STEPS)
        assert queue.counters(job) != (0, 0, 0)
        assert queue.run(store.rerun(job, "charge")) == 3
        assert (queue.state_of(job), queue.counters(job)) == (State.PENDING, (0, 0, 0))
    assert queue.count("crashes") == 0


def test_a_job_that_is_under_way_or_has_no_such_step_is_left_as_it_is(queue):
    running, waiting, done = queue.make("a"), queue.make("b"), queue.make_finished()
    queue.claim_job(running)
    for job in (running, waiting, done):
        queue.keep_steps(job, *STEPS)
    assert refusal(queue, store.rerun(running, "charge")) == (
        "it is running: cancel it, or wait until its attempt has ended"
    )
    assert refusal(queue, store.rerun(waiting, "charge")) == (
        "it is pending: only a job that has ended, is in quarantine or waits for a retry begins again"
    )
    assert refusal(queue, store.rerun(done, "parcel")) == "it has kept no step parcel"
    assert refusal(queue, store.rerun(UUID(int=7), "charge")) == f"there is no job {UUID(int=7)}"
    assert [names(queue, job) for job in (running, waiting, done)] == [list(STEPS)] * 3


def test_a_job_whose_dedupe_key_another_one_has_taken_does_not_begin_again(queue):
    done = queue.make_finished(dedupe_key="order-7")
    queue.keep_steps(done, *STEPS)
    holder = queue.make(dedupe_key="order-7")
    assert refusal(queue, store.rerun(done, "charge")) == f"its dedupe key 'order-7' is taken by job {holder}"
    assert (queue.state_of(done), names(queue, done)) == (State.SUCCEEDED, list(STEPS))


def test_a_batch_counts_a_job_that_begins_again_once(queue):
    batch = queue.run(store.open_batch(uuid4(), "import"))
    job = queue.make_finished(links=msgspec.json.encode({"batch": batch}))
    queue.keep_steps(job, *STEPS)
    queue.run(store.close_batch(batch))
    assert queue.run(store.batch_done(batch)) is True
    queue.run(store.rerun(job, "mail"))
    assert queue.row("select jobs, succeeded, failed, done_at from outlive.batches") == {
        "jobs": 1,
        "succeeded": 0,
        "failed": 0,
        "done_at": None,
    }
    queue.run_job(job)
    assert queue.run(store.batch_done(batch)) is True


def test_steps_that_one_statement_keeps_stay_in_their_order(queue):
    """A rerun drops those that came later, not those that were written with it."""
    job = queue.make()
    token = queue.claim_job(job).token
    given = [KeptStep(name, b"1", None, 0.0, relaxed=True) for name in ("second", "first", "third")]
    queue.run(store.keep_steps(WORKER, [token] * 3, given))
    assert names(queue, job) == ["second", "first", "third"]


def test_a_supplied_value_is_kept_and_names_the_person(queue):
    job = queue.make_quarantined()
    assert queue.run(supply(job, "parse:page-17", {"words": 0})) == "quarantined"
    (row,) = queue.run(store.steps_of(job))
    assert (row["name"], row["value"], row["supplied_by"]) == ("parse:page-17", b'{"words":0}', "anna")
    queue.run(store.release([job]))
    assert queue.run(store.kept_by_jobs([job]))[job] == b'[["parse:page-17", {"words":0}, null]]'


def test_what_is_kept_is_replaced_only_on_purpose_and_keeps_its_place(queue):
    job = queue.make_finished(Outcome.FAILED)
    queue.keep_steps(job, *STEPS)
    said = "it has kept the step label: --replace, or Replace on the dashboard, overwrites its value"
    assert refusal(queue, supply(job, "label", 7)) == said
    assert queue.run(supply(job, "label", 7, replacing=True)) == "failed"
    found = queue.run(store.steps_of(job))
    assert [(row["name"], row["value"], row["supplied_by"]) for row in found] == [
        ("charge", b'"charge"', None),
        ("label", b"7", "anna"),
        ("mail", b'"mail"', None),
    ]


def test_a_running_attempt_gets_a_supplied_value_and_none_that_replaces_what_it_has_used(queue):
    job = queue.make()
    token = queue.claim_job(job).token
    queue.run(store.keep_steps(WORKER, [token], [KeptStep("charge", b"1", None, 0.0)]))
    assert "it is running, and may have gone on from its step charge" in refusal(
        queue, supply(job, "charge", 2, replacing=True)
    )
    assert queue.run(supply(job, "label", "by hand")) == "running"
    kept = queue.run(store.keep_steps(WORKER, [token], [KeptStep("label", b'"its own"', None, 0.0)]))
    assert kept == {(job, "label"): b'"by hand"'}


def test_a_value_that_no_job_could_keep_is_refused(queue):
    job = queue.make_finished(Outcome.FAILED)
    assert "at most 10,000 steps and 16,777,216 bytes" in refusal(queue, supply(job, "large", "x" * 17_000_000))
    for name in ("", "".join(map(chr, range(0x4E00, 0x4E00 + 900)))):
        assert "1 to 1000 bytes" in refusal(queue, supply(job, name, 1))
    assert "nested more than 500 levels deep" in refusal(
        queue, store.supply(job, "deep", b"[" * 600 + b"]" * 600, "anna", replacing=False)
    )
    assert queue.count("steps") == 0


def test_a_claim_waits_for_a_value_that_is_being_replaced(queue, database_url):
    job = queue.make()
    queue.run_job(job, Outcome.CRASHED, after_s=0.0, **KILLED)
    queue.keep_steps(job, "charge")
    with Queue.at(database_url) as operator, operator.transaction():
        operator.run(supply(job, "charge", 2, replacing=True))
        assert queue.claim() == []
    assert [one.id for one in queue.claim()] == [job]


def test_a_job_that_restarts_has_new_arguments_and_nothing_of_what_it_kept(queue):
    job = queue.make(args=b'{"page": 1}')
    queue.run_job(job, Outcome.FAILED, after_s=0.0)
    token = queue.claim_job(job).token
    queue.keep_steps(job, *STEPS, "checkpoint")
    queue.run(store.write_end(WORKER, Ended(token, Outcome.RELEASED, error="again", restart=b'{"page": 2}')))
    assert (queue.state_of(job), queue.counters(job)) == (State.PENDING, (0, 0, 0))
    assert queue.value("select args::text from outlive.jobs") == '{"page": 2}'
    assert queue.run(store.kept_by_jobs([job])) == {}
    assert queue.run(store.list_attempts(job))[-1].error == 'again; this attempt had {"page": 1}'


def test_a_job_that_an_operator_wants_stopped_does_not_restart(queue):
    job = queue.make(args=b'{"page": 1}')
    token = queue.claim_job(job).token
    queue.run(store.cancel([job]))
    queue.run(store.write_end(WORKER, Ended(token, Outcome.RELEASED, restart=b'{"page": 2}')))
    assert queue.state_of(job) is State.CANCELLED
    assert queue.value("select args::text from outlive.jobs") == '{"page": 1}'


def test_the_kills_of_its_old_arguments_are_not_those_of_its_new_ones(queue):
    queue.register_task(quarantine_by="fingerprint", max_crashes=2)
    job = queue.make(args=b'{"page": 1}')
    token = queue.claim_job(job).token
    before = queue.value("select coalesce(fingerprint, outlive.fingerprint(task, args)) from outlive.jobs")
    queue.run(store.write_end(WORKER, Ended(token, Outcome.RELEASED, restart=b'{"page": 2}')))
    assert queue.value("select coalesce(fingerprint, outlive.fingerprint(task, args)) from outlive.jobs") != before


def test_a_job_that_waits_for_others_too_waits_again_for_one_that_begins_again(queue):
    first, second = queue.make_many(2)
    links = msgspec.json.encode({"after": [str(first), str(second)]})
    waits = queue.make(links=links)
    queue.run_job(first, result=b"1")
    queue.keep_steps(first, *STEPS)
    queue.run(store.rerun(first, "label"))
    queue.run_job(second, result=b"2")
    assert queue.state_of(waits) is State.BLOCKED
    queue.run_job(first, result=b"3")
    token = queue.claim_job(waits).token
    assert queue.values("select part from outlive.inputs(%s, 0, 0)", token) == [b"3", b"2"]
    assert_sound(queue)


def test_a_job_does_not_begin_again_while_others_are_enqueued_to_wait_for_it(queue, connect):
    """These have seen its old result: they would not wait for the new one."""
    first, second = queue.make_many(2)
    queue.run_job(first, result=b"1")
    queue.keep_steps(first, *STEPS)
    client = connect()
    with client.transaction():
        waits = client.make(links=msgspec.json.encode({"after": [str(first), str(second)]}))
        queue.execute("set lock_timeout = '20ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            queue.run(store.rerun(first, "label"))
    queue.run(store.rerun(first, "label"))
    queue.run_job(second, result=b"2")
    assert queue.state_of(waits) is State.BLOCKED
    assert_sound(queue)
