"""Jobs by a filter: every part of it, page by page, and at a bounded cost; and what operators do to them."""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive import db, migrate, operations, store
from outlive.errors import BadArguments
from outlive.model import Ended, new_job_id
from outlive.operations import selection
from outlive.operations.selection import Count
from outlive.states import Outcome, State
from outlive.store import JobFilter
from tests.driving.databases import new_database
from tests.driving.making import NOON, WORKER, Queue, make, make_finished, make_quarantined, make_suspended
from tests.store.noon import database_url, fresh_at_noon  # noqa: F401

ALL = [*range(len(State))]
"""The jobs of the fixture, in the order in which they were made."""


def find(connection: Queue, wanted: JobFilter, *, limit: int = 100, **more: Any) -> list[Any]:
    """All jobs that match, page by page."""
    ids, past = [], None
    while True:
        found = connection.run(store.find_jobs(wanted, past=past, limit=limit, **more))
        assert found.count == len(found.ids) <= limit
        ids += found.ids
        if (past := found.next) is None:
            return ids


@pytest.fixture
def jobs(queue: Queue) -> list[Any]:
    """One job in each state, each created a minute after the one before."""
    queue.register_worker()
    made: list[Any] = []

    def after_a_minute(maker: Callable[..., Any], *more: Any, **wanted: Any) -> Any:
        queue.set_now(later_s=60.0 * len(made))
        made.append(maker(queue, *more, **wanted))
        return made[-1]

    after_a_minute(make, "shop.parse", args='{"url": "https://example.org/Überblick"}'.encode())
    retried = after_a_minute(make, queue="slow")
    queue.run_job(retried, Outcome.FAILED, error="ValueError: no", after_s=3600.0)
    queue.claim_job(after_a_minute(make, source="shop"))
    queue.run(store.block([after_a_minute(make)], "why"))
    after_a_minute(make_quarantined)
    after_a_minute(make_finished)
    after_a_minute(make_finished, Outcome.FAILED)
    queue.run(store.cancel([after_a_minute(make)]))
    after_a_minute(make_suspended)
    assert sorted(str(queue.state_of(job)) for job in made) == sorted(State)
    queue.set_now(later_s=600.0)
    return made


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ALL[::-1]),
        ({"states": tuple(State)}, [1, 8, 7, 6, 5, 4, 3, 2, 0]),
        ({"since_s": 4000.0}, [8, 7, 6, 5, 4, 3, 2, 0]),
        ({"states": (State.PENDING,)}, [0]),
        ({"states": (State.RETRYABLE,)}, [1]),
        ({"states": (State.RUNNING,)}, [2]),
        ({"states": (State.BLOCKED, State.QUARANTINED)}, [4, 3]),
        ({"states": (State.SUSPENDED,)}, [8]),
        ({"states": (State.SUCCEEDED, State.FAILED)}, [6, 5]),
        ({"states": (State.CANCELLED, State.PENDING)}, [7, 0]),
        ({"task": "shop.parse"}, [0]),
        ({"task": "shop"}, []),
        ({"queue": "slow"}, [1]),
        ({"source": "shop"}, [2]),
        ({"source": "shop", "states": (State.FAILED,)}, []),
        ({"worker": "crawler-1"}, [6, 5, 4, 2, 1]),
        ({"worker": str(WORKER), "states": (State.RUNNING,)}, [2]),
        ({"worker": "crawler-1", "since_s": 270.0}, [6]),
        ({"worker": "crawler-1", "since_s": 500.0, "older_s": 270.0}, [5, 4, 2]),
        (
            {"worker": "crawler-1", "since": NOON + timedelta(seconds=100), "before": NOON + timedelta(seconds=330)},
            [5, 4, 2],
        ),
        ({"since_s": 270.0}, [8, 7, 6]),
        ({"since_s": 270.0, "states": (State.FAILED,)}, [6]),
        ({"since_s": 430.0, "states": (State.BLOCKED, State.CANCELLED)}, [7, 3]),
        ({"older_s": 270.0, "states": (State.SUCCEEDED, State.FAILED, State.QUARANTINED)}, [5, 4]),
        ({"task": "work", "queue": "default", "source": ""}, [8, 7, 6, 5, 4, 3]),
        ({"worker": "crawler-1", "states": (State.SUCCEEDED,), "task": "work", "older_s": 60.0}, [5]),
        ({"worker": "crawler-2"}, []),
        ({"text": "überBLICK"}, [0]),
        ({"text": "valueerror"}, [6, 1]),
        ({"text": "SHOP.P"}, [0]),
        ({"text": "%"}, []),
        ({"text": "valueerror", "states": (State.FAILED,)}, [6]),
    ],
    ids=str,
)
def test_a_filter_finds_the_jobs_that_match_the_newest_or_the_oldest_first(queue, jobs, wanted, expected):
    for limit, look in ((100, None), (1, 1), (2, 3), (1, None)):
        for oldest in (False, True):
            found = find(queue, JobFilter(**wanted), limit=limit, look=look, oldest=oldest)
            assert [jobs.index(one) for one in found] == expected[:: -1 if oldest else 1]


def test_a_job_that_a_worker_ran_twice_is_found_once(queue):
    queue.register_worker()
    jobs = [queue.make(), queue.make()]
    for job in jobs:
        queue.run_job(job, Outcome.FAILED, after_s=60.0)
    queue.set_now(later_s=60)
    queue.run_job(jobs[0], Outcome.FAILED, final=True)
    queue.claim_job(jobs[1])
    for limit in (1, 10):
        assert sorted(find(queue, JobFilter(worker="crawler-1"), limit=limit)) == sorted(jobs)


MANY = """
with fresh as materialized (
  select outlive.now() - i * interval '1 second' as at, gen_random_uuid() as id, i from generate_series(1, 12000) i),
made as (
  insert into outlive.jobs (id, task, queue, args, priority, ready_at, created_at)
  select id, 'flood', 'default', '{}', 5, at, at from fresh),
ended as (
  insert into outlive.attempts (job_id, attempt, token, outcome, state, started_at, ended_at, failures, crashes, losses,
    worker_name, queue, source, task)
  select id, 1, -i, 'succeeded', 'succeeded', at, at, 0, 0, 0, 'other', 'default', '', 'flood' from fresh
  where i % 3 = 0),
held as (
  insert into outlive.held (id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes, losses)
  select id, 'key', at, 'default', '', 'flood', 5, at, 0, 0, 0, 0 from fresh where i % 3 = 1)
insert into outlive.waiting (queue, source, task, priority, ready_at, id)
select 'default', '', 'flood', 5, at, id from fresh where i % 3 = 2
"""
"""Jobs that are newer than all others: 4,000 that wait, 4,000 that are held, and 4,000 that have succeeded."""


FEW: list[tuple[dict[str, Any], list[int]]] = [
    ({"states": (State.RETRYABLE,)}, [1]),
    ({"task": "shop.parse"}, [0]),
    ({"task": "shop.parse", "states": (State.SUCCEEDED,)}, []),
    ({"queue": "slow"}, [1]),
    ({"source": "shop", "states": (State.RUNNING,)}, [2]),
    ({"states": (State.FAILED,), "task": "work"}, [6]),
    ({"worker": "crawler-1"}, [6, 5, 4, 2, 1]),
    ({"worker": "other", "states": (State.FAILED,)}, []),
    ({"states": (State.PENDING,), "older_s": 7200.0, "task": "shop.parse"}, []),
    ({"states": (State.PENDING,), "since_s": 90_000.0, "older_s": 80_000.0}, []),
    ({"states": (State.QUARANTINED, State.BLOCKED)}, [4, 3]),
    ({"text": "nothing", "states": (State.CANCELLED,)}, []),
]


def test_a_few_jobs_among_many_are_found_at_once_and_no_others_are_read(queue, jobs):
    queue.execute(MANY)
    queue.execute("analyze outlive.jobs, outlive.waiting, outlive.held, outlive.attempts")
    read = "select sum(seq_tup_read + idx_tup_fetch)::int from pg_stat_xact_user_tables"
    for wanted, expected in FEW:
        with queue.transaction():
            before = queue.value(read)
            found = queue.run(store.find_jobs(JobFilter(**wanted), limit=50))
            assert queue.value(read) - before < 1500, wanted
        assert ([jobs.index(one) for one in found.ids], found.next) == (expected, None), wanted


def test_the_failed_jobs_of_a_busy_worker_are_found_beside_many_of_others(queue):
    queue.register_worker()
    queue.execute(MANY)
    queue.execute("update outlive.attempts set worker_name = 'busy' where token % 2 = 0")
    queue.execute("update outlive.attempts set outcome = 'failed', state = 'failed' where worker_name = 'other'")
    failed, retried = queue.make_finished(Outcome.FAILED), queue.make()
    queue.run_job(retried, Outcome.FAILED, after_s=0.0)
    queue.run_job(retried, Outcome.FAILED, final=True)  # On another worker, but the busy one has run it, too.
    ran = "update outlive.attempts set worker_name = 'busy' where job_id = any(%s) and attempt = 1"
    queue.execute(ran, [[failed, retried]])
    queue.execute("analyze outlive.jobs, outlive.attempts")
    read = "select relname, seq_tup_read, coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables"
    for wanted, expected in (((State.FAILED,), {failed, retried}), ((State.CANCELLED,), set())):
        with queue.transaction():
            before = queue.execute(read).fetchall()
            found = queue.run(store.find_jobs(JobFilter(worker="busy", states=wanted), limit=50))
            after = queue.execute(read).fetchall()
            rows = sum(sum(row[1:]) for row in after) - sum(sum(row[1:]) for row in before)
            assert rows < 200, f"{sorted(set(before) ^ set(after))}"
        assert (set(found.ids), found.next) == (expected, None)


def test_the_jobs_of_a_worker_and_a_time_are_found_beside_many_of_others(queue):
    queue.set_now()
    queue.register_worker()
    job = queue.make()
    queue.run_job(job, Outcome.FAILED, after_s=0.0)
    queue.run_job(job)  # On another worker, but the busy one has run it, too.
    queue.execute(MANY)
    ran = "update outlive.attempts set worker_name = 'busy' where token < -6000 or job_id = %s and attempt = 1"
    queue.execute(ran, [job])
    queue.execute("analyze outlive.jobs, outlive.attempts")
    read = "select sum(seq_tup_read + idx_tup_fetch)::int from pg_stat_xact_user_tables"
    for since_s, older_s, expected in ((5000.0, None, 1), (6030.0, 6000.0, 10), (None, 12_001.0, 0)):
        with queue.transaction():
            before = queue.value(read)
            found = queue.run(store.find_jobs(JobFilter(worker="busy", since_s=since_s, older_s=older_s), limit=50))
            assert queue.value(read) - before < 200
        assert (len(found.ids), found.next) == (expected, None)


def test_a_count_without_patience_looks_at_few_of_the_jobs_that_it_has_to_check_one_by_one(queue):
    queue.execute(MANY)
    looked = []

    def ask(statement: Any) -> Any:
        found = queue.run(statement)
        looked.append(found.looked)
        return found

    wanted = JobFilter(worker="other", states=(State.SUCCEEDED,))
    assert operations.run(selection.count(wanted, patience_s=0.0), ask) == Count(100, more=True)
    assert operations.run(selection.count(wanted, patience_s=60.0), ask) == Count(4000)
    assert looked == [100, 100, 200, 400, 800, 1600, 900]


def test_text_is_found_as_it_is_written_where_the_locale_knows_only_the_letters_of_ascii(server_url):
    with (
        new_database(server_url, template="template0", options="locale 'C'") as url,
        Queue.at(url, db.PINNED) as connection,
    ):
        migrate.migrate(connection)
        job = connection.make(args='{"url": "https://example.org/Überblick"}'.encode())
        assert find(connection, JobFilter(text="ORG/Überblick")) == [job]


def test_the_jobs_of_a_batch_are_found_by_state_and_time(queue):
    batch = queue.run(store.open_batch(new_job_id(), "import"))
    links = msgspec.json.encode({"batch": batch})
    first, second = (queue.make(links=links) for _ in range(2))
    queue.make()
    queue.run_job(first)
    queue.set_now(later_s=60)
    assert find(queue, JobFilter(batch=batch)) == [second, first]
    assert find(queue, JobFilter(batch=batch, states=(State.SUCCEEDED,)), limit=1, look=1) == [first]
    assert find(queue, JobFilter(batch=batch, older_s=30.0)) == [second, first]
    assert find(queue, JobFilter(batch=batch, since_s=30.0)) == []


def test_a_job_whose_time_is_yet_to_come_did_not_become_ready_lately(queue):
    queue.set_now()
    links = msgspec.json.encode({"batch": (batch := queue.run(store.open_batch(new_job_id(), "import")))})
    due, later = queue.make(links=links), queue.make(delay_s=60, links=links)
    for place in ({}, {"batch": batch}, {"task": "work", "queue": "default"}, {"states": (State.PENDING,)}):
        assert find(queue, JobFilter(since_s=3600.0, **place)) == [due]
        queue.set_now(later_s=60)
        assert find(queue, JobFilter(since_s=3600.0, **place)) == [later, due]
        queue.set_now()


def test_a_job_that_failed_twice_is_found_once_and_not_while_it_waits_again(queue):
    failed = JobFilter(states=(State.FAILED,))
    job = queue.make_finished(Outcome.FAILED)
    queue.run(store.retry([job]))
    assert find(queue, failed) == []
    queue.run_job(job, Outcome.FAILED, final=True)
    assert find(queue, failed) == [job]


def test_jobs_that_ended_at_the_same_moment_are_each_on_one_page(queue):
    jobs = queue.make_many(25)
    queue.run(store.cancel(jobs))
    assert find(queue, JobFilter(states=(State.CANCELLED,)), limit=4, look=7) == sorted(jobs, reverse=True)


def test_jobs_are_counted_without_their_ids(queue):
    queue.make_many(30)
    found = queue.run(store.find_jobs(JobFilter(), limit=20, counting=True))
    assert (found.ids, found.count, found.next is None) == ([], 20, False)
    found = queue.run(store.find_jobs(JobFilter(states=(State.PENDING,)), limit=50, counting=True))
    assert (found.count, found.seen, found.next) == (30, 30, None)


def test_a_search_by_text_reaches_every_job_and_says_how_many_it_has_looked_at(queue):
    old = queue.make(args=b'["needle"]')
    queue.make_many(20)
    pages = [queue.run(store.find_jobs(JobFilter(text="Needle"), limit=10, look=5))]
    while past := pages[-1].next:
        pages.append(queue.run(store.find_jobs(JobFilter(text="Needle"), past=past, limit=10, look=5)))
    assert [page.seen for page in pages] == [5, 10, 15, 20, 21]
    assert [page.looked for page in pages] == [5, 5, 5, 5, 1]
    assert [page.ids for page in pages] == [[], [], [], [], [old]]


@given(st.text(max_size=60) | st.from_regex(r"(ids|batch|worker|lanes)\.-?\d{1,30}\.[0-9a-f]{30,33}\.\d{1,9}"))
def test_a_malformed_position_is_no_error_of_outlive(past):
    with contextlib.suppress(BadArguments):  # No other error.
        store.find_jobs(JobFilter(), past=past or "x", limit=10)


def test_a_page_of_the_newest_jobs_reads_no_more_than_it_shows(queue):
    done = queue.make_many(3000)
    queue.execute(
        "with gone as (delete from outlive.waiting where id = any(%s) returning id)"
        " insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses,"
        " queue, source, task)"
        " select id, 1, row_number() over (), 'succeeded', 'succeeded', outlive.now(), 0, 0, 0, 'default', '', 'work'"
        " from gone",
        [done[:2000]],
    )
    for wanted in (JobFilter(), JobFilter(states=(State.SUCCEEDED,))):
        found = queue.run(store.find_jobs(wanted, limit=10))
        assert len(found.ids) == 10
        assert found.seen <= 120


def test_of_some_jobs_those_that_have_run_the_longest_come_first(queue):
    queue.set_now()
    queue.register_worker()
    running, short, long, retried, never = (queue.make() for _ in range(5))
    queue.run(store.cancel([never]))
    queue.claim_job(running)
    for job, ran_s in ((short, 1.0), (long, 60.0), (retried, 90.0)):
        claimed = queue.claim_job(job)
        queue.set_now(later_s=ran_s)
        queue.end(Ended(claimed.token, Outcome.FAILED, after_s=60.0, final=job != retried))
        queue.set_now()
    queue.set_now(later_s=30.0)
    jobs = [never, retried, running, short, long]
    assert queue.run(store.longest_jobs(jobs, limit=10)) == [long, running, short]
    assert queue.run(store.longest_jobs(jobs, limit=1)) == [long]


def test_failed_jobs_are_grouped_by_the_first_line_of_their_error_without_its_numbers_and_ids(queue):
    queue.set_now()
    queue.register_worker()
    errors = (
        "S3Error: no page 17 of 01a1ea35-abcd-78c4-8c0a-f68f89e50e76\nin line 3",
        "S3Error: no page 1,204 of deadbeef-aaaa-bbbb-cccc-ddddddddddd7\nin line 4",
        "S3Error: no page p12.5a of 01a1ea35-e64f-78c4-8c0a-f68f89e50e76",
        "S4Error: no page",
        "S4Error: no page",
        None,
    )
    jobs = [queue.make() for _ in errors]
    for n, (job, error) in enumerate(zip(jobs, errors, strict=True)):
        queue.set_now(later_s=60.0 * n)
        queue.run_job(job, Outcome.FAILED, error=error, final=True)
    other = queue.make(task="other")
    queue.run_job(other, Outcome.FAILED, error="S4Error: no page", final=True)
    found = queue.run(store.group_errors([*jobs, other, queue.make()], limit=10))
    assert [(row["task"], row["error"], row["jobs"]) for row in found] == [
        ("work", "S3Error: no page … of …", 3),
        ("work", "S4Error: no page", 2),
        ("other", "S4Error: no page", 1),
        ("work", "", 1),
    ]
    assert found[0]["last_at"] - found[0]["first_at"] == timedelta(seconds=120)
    assert len(queue.run(store.group_errors(jobs, limit=2))) == 2


def test_a_listed_job_says_whether_an_active_worker_has_its_task(queue):
    job = queue.make(queue="slow")

    def served() -> bool:
        [row] = queue.run(store.list_jobs([job]))
        return bool(row["served"])

    assert not served()
    queue.register_worker()
    assert served()
    for tasks, queues, expected in (
        (["other"], None, False),
        (["work"], ["default"], False),
        (["work"], ["slow"], True),
    ):
        queue.execute("update outlive.workers set tasks = %s, queues = %s", [tasks, queues])
        assert served() is expected
    queue.execute("update outlive.workers set state = 'draining'")
    assert not served()
    queue.run(store.cancel([job]))
    assert served()


def test_a_verb_and_its_entry_in_the_audit_are_written_together(queue):
    jobs = [queue.make_finished(Outcome.FAILED) for _ in range(3)]
    entry, wanted = new_job_id(), JobFilter(states=(State.FAILED,))
    for portion in (jobs[:2], jobs[2:]):
        changes = queue.run(store.act("retry", portion, who="anna@host", what=wanted, entry=entry))
        assert all(change.changed for change in changes)
    [row] = queue.run(store.list_audit())
    assert (row["who"], row["action"], row["jobs"]) == ("anna@host", "retry", 3)
    assert msgspec.json.decode(row["what"]) == {"states": ["failed"]}
    assert {queue.state_of(job) for job in jobs} == {State.PENDING}
    [change] = queue.run(store.act("retry", jobs[:1], who="anna@host", entry=new_job_id()))
    assert (change.changed, change.note) == (False, "it is under way already")
    assert len(queue.run(store.list_audit())) == 1


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [("cancel", "pending", "cancelled"), ("release", "quarantined", "pending"), ("prune", "succeeded", "pruned")],
)
def test_each_verb_acts_and_is_written(queue: Queue, verb: Any, before: str, after: str) -> None:
    makers = {"pending": make, "quarantined": make_quarantined, "succeeded": make_finished}
    job = makers[before](queue)  # type: ignore[operator]
    changes = queue.run(store.act(verb, [job, new_job_id()], who="anna", entry=new_job_id()))
    assert [(one.id, one.state, one.changed, one.note) for one in changes] == [(job, after, True, None)]
    assert queue.values("select action from outlive.audit") == [verb]
    assert queue.values("select what #>> '{ids,0}' from outlive.audit") == [str(job)]


def test_a_job_that_is_not_pruned_says_why(queue):
    needed, waiting = queue.make_finished(), queue.make()
    queue.make(links=msgspec.json.encode({"after": [needed, waiting]}))
    changes = queue.run(store.act("prune", [waiting, needed], who="anna", entry=new_job_id()))
    notes = {one.id: (one.state, one.changed, one.note) for one in changes}
    assert notes[waiting] == ("pending", False, "only finished and quarantined jobs can be pruned")
    assert notes[needed][:2] == ("succeeded", False)
    assert "another job needs its result" in str(notes[needed][2])


def test_old_entries_of_the_audit_are_pruned(queue):
    for days in (91, 1):
        queue.set_now(later_s=-86400.0 * days)
        queue.run(store.write_audit(new_job_id(), who="a", action=f"{days} days ago", what={}))
    queue.set_now()
    queue.run(store.prune_audit())
    [row] = queue.run(store.list_audit())
    assert row["action"] == "1 days ago"
    assert queue.run(store.list_audit(past=row["id"])) == []
