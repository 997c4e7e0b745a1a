"""Steps of durable jobs, with real workers: each is taken once, whatever dies."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlive
from outlive import State, config, store
from outlive.errors import JobFailed
from tests.driving.jobs import attempts, finished
from tests.driving.workers import all_gone
from tests.processes.durable import (
    Payment,
    alate,
    app,
    book,
    book_slowly,
    book_without_transaction,
    bulk_result,
    bulky,
    careless,
    changed,
    charge,
    counts_and,
    counts_beside,
    counts_on,
    crawl,
    flaky_quote,
    flood,
    forge,
    forge_twins,
    fulfil,
    gated,
    greedy,
    hurries,
    large,
    late,
    late_outside,
    leaves_a_counter,
    leaves_a_step,
    moves_on,
    naps_in_a_step,
    never_enough,
    page_by_page,
    patient,
    poll,
    prints_in_time,
    quotes,
    quotes_in_threads,
    receives_for_ever,
    refunds,
    reserves_or_refunds,
    restart_wrongly,
    returns_nan,
    ship,
    stubborn,
    waits_after_a_failure,
)
from tests.waiting import eventually

TARGET = "tests.processes.durable:app"
WRITING = "select pid from pg_stat_activity where query like '%insert into outlive.steps%' and wait_event_type = 'Lock'"


@pytest.fixture
def notes(database_url: str, tmp_path: Path) -> Iterator[Path]:
    """A file in which each step writes a line when its code runs."""
    file = tmp_path / "notes"
    file.touch()
    os.mkfifo(f"{file}.gate")
    app.configure(config.load(flags={"database_url": database_url}))
    yield file
    app.configure(None)


def go_on(notes: Path) -> None:
    """Let the job that waits for its test go on."""
    Path(f"{notes}.gate").write_text("")


def lines(notes: Path, *begins: str) -> list[str]:
    return [line for line in notes.read_text().splitlines() if line.startswith(begins)]


REFUSED: list[tuple[Any, bool, str]] = [
    (careless.using(max_attempts=1), True, "two calls of the step print_label are under way at once"),
    (late, False, "TimeoutError: the step slow took longer than 0.05 s"),
    (alate, False, "TimeoutError: the step aslow took longer than 0.05 s"),
    (late_outside, False, "the step slow_with_more_inside took longer than 1 s"),
    (quotes_in_threads, True, "two calls of the step quote are under way at once"),
    (returns_nan, True, "the step unkept can't be kept: the result is nan"),
    (naps_in_a_step, False, "the step nap_inside can't wait in sleep: only the job itself can"),
]
"""Jobs that fail in a step, whether they take the file, and their errors."""


def test_what_a_step_may_not_do_is_the_error_of_its_job(start, notes):
    jobs = [task.enqueue(*[str(notes)][:takes_file]) for task, takes_file, _ in REFUSED]
    start(target=TARGET)
    for job, (_, _, said) in zip(jobs, REFUSED, strict=True):
        with pytest.raises(JobFailed, match=said):
            job.result(timeout=30)
    assert lines(notes, "unkept") == ["unkept"], "it is not called again"


def test_steps_have_their_names_and_are_called_again_alone_wherever_they_are_called(start, notes, queue):
    """At once, after an error, in another step, and in another step that is called again."""
    again = notes.with_name("again")
    named, flaky, inside, repeated = (
        task.enqueue(str(file))
        for task, file in ((ship, notes), (stubborn, notes), (quotes, notes), (flaky_quote, again))
    )
    start(target=TARGET)
    assert named.result(timeout=30) == ["label 0", "label 1", "label 2"]
    assert sorted(lines(notes, "label"))[:3] == ["label 0", "label 1", "label 2"]
    assert flaky.result(timeout=30) == 3
    assert inside.result(timeout=30) == [10, 20]
    assert lines(notes, "quote") == ["quote 1", "quote 2"]
    names = "select name from outlive.steps where job_id = %s order by name"
    assert queue.values(names, inside.id) == ["quote", "quote_first", "quote_first > quote"]
    assert repeated.result(timeout=30) == 10
    assert lines(again, "quote", "tried") == ["quote 1", "tried", "tried", "tried"]


def test_a_replay_that_may_take_another_way_is_warned_of(start, notes, queue):
    """Code or a type has changed, or the job goes on after a step has failed, of which no error is kept."""
    other, third = notes.with_name("other"), notes.with_name("third")
    job, refunded = changed.enqueue(str(notes)), reserves_or_refunds.enqueue(str(other))
    waits, retyped = waits_after_a_failure.enqueue(str(third)), crawl.enqueue()
    queue.run(store.supply(retyped.id, "parse:page-15", b'"fifteen"', "someone", replacing=False))
    worker = start(target=TARGET)
    assert job.result(timeout=30) == 9
    worker.says("the step pack was kept for {")
    assert lines(notes, "pack") == ["pack 3"]
    assert refunded.result(timeout=30) == "refunded"
    waits.result(timeout=30)
    for following in ("refund", "sleep"):
        worker.says(f"the step reserve raised LookupError, and the job went on to {following}: no error is kept")
    assert worker.log().count("the job went on") == 2
    worker.says("the step parse:page-15 has kept what does not fit its type, and gives it as plain JSON: the value")


def test_effects_waits_and_signals_count_among_the_steps_that_a_job_keeps(start, notes, database_url):
    counted, received = never_enough.enqueue(database_url), receives_for_ever.enqueue()
    for _ in range(17):
        received.send("pad", "x" * (2**20 - 2))
    start(target=TARGET)
    names = ("once:second", "sleep", "count#10000")
    assert counted.result(timeout=30) == [f"the step {name} can't be kept" for name in names]
    with pytest.raises(JobFailed, match=r"the step receive:pad#18 can't be kept"):
        received.result(timeout=30)


def test_a_step_that_kills_is_caught_after_three_kills_and_named_and_others_forgive_the_kills_before(
    start, notes, queue
):
    """The other job dies three times, each time after a new step, and may die twice without getting any further."""
    job, other = crawl.enqueue(), fulfil.enqueue(7, str(notes))
    start(target=TARGET)
    with pytest.raises(JobFailed, match="quarantined"):
        job.result(timeout=30)
    words = "the process was killed by SIGSEGV in the step parse:page-17"
    errors = queue.values("select error from outlive.attempts where job_id = %s order by attempt", job.id)
    assert [error[: len(words)] for error in errors] == [words] * 3
    other.result(timeout=30)
    crashes = queue.values("select crashes from outlive.attempts where job_id = %s order by attempt", other.id)
    assert crashes == [1, 1, 1, 1]


def test_an_effect_under_once_is_made_exactly_once_however_its_job_dies_and_needs_a_transaction(
    start, notes, queue, database_url
):
    queue.execute("create table ledger (n int)")
    dying = book.enqueue(database_url, str(notes))
    slowly, without = book_slowly.enqueue(database_url), book_without_transaction.enqueue(database_url)
    start(target=TARGET)
    assert dying.result(timeout=30) is False, "the third attempt finds what the second one has committed"
    assert lines(notes, "died") == ["died before commit", "died after commit"]
    assert queue.values("select n from ledger") == [1]
    assert slowly.result(timeout=30) == [True, True, False]
    with pytest.raises(JobFailed, match="this connection commits each statement by itself"):
        without.result(timeout=30)


def test_a_job_snoozes_or_restarts_with_new_arguments_and_without_its_steps_at_no_cost(start, notes, queue):
    snoozes, pages, wrong = poll.enqueue(str(notes)), page_by_page.enqueue(1, str(notes)), restart_wrongly.enqueue()
    ends = "select outcome, failures, error from outlive.attempts where job_id = %s order by attempt"
    start(target=TARGET)
    assert snoozes.result(timeout=30) == 3
    assert [failures for _, failures, _ in queue.execute(ends, [snoozes.id])] == [0, 0, 0]
    assert pages.result(timeout=30) == 3
    assert lines(notes, "pack", "caught") == ["pack 1", "pack 2", "pack 3"]
    assert queue.values("select name from outlive.steps") == ["pack"]
    begins = "the job begins again with new arguments; this attempt had "
    shown = [f'{begins}{{"file":"{notes}","page":{page}}}' for page in (1, 2)]
    assert queue.execute(ends, [pages.id]).fetchall()[:2] == [("released", 0, one) for one in shown]
    with pytest.raises(JobFailed, match="restart_wrongly can't be called with these arguments: too many positional"):
        wrong.result(timeout=30)


def test_forged_steps_and_calls_without_end_harm_only_their_jobs(start, notes, queue):
    forged, twins, other = forge.enqueue(), forge_twins.enqueue(), stubborn.enqueue(str(notes))
    floods = {
        flood.enqueue("step"): "sends more than a job can keep",
        flood.enqueue("checkpoint"): "sends a checkpoint under another name",
        flood.enqueue("run"): "makes a call without a number",
    }
    start(target=TARGET)
    refused = forged.result(timeout=30)
    assert len(refused) == 6, refused
    assert all(one.startswith("the step can't be kept: ") for one in refused)
    assert twins.result(timeout=30) == [[1001, "BadArguments"], [1002, None]], "another one of its name replaces it"
    assert other.result(timeout=30) == 3
    kept = "select name from outlive.steps where job_id = any(%s) order by name"
    assert queue.values(kept, [forged.id, other.id]) == ["flaky", "same"]
    for job, why in floods.items():
        assert finished(job, State.QUARANTINED) is State.QUARANTINED
        assert why in (attempts(queue, job)[-1].error or "")


def test_a_step_that_was_kept_is_not_taken_again_however_often_its_job_dies(start, notes):
    job = fulfil.enqueue(7, str(notes))
    start(target=TARGET)
    assert job.result(timeout=30) == [4200, [0, 1, 4], 4]
    assert lines(notes, "charge", "pack", "empty") == [
        *("charge 7", "pack 0", "pack 1", "pack 2", "empty", "empty"),
    ], "the second call of `empty` is a step of its own"


def test_a_step_that_a_job_has_left_to_a_thread_is_not_kept_by_the_next_job(start, notes, queue):
    first, second = (leaves_a_step.enqueue(str(notes), behind=behind) for behind in (True, False))
    start(target=TARGET, slots=1)
    assert [job.result(timeout=30) for job in (first, second)] == [None, None]
    assert queue.count("steps") == 0


def test_the_checkpoints_of_a_thread_that_a_job_has_left_are_no_progress_of_the_next_job(start, notes):
    _, stalled = (leaves_a_counter.enqueue(behind=behind) for behind in (True, False))
    start(target=TARGET, slots=1)
    with pytest.raises(JobFailed, match="Stalled: no progress for 1 s"):
        stalled.result(timeout=30)


def test_names_that_outlive_makes_itself_are_refused():
    for name in ("page#2", "charge > pack", "", " page", "7, 8", "page: 7"):
        with pytest.raises(outlive.ConfigError, match="name is"):
            charge.named(name)
    assert charge.named("issue #12a").label == "issue #12a"

    def once() -> None: ...

    with pytest.raises(outlive.ConfigError, match="a step can't be named once"):
        outlive.step(once)


def test_a_method_is_refused_as_a_step():
    with pytest.raises((outlive.ConfigError, RuntimeError)) as raised:  # Python before 3.12 wraps it.
        type("Shop", (), {"charge": charge})
    assert "Shop.charge can't be a step" in str(raised.value.__cause__ or raised.value)


@pytest.mark.long
def test_steps_that_are_too_large_to_come_with_their_job_are_fetched(start, notes):
    job = large.enqueue(str(notes))
    start(target=TARGET)
    assert job.result(timeout=30) == 2_400_000
    assert lines(notes, "total") == ["total 2400000"]


@pytest.mark.long
def test_a_job_that_keeps_too_much_fails_with_a_sentence(start, notes):
    job = greedy.enqueue()
    start(target=TARGET)
    with pytest.raises(JobFailed, match=r"a job keeps at most 10,000 steps and 16,777,216 bytes"):
        job.result(timeout=30)


def test_the_step_under_way_is_shown_to_those_who_follow_the_job(start, notes, queue):
    job = gated.enqueue(str(notes))
    start(target=TARGET)
    look = store.watch(job.id)
    eventually(lambda: (said := queue.run(look)) and said.steps == "wait_for_test", what="the step is named")
    go_on(notes)
    job.result(timeout=30)
    assert queue.run(look).steps == ""


def test_a_step_survives_its_worker(start, notes, queue):
    job = patient.enqueue(str(notes))
    worker = start(target=TARGET)
    eventually(lambda: queue.count("steps") == 1, what="the step is kept")
    worker.kill()
    start(target=TARGET)
    go_on(notes)
    assert job.result(timeout=30) == 4204
    assert lines(notes, "charge") == ["charge 1"]


def test_a_job_keeps_any_number_of_checkpoints_and_the_last_one_survives_its_process(start, notes, tmp_path):
    job = counts_on.enqueue(str(tmp_path / "count"))
    start(target=TARGET)
    last, found = job.result(timeout=30)
    assert last == found == 11_000


@pytest.mark.long
def test_steps_wait_for_a_database_that_is_away(start, notes, queue, admin):
    job = patient.enqueue(str(notes))
    start(target=TARGET)
    eventually(lambda: queue.count("steps") == 1, what="the first step is kept")
    with admin.transaction():
        admin.execute("lock table outlive.steps in share mode")
        go_on(notes)
        session = eventually(lambda: queue.values(WRITING), what="the second step waits")[0]
        queue.execute("select pg_terminate_backend(%s)", [session])
        eventually(lambda: set(queue.values(WRITING)) - {session}, what="another session tries to keep it")
    assert job.result(timeout=30) == 4204
    assert lines(notes, "pack") == ["pack 2"]


def test_a_step_that_a_lock_holds_up_delays_no_step_of_another_job(start, notes, queue, connect):
    job, stranger = gated.enqueue(str(notes)), connect()
    worker = start(target=TARGET, slots=2)
    eventually(lambda: job.status() is State.RUNNING)
    stranger.execute("begin")
    stranger.run(store.supply(job.id, "wait_for_test", b"7", "a stranger", replacing=False))
    go_on(notes)
    eventually(lambda: queue.values(WRITING))
    assert fulfil.enqueue(1, str(notes)).result(timeout=30)
    assert job.status() is State.RUNNING
    stranger.execute("commit")
    job.result(timeout=30)
    assert queue.value("select supplied_by from outlive.steps where job_id = %s", job.id) == "a stranger"
    assert worker.log().count("another transaction holds a lock that the step wait_for_test of job") == 1


def test_the_other_tasks_of_an_async_job_go_on_while_a_lock_holds_up_its_steps(start, notes, queue, connect):
    job, stranger = counts_beside.enqueue(str(notes)), connect()
    stranger.execute("begin")
    stranger.run(store.supply(job.id, "print_label", b'"theirs"', "a stranger", replacing=False))
    start(target=TARGET)
    eventually(lambda: queue.values(WRITING))
    go_on(notes)
    eventually(lambda: lines(notes, "counts", "on")[-3:] == ["on"] * 3 and lines(notes, "counts"), within_s=10)
    assert job.status() is State.RUNNING
    stranger.execute("commit")
    assert job.result(timeout=30) == ("theirs", 2)


def test_a_step_whose_time_is_over_while_it_is_kept_is_not_taken_again(start, notes, connect):
    job, stranger = prints_in_time.enqueue(str(notes)), connect()
    stranger.execute("begin")
    stranger.run(store.supply(job.id, "print_in_time > print_label", b"7", "a stranger", replacing=False))
    worker = start(target=TARGET)
    worker.says("print_in_time raised TimeoutError", within_s=30)
    stranger.execute("rollback")
    assert job.result(timeout=30) == "label 1"
    assert lines(notes, "label") == ["label 1"]


@pytest.mark.parametrize("then", ["ends", "waits"])
def test_a_job_neither_ends_nor_waits_before_a_relaxed_step_that_a_lock_holds_up_is_kept(
    start, notes, queue, connect, then
):
    job, other = counts_and.enqueue(then, str(notes)), fulfil.enqueue(1, str(notes))
    stranger = connect()
    stranger.execute("begin")
    stranger.run(store.supply(job.id, "count", b"7", "a stranger", replacing=False))
    start(target=TARGET, slots=2)
    eventually(lambda: lines(notes, "counted"))
    assert other.result(timeout=30)
    assert job.status() is State.RUNNING
    stranger.execute("commit")
    assert job.result(timeout=30) == 1
    assert queue.values("select name from outlive.steps where job_id = %s order by at", job.id)[0] == "count"


@pytest.mark.long
def test_a_worker_reads_no_more_steps_than_it_may_have_in_memory(start, notes, queue, connect):
    """Its jobs send 120 MB, in frames that are not large. They go on when steps can be written again."""
    jobs, stranger = [hurries.enqueue() for _ in range(8)], connect()
    worker = start(target=TARGET, slots=8)
    worker.started()
    before_bytes = worker.peak_bytes()
    stranger.execute("begin")
    stranger.execute("lock table outlive.steps in exclusive mode")
    worker.says("another transaction holds a lock that the step", within_s=30)
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 5)
    stranger.execute("commit")
    assert [job.result(timeout=60) for job in jobs] == [75] * 8
    assert worker.peak_bytes() - before_bytes < 110_000_000


def test_large_steps_that_locks_hold_up_delay_no_large_result_of_another_job(start, notes, connect):
    jobs, stranger = [bulky.enqueue() for _ in range(2)], connect()
    stranger.execute("begin")
    for job in jobs:
        stranger.run(store.supply(job.id, "bulk", b'"7"', "a stranger", replacing=False))
    worker = start(target=TARGET, slots=3)
    worker.says("another transaction holds a lock that the step bulk", within_s=30)
    assert len(bulk_result.enqueue().result(timeout=10)) == 600_000
    assert [job.status() for job in jobs] == [State.RUNNING] * 2
    stranger.execute("commit")
    assert [job.result(timeout=30) for job in jobs] == [14_000_000] * 2


@pytest.mark.parametrize("free", ["before it stops", "while it stops"])
def test_a_worker_that_stops_loses_no_end_that_a_lock_has_held_up(start, notes, queue, connect, free):
    job, stranger = counts_and.enqueue("ends", str(notes)), connect()
    stranger.execute("begin")
    stranger.run(store.supply(job.id, "count", b"7", "a stranger", replacing=False))
    worker = start(target=TARGET)
    worker.says("another transaction holds a lock that the step count of job", within_s=30)
    all_gone([int(line.split()[1]) for line in lines(notes, "counted")], what="the job has ended")
    if free == "before it stops":
        stranger.execute("rollback")
    worker.send(signal.SIGTERM)
    if free == "while it stops":
        worker.says(" stops: ")
        stranger.execute("rollback")
    assert worker.process.wait(30) == 0
    assert job.status() is State.SUCCEEDED
    assert queue.values("select name from outlive.steps") == ["count"]


def test_a_checkpoint_that_comes_while_a_lock_holds_up_the_one_before_is_the_last_one(start, notes, queue, connect):
    job, stranger = moves_on.enqueue(str(notes)), connect()
    stranger.execute("begin")
    stranger.run(store.supply(job.id, "count", b"7", "a stranger", replacing=False))
    worker = start(target=TARGET)
    eventually(lambda: queue.values(WRITING), within_s=30)
    go_on(notes)
    worker.says("another transaction holds a lock that the step count of job")
    stranger.execute("commit")
    go_on(notes)
    assert job.result(timeout=30) == 2


@pytest.mark.parametrize("then", ["step", "relaxed step", "wait", "call"])
def test_the_code_of_an_attempt_that_others_have_ended_does_not_go_on(start, notes, queue, then):
    """An error would let it refund a payment with which the next attempt goes on."""
    job = refunds.enqueue(then, str(notes))
    worker = start(target=TARGET, slots=2)
    eventually(lambda: queue.count("steps") == 1, within_s=30)
    with queue.transaction():  # Or the worker itself may end it first.
        queue.execute("update outlive.running set lease_until = '2000-01-01Z'")
        assert len(queue.run(store.expire())) == 1
    assert job.result(timeout=30)
    go_on(notes)
    all_gone([int(line.split()[1]) for line in lines(notes, "begun")[:1]], within_s=5)
    assert lines(notes, "charge", "refunded") == ["charge 1"]
    worker.says("which asks for something: its process is killed")


def test_outside_of_a_job_a_step_is_its_function(notes):
    assert charge(1, str(notes)) == Payment(1, 4200)
    assert charge(1, str(notes)) == Payment(1, 4200)
    assert lines(notes, "charge") == ["charge 1", "charge 1"]


@pytest.mark.long
def test_the_steps_of_a_job_go_with_it(start, notes, queue):
    job = fulfil.enqueue(7, str(notes))
    start(target=TARGET)
    job.result(timeout=30)
    assert queue.count("steps") == 6
    assert job.status() is State.SUCCEEDED
    queue.value("select outlive.prune(array[%s]::uuid[])", job.id)
    assert queue.count("steps") == 0
