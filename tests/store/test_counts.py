"""Counts: exact while they are small, estimated from a sample when they are not; and by minute, for the charts."""

from datetime import timedelta

import pytest

from outlive import store
from outlive.cli.stats import Pulse
from outlive.states import Outcome
from tests.driving.commands import Cli
from tests.driving.making import NOON, Queue

JOBS = """
insert into outlive.jobs (id, task, queue, args, priority, ready_at, created_at)
select (lpad(to_hex(i), 16, '0') || md5(i::text)::char(16))::uuid, case when i % 4 = 0 then 'parse' else 'fetch' end,
  'default', '{}', 5, outlive.now(), outlive.now()
from generate_series(1, 60000) i
"""
ENDED = """
insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses,
  queue, source, task)
select id, 1, -row_number() over (), 'succeeded', 'succeeded', outlive.now() - interval '1 day', 0, 0, 0,
  queue, source, task
from outlive.jobs
"""
WAITING = """
insert into outlive.waiting (queue, source, task, priority, ready_at, id)
select queue, source, task, priority, ready_at, id from outlive.jobs
"""


def found(queue: Queue) -> dict[tuple[str, str], tuple[int, bool]]:
    return {(row["state"], row["task"]): (row["jobs"], row["estimated"]) for row in queue.run(store.count_jobs())}


def test_a_few_jobs_are_counted_in_every_place(queue):
    queue.make_quarantined()
    queue.make_finished()
    queue.make_finished(Outcome.CANCELLED)
    retried = queue.make()
    queue.run_job(retried, Outcome.FAILED, final=True)
    assert found(queue)["failed", "work"] == (1, False)
    queue.run(store.retry([retried]))
    queue.make_many(3)
    queue.claim(limit=1)
    states = ("quarantined", "succeeded", "cancelled", "running", "pending")
    assert found(queue) == {(state, "work"): (3 if state == "pending" else 1, False) for state in states}


@pytest.mark.parametrize("analysed", [False, True])
def test_many_finished_jobs_are_estimated_and_rare_states_are_counted(queue, analysed):
    queue.execute("alter table outlive.jobs set (autovacuum_enabled = off)")
    queue.execute(JOBS)
    queue.execute(ENDED)
    queue.execute("update outlive.attempts set state = 'failed', outcome = 'failed' where token > -8")
    queue.make_many(3)
    if analysed:
        queue.execute("analyze outlive.jobs")
    counts = found(queue)
    assert counts["pending", "work"] == (3, False)
    assert sum(jobs for (state, _), (jobs, _) in counts.items() if state == "failed") == 7
    error = 0.05 if analysed else 0.5
    for task, jobs in (("fetch", 45_000), ("parse", 15_000)):
        estimate, estimated = counts["succeeded", task]
        assert estimated
        assert estimate == pytest.approx(jobs, rel=error + 0.05)


def test_many_waiting_jobs_are_estimated_and_no_queue_and_no_lane_is_missed(queue):
    queue.execute(JOBS)
    queue.execute(WAITING)
    queue.make("rare", queue="rare", delay_s=60, priority=1)
    queues = {row["name"]: row for row in queue.run(store.list_queues())}
    assert queues["default"]["estimated"]
    assert queues["default"]["waiting"] == pytest.approx(60_000, rel=0.4)
    assert queues["default"]["ready"] == queues["default"]["waiting"]
    assert 1 <= queues["rare"]["waiting"] < 10_000
    oldest = "select min(ready_at) from outlive.waiting where queue = 'default'"
    assert queues["default"]["oldest_ready_at"] == queue.value(oldest)
    full, other, rare = queue.run(store.list_lanes(limit=10))
    assert [lane["task"] for lane in (full, other, rare)] == ["fetch", "parse", "rare"]
    assert full["estimated"]
    assert full["waiting"] == full["ready"] == pytest.approx(45_000, rel=0.4)
    assert rare["priority"] == 1
    assert 1 <= rare["waiting"] < 10_000


@pytest.mark.parametrize(("ready", "shown"), [(0, "no w"), (8, "8 jobs"), (10_000, "10,000 jobs"), (30_000, "≈")])
def test_ready_jobs_are_counted_however_many_are_scheduled_behind_them(queue, database_url, ready, shown):
    queue.execute(JOBS)
    queue.execute(WAITING)
    queue.execute("update outlive.waiting set ready_at = ready_at + interval '6 hours'")
    queue.execute(
        "update outlive.waiting set ready_at = ready_at - interval '6 hours 2 minutes' where id in"
        " (select id from outlive.waiting where task = 'fetch' order by id limit %s)",
        [ready],
    )
    many = ready > 10_000
    [row] = queue.run(store.list_queues())
    [lane] = [one for one in queue.run(store.list_lanes(limit=10)) if one["task"] == "fetch"]
    metrics = {name: value for name, label, value in queue.run(store.metrics()) if label == "default"}
    for found in (row["ready"], lane["ready"], metrics["queue_ready_jobs"]):
        assert found == (pytest.approx(ready, rel=0.4) if many else ready)
    assert row["ready_estimated"] is lane["ready_estimated"] is many
    assert row["estimated"]
    assert lane["estimated"]
    oldest = queue.value("select min(ready_at) from outlive.waiting where ready_at <= outlive.now()")
    assert row["oldest_ready_at"] == lane["oldest_ready_at"] == oldest
    assert (metrics["queue_oldest_ready_seconds"] > 100) is bool(ready)
    assert queue.values("select ready from outlive.scaling") == [min(ready, 2500)][: bool(ready)]
    [said] = [line for line in Cli(database_url)("doctor").out.splitlines() if "worker is active" in line]
    assert said[2:].startswith(shown)


def test_counts_read_a_part_of_history_and_are_marked_as_estimates(queue, database_url):
    queue.execute(JOBS)
    queue.execute(ENDED)
    queue.execute("vacuum analyze outlive.jobs, outlive.attempts")
    read = "select sum(seq_tup_read + idx_tup_fetch)::int from pg_stat_xact_user_tables"
    with queue.transaction():
        before = queue.value(read)  # Also of earlier transactions that the server did not add up yet.
        queue.run(store.count_jobs())
        queue.run(store.rates())
        assert queue.value(read) - before < 35_000
    cli = Cli(database_url)
    assert "≈60,000 jobs" in (out := cli("stats").out)
    assert "estimated from a sample" in out
    found = cli("stats", "--json").json
    tasks = ["fetch", "parse"]
    marked = {"jobs": True, "by_state": ["succeeded"], "by_queue": ["default"], "by_task": tasks}
    assert found["estimated"] == marked
    assert sorted(one["task"] for one in found["counts"] if one["estimated"]) == tasks
    pulse = Pulse(queue.run)
    assert " succeeded≈" in pulse.line(pulse.look())


def test_rates_are_those_of_the_last_minute(queue):
    assert queue.run(store.rates()) == {}
    queue.execute(JOBS)
    queue.execute(ENDED)
    assert queue.run(store.rates()) == {}
    for _ in range(6):
        queue.make_finished()
    assert queue.run(store.rates()) == {"succeeded": pytest.approx(0.1)}


def test_a_queue_has_the_rate_of_its_last_five_minutes_and_how_long_its_jobs_waited(queue):
    queue.set_now()
    for waited_s in (2, 4):
        job = queue.make(queue="mail")
        queue.set_now(later_s=waited_s)
        queue.run_job(job)
        queue.set_now()
    queue.run_job(queue.make(queue="mail", task="other"), Outcome.FAILED, final=True)
    queue.make_finished(queue="calm")
    queue.execute("update outlive.attempts set ended_at = ended_at - interval '6 minutes' where queue = 'calm'")
    queue.register_worker()
    queue.make_suspended(queue="calm")
    queue.set_now(later_s=60)
    found = {row["name"]: row for row in queue.run(store.queues_with_rates())}
    assert [(name, row["per_minute"], row["rate_estimated"]) for name, row in found.items()] == [
        ("calm", 0, False),
        ("mail", 0.6, False),
    ]
    assert found["mail"]["waited_s"] == [2, pytest.approx(3.8)]
    assert found["calm"]["waited_s"] is None
    assert [row["suspended"] for row in found.values()] == [1, 0]


def test_the_rate_of_a_busy_queue_is_that_of_its_newest_ends(queue):
    queue.execute(ENDS_OF_A_MINUTE, {"minute": MINUTE, "ends": 20_000, "within_s": 60, "apart": 1})
    queue.set_now()
    [found] = queue.run(store.queues_with_rates())
    assert (found["per_minute"], found["rate_estimated"]) == (pytest.approx(20_000, rel=0.01), True)


MINUTE = NOON - timedelta(minutes=1)
ENDS_OF_A_MINUTE = b"""
insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses,
  queue, source, task)
select gen_random_uuid(), 1, n * %(apart)s, 'succeeded', 'succeeded',
  %(minute)s::timestamptz + %(within_s)s * interval '1 second' * n / %(ends)s, 0, 0, 0, 'default', '', 'work'
from generate_series(1, %(ends)s) n
"""


@pytest.mark.parametrize("apart", [1, 2])
@pytest.mark.parametrize("within_s", [0, 18, 59])
@pytest.mark.parametrize("ends", [1, 499, 533, 20_000])
def test_the_ends_of_a_minute_are_counted_or_estimated_however_they_are_spread(queue, ends, within_s, apart):
    """Every token is that of such an end, or every second one: the attempts between them end otherwise."""
    queue.execute(ENDS_OF_A_MINUTE, {"minute": MINUTE, "ends": ends, "within_s": within_s, "apart": apart})
    queue.set_now()
    found = queue.run(store.ends_by_step(steps=2, step_s=60))
    assert found[MINUTE]["succeeded"] == (ends if ends < 500 else pytest.approx(ends, rel=0.01))
    assert [counts for minute, counts in found.items() if minute != MINUTE] == [{}, {}]


def test_finished_jobs_are_counted_in_an_index_and_not_read(queue):
    """A lane's jobs are spread over the table: to read 200,000 of ten million took seconds, unless all were cached."""
    queue.execute(ENDS_OF_A_MINUTE, {"minute": MINUTE, "ends": 9000, "within_s": 60, "apart": 1})
    queue.execute("vacuum outlive.attempts")
    with queue.transaction():
        assert found(queue) == {("succeeded", "work"): (9000, False)}
        fetched = queue.value(
            "select idx_tup_fetch from pg_stat_xact_user_tables where relid = 'outlive.attempts'::regclass"
        )
    assert fetched < 10
