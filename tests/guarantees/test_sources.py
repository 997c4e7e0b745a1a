"""Sources."""

import random
import signal
from collections.abc import Sequence
from datetime import UTC, date
from pathlib import Path
from typing import Any

import pytest

from outlive import Job, State, dedupe_key, store
from outlive.states import Outcome
from tests.driving.claims import CLAIMED
from tests.driving.jobs import attempts, finished, outcomes
from tests.driving.making import Queue
from tests.driving.workers import Start, Worker
from tests.guarantees import calling
from tests.spans import within_bounds
from tests.waiting import eventually

TARGET = "tests.guarantees.calling:app"


@pytest.fixture
def start(start: Start, queue: Queue, tmp_path: Path) -> Start:
    """Starts workers for the app of tests/guarantees/calling.py. Their claims are kept."""
    queue.execute(CLAIMED)

    def make(**how: Any) -> Worker:
        return start(target=TARGET, **{"sweep_s": "0.5", "cache_dir": str(tmp_path / "cache"), **how})

    return make


def health(queue: Queue, name: str) -> dict[str, Any]:
    (found,) = [row for row in queue.run(store.list_sources()) if row["name"] == name]
    return found


def streak(queue: Queue) -> int:
    return int(health(queue, "flaky")["failure_streak"])


def admitted(queue: Queue, source: str) -> list[float]:
    """When a source admitted jobs, by the database's clock."""
    return [at.timestamp() for (at,) in queue.execute("select at from claimed where source = %s", [source]).fetchall()]


def waiting(queue: Queue, where: str = "source", name: str = "") -> int:
    query = {"source": "select count(*) from outlive.waiting where source = %s"}.get(
        where, "select count(*) from outlive.waiting where queue = %s"
    )
    row = queue.execute(query.encode(), [name]).fetchone()
    assert row
    return int(row[0])


def succeeded(jobs: Sequence[Job[Any]], *, within_s: float = 30.0) -> None:
    for job in jobs:
        finished(job, State.SUCCEEDED, within_s=within_s)


# Sources as rows


def test_a_source_is_a_row_made_by_the_apps_declaration(start, queue):
    start()
    eventually(lambda: len(queue.run(store.list_sources())) == 5)
    flaky = health(queue, "flaky")
    assert (flaky["enabled"], flaky["burst"], flaky["breaker"], flaky["failure_streak"]) == (True, 1, "closed", 0)
    assert health(queue, "shop")["rate_limit_per_minute"] == 600
    assert health(queue, "narrow")["max_concurrency"] == 1


@pytest.mark.long
def test_an_operators_change_holds_at_once_and_for_the_next_worker(start, queue):
    start(slots=2)
    jobs = [calling.crawl.enqueue() for _ in range(30)]
    eventually(lambda: len(admitted(queue, "slow")) >= 1)
    queue.run(store.set_source("slow", {"rate_limit_per_minute": 60_000}))
    succeeded(jobs, within_s=12)
    start()
    assert health(queue, "slow")["rate_limit_per_minute"] == 60_000


# Rates


def kill_and_replace(start: Start, workers: list[Worker], queue: Queue, *, until: int) -> list[float]:
    """Let workers call the shop, kill one after the other and start another, until so many calls have begun."""
    for kill_at in range(until // 4, until, max(1, until // 4)):
        eventually(lambda at=kill_at: len(admitted(queue, "shop")) >= at, within_s=120)  # type: ignore[misc]
        victim = workers.pop(0)
        victim.process.kill()
        workers.append(start(slots=2, wait=False))
    eventually(lambda: len(admitted(queue, "shop")) >= until, within_s=120)
    return admitted(queue, "shop")


def check_the_cap(start: Start, queue: Queue, *, number: int, until: int) -> None:
    workers = [start(slots=2, wait=False) for _ in range(number)]
    calling.app.enqueue_many([calling.visit.job() for _ in range(2 * until)])
    moments = kill_and_replace(start, workers, queue, until=until)
    within_bounds([(at, 1) for at in moments], rate_per_s=10, burst=1)
    took_s = max(moments) - min(moments)
    print(f"{len(moments)} calls by {number} workers in {took_s:.1f} s: {(len(moments) - 1) / took_s:.2f}/s of 10/s")


def test_workers_together_stay_within_the_rate_also_when_some_are_killed(start, queue):
    check_the_cap(start, queue, number=3, until=50)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_eight_workers_stay_within_the_rate_while_they_are_killed(start, queue):
    check_the_cap(start, queue, number=8, until=600)


def test_warm_workers_stay_within_rate_and_burst_also_when_some_are_killed(start, queue):
    """The jobs take no time, so every claim takes all that the source admits."""
    workers = [start(slots=2, wait=False) for _ in range(2)]
    eventually(lambda: len(queue.run(store.list_sources())) == 5)
    queue.run(store.set_source("shop", {"rate_limit_per_minute": 6000, "burst": 20}))
    calling.app.enqueue_many([calling.visit_warm.job() for _ in range(2000)])
    moments = kill_and_replace(start, workers, queue, until=400)
    within_bounds([(at, 1) for at in moments], rate_per_s=100, burst=20)


def drain_s(queue: Queue, number: int) -> float:
    """The time that one worker needs for so many free jobs, by the database's clock."""
    jobs = calling.app.enqueue_many([calling.free.job() for _ in range(number)])
    eventually(lambda: waiting(queue, "queue", "free") == 0, within_s=300)
    succeeded(jobs[-1:])
    ids = [job.id for job in jobs]
    query = "select extract(epoch from max(ended_at) - min(started_at)) from outlive.attempts where job_id = any(%s)"
    row = queue.execute(query.encode(), [ids]).fetchone()
    assert row
    return float(row[0])


def test_a_limited_source_does_not_hold_up_a_queue_beside_it(start, queue):
    start(slots=2)
    calling.app.enqueue_many([calling.crawl.job() for _ in range(2000)])
    drain_s(queue, 2000)
    assert waiting(queue, "source", "slow") > 1000
    eventually(lambda: waiting(queue, "source", "slow") < 2000, what="the source is served, too")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_thousand_limited_jobs_leave_a_queue_beside_them_its_rate(start, queue):
    """The worker keeps at least 80 % of the rate that it has alone."""
    number, limited = 20_000, 100_000
    start(slots=2)
    drain_s(queue, number // 2)
    alone_s = min(drain_s(queue, number) for _ in range(2))
    calling.app.enqueue_many([calling.crawl.job() for _ in range(limited)])
    beside_s = min(drain_s(queue, number) for _ in range(2))
    share = alone_s / beside_s
    print(f"free alone {number / alone_s:.0f}/s, beside {limited:,} limited {number / beside_s:.0f}/s: {share:.0%}")
    assert 0 < waiting(queue, "source", "slow") < limited
    assert share >= 0.8


@pytest.mark.long
def test_a_flooded_source_starves_no_other_and_no_queue(start, queue):
    start(slots=1)
    calling.app.enqueue_many([calling.flood.job() for _ in range(1500)])
    eventually(lambda: waiting(queue, "source", "endless") < 1490)
    beside = [calling.free.enqueue(), calling.visit.enqueue(), calling.flood.using(source="example.org").enqueue()]
    late, urgent = calling.flood.enqueue(), calling.flood.using(priority=0).enqueue()
    succeeded([*beside, urgent], within_s=10)
    assert waiting(queue, "source", "endless") > 100, "the flood is over too soon to tell"
    assert late.status() is State.PENDING


@pytest.mark.long
def test_each_of_many_sources_that_only_jobs_name_has_a_rate_of_its_own(start, queue):
    early = calling.crawl.using(source="site-0").enqueue()
    start(slots=4)
    succeeded([early])
    names = [f"site-{n}" for n in range(1, 200)]
    jobs = calling.app.enqueue_many([calling.crawl.using(source=name).job() for name in names for _ in range(2)])
    query = "select count(distinct j.source), count(*) from outlive.attempts a join outlive.jobs j on j.id = a.job_id"
    first = eventually(lambda: (queue.execute(query).fetchall())[0][0] == 200, within_s=60)
    assert first
    succeeded(jobs, within_s=60)
    for name in names:
        one, other = sorted(admitted(queue, name))
        assert other - one >= 1 - 1e-5, name
    assert health(queue, "site-0")["rate_limit_per_minute"] == 60


def test_no_more_than_allowed_run_at_once(start, tmp_path):
    workers = [start(slots=3, wait=False) for _ in range(2)]
    (tmp_path / "in").mkdir()
    jobs = [calling.squeeze.using(max_attempts=1).enqueue(str(tmp_path / "in")) for _ in range(12)]
    succeeded(jobs)
    assert all(worker.process.poll() is None for worker in workers)


# Requests inside a job


@pytest.mark.long
def test_requests_inside_a_job_wait_for_their_tokens_and_the_claims_pays_for_the_first(start, queue):
    start()
    first, *others = calling.visit_often.enqueue(6).result(timeout=30)
    gaps = [later - earlier for earlier, later in zip([first, *others], others, strict=False)]
    assert others[-1] - first >= 0.5 - 0.15, "the first may have been late, and no other"
    assert max(gaps) < 5
    (at,) = admitted(queue, "shop")
    query = "select extract(epoch from full_at) from outlive.sources where name = 'shop'"
    row = queue.execute(query).fetchone()
    assert row
    assert float(row[0]) - at >= 0.6 - 1e-5, "six tokens were taken, one of them by the claim"
    assert calling.visit_slowly.enqueue(3).result(timeout=30) == 3
    assert calling.be_impatient.enqueue().result(timeout=30) == "too busy"


COUNTED = {"raise": 1, "raise in a request": 2, "raise from a request": 3, "swallow": 5, "retry": 6}
NOT_COUNTED = ("own fault", "give up", "die")


@pytest.mark.long
def test_a_failure_counts_once_if_the_task_holds_the_source_for_it(start, queue):
    worker = start(slots=1)
    queue.run(store.set_source("flaky", {"breaker_failures": 100}))
    for how, failures in COUNTED.items():
        calling.stumble.using(max_crashes=1).enqueue(how)
        eventually(lambda: streak(queue) == failures, what=f"{how} counts")  # noqa: B023
    others = [calling.stumble.using(max_crashes=1).enqueue(how) for how in NOT_COUNTED]
    eventually(lambda: all(job.status() not in (State.PENDING, State.RUNNING) for job in others))
    worker.stop()
    assert streak(queue) == COUNTED["retry"]


SLOTS = "select count(*) from outlive.requests"
WAITING = """
select count(*) from pg_stat_activity
where datname = current_database() and query ~ '^select .*outlive.ask_source' and wait_event_type = 'Lock'
"""
CUT = """
select count(*) filter (where pg_terminate_backend(pid, 10000)) from pg_stat_activity
where datname = current_database() and query ~ '^select .*outlive.ask_source'
"""


def number(queue: Queue, query: str) -> int:
    ((found,),) = queue.execute(query.encode()).fetchall()
    return int(found)


@pytest.mark.parametrize("how", ["when it may", "at any moment"])
def test_a_cancelled_request_keeps_no_slot(start, queue, tmp_path, how):
    start(slots=1)
    assert calling.change_its_mind.enqueue(str(tmp_path), how).result(timeout=30) == "it was let in"
    assert number(queue, SLOTS) == 0


def test_a_request_cancelled_while_it_asks_gives_back_its_slot(start, connect, tmp_path):
    holder, connection = connect(), connect()
    start(slots=1)
    with holder.transaction():
        holder.execute("select from outlive.sources where name = 'narrow' for update")
        job = calling.change_its_mind.enqueue(str(tmp_path), "while it asks")
        eventually(lambda: number(connection, WAITING))
        (tmp_path / "asking").touch()
        eventually((tmp_path / "cancelled").exists)
    assert job.result(timeout=30) == "it was let in"
    assert number(connection, SLOTS) == 0


@pytest.mark.long
@pytest.mark.parametrize("task", [calling.hold_on, calling.hold_on_as_well], ids=["sync", "async"])
def test_a_slot_is_given_back_also_over_a_connection_that_broke(start, queue, tmp_path, task):
    start(slots=1)
    job = task.enqueue(str(tmp_path))
    eventually((tmp_path / "inside").exists)
    assert number(queue, CUT) == 1
    (tmp_path / "cut").touch()
    assert job.result(timeout=30) == "it was let in"
    assert number(queue, SLOTS) == 0


# The breaker


def opened(queue: Queue) -> None:
    """Wait until the breaker of the flaky source is open."""
    for _ in range(3):
        calling.stumble.enqueue("raise")
    eventually(lambda: health(queue, "flaky")["breaker"] == "open", within_s=20)


def test_failures_in_a_row_pause_the_source_and_then_one_probe_decides(start, queue, tmp_path):
    told = tmp_path / "told"
    worker = start(on_source_paused=f"cat >> {told}; echo >> {told}")
    opened(queue)
    paused_until = health(queue, "flaky")["paused_until"]
    waits = [calling.stumble.enqueue("well") for _ in range(3)]
    eventually(lambda: told.exists() and '"name":"flaky"' in told.read_text())
    assert worker.says(f"the source flaky is paused until {paused_until.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}, after")
    succeeded(waits)
    assert min(at for job in waits for at in [attempts(queue, job)[0].started_at] if at) >= paused_until
    assert all(outcomes(queue, job) == [Outcome.SUCCEEDED] for job in waits)
    assert health(queue, "flaky")["breaker"] == "closed"
    worker.says("the source flaky works again")
    eventually(lambda: told.read_text().count('"event":"source_paused"') == 2)


FAILURES = "select count(*) from outlive.attempts where outcome = 'failed'"
BEHIND = "select count(*) from outlive.attempts where error = 'the source flaky failed just before it began'"


@pytest.mark.long
@pytest.mark.parametrize("request_", [False, True], ids=["as a whole", "in a request"])
def test_the_breaker_opens_as_soon_also_if_many_jobs_were_claimed_ahead(start, queue, request_):
    """Each child may fail once before it knows, and so may one more that it was given just then."""
    slots, breaker_failures = 2, 3
    start(slots=slots)
    eventually(lambda: len(queue.run(store.list_sources())) == 5)
    queue.run(store.set_source("flaky", {"breaker_pause_s": 600}))
    calling.app.enqueue_many(
        [calling.hurry.job(how, request_) for how, times in (("well", 1500), ("raise", 500)) for _ in range(times)]
    )
    eventually(lambda: health(queue, "flaky")["breaker"] == "open" and not queue.count("running"), within_s=60)
    assert queue.value(FAILURES) <= breaker_failures + 2 * slots
    if not request_:  # A request takes so long that few jobs are given ahead, or none.
        assert queue.value(BEHIND) > 0, "none was claimed ahead: this tests nothing"


def test_jobs_of_a_shared_process_that_did_not_begin_go_back_when_their_source_fails(start, queue):
    calling.app.enqueue_many([calling.hurry_together.job() for _ in range(400)])
    start(slots=1)
    eventually(lambda: health(queue, "flaky")["breaker"] == "open" and not queue.count("running"), within_s=30)
    assert queue.value(FAILURES) <= 20
    assert queue.value(BEHIND) > 0, "none came with others: this tests nothing"


def test_a_probe_that_fails_opens_it_again_and_one_that_dies_makes_room(start, queue):
    start()
    opened(queue)
    before = health(queue, "flaky")["paused_until"]
    calling.stumble.enqueue("raise")
    eventually(lambda: health(queue, "flaky")["paused_until"] > before)
    dead = calling.stumble.using(max_crashes=1, priority=0).enqueue("die")
    well = calling.stumble.enqueue("well")
    finished(dead, State.QUARANTINED)
    succeeded([well])
    assert health(queue, "flaky")["breaker"] == "closed"


def test_a_job_that_meets_an_open_breaker_goes_back_without_losing_an_attempt(start, queue):
    start()
    opened(queue)
    job = calling.call_from_elsewhere.enqueue()
    assert job.result(timeout=20) >= 2
    assert queue.counters(job.id) == (0, 0, 0)
    assert set(outcomes(queue, job)) == {Outcome.RELEASED, Outcome.SUCCEEDED}
    assert health(queue, "flaky")["breaker"] == "closed"


def test_a_job_that_takes_too_long_counts_against_its_source(start, queue):
    start(slots=2)
    for job in [calling.hang.enqueue(deaf) for deaf in (False, True)]:
        finished(job, State.FAILED)
    eventually(lambda: streak(queue) == 2)


def test_a_job_that_ends_in_its_own_transaction_speaks_for_its_source_too(start, queue, database_url):
    start(slots=1)
    finished(calling.stumble.enqueue("raise"), State.FAILED)
    eventually(lambda: streak(queue) == 1)
    succeeded([calling.finish_itself.enqueue(database_url)])
    eventually(lambda: streak(queue) == 0)


# The cache


def test_jobs_of_a_machine_share_fetched_answers(start, tmp_path):
    workers = [start(slots=2, wait=False) for _ in range(2)]
    calls = tmp_path / "calls"
    jobs = [calling.look_up.enqueue(str(calls)) for _ in range(6)]
    assert [job.result(timeout=30) for job in jobs] == ["answer"] * 6
    assert len(calls.read_text().split()) == 1
    for worker in workers:
        worker.started().stop(signal.SIGTERM)
    start()
    assert calling.look_up.enqueue(str(calls)).result(timeout=30) == "answer"
    assert len(calls.read_text().split()) == 1, "it survives the workers"


def test_without_a_cache_every_job_fetches(start, tmp_path):
    start(cache_enabled="false")
    jobs = [calling.look_up.enqueue(str(tmp_path / "calls")) for _ in range(2)]
    assert [job.result(timeout=30) for job in jobs] == ["answer"] * 2
    assert len((tmp_path / "calls").read_text().split()) == 2


@pytest.mark.parametrize(
    ("known", "pages", "how", "failures"),
    [
        (["flaky/1"], ["flaky/1"], "well", 1),
        (["flaky/1"], ["flaky/1"], "misread", 1),
        (["shop/1"], ["shop/1"], "well", 0),
        (["shop/1"], ["shop/1"], "misread", 2),
        (["flaky/1"], ["flaky/2", "flaky/1"], "well", 0),
        (["flaky/1"], ["flaky/2", "flaky/1"], "misread", 2),
        (["flaky/1"], ["flaky/1", "shop/1"], "well", 1),
        (["flaky/1"], ["flaky/1", "shop/1"], "misread", 1),
    ],
)
def test_an_answer_from_the_cache_says_nothing_about_the_jobs_own_source(start, queue, known, pages, how, failures):
    """The source has failed once before. A job that really calls it, or calls only others, counts as usual."""
    worker = start(slots=1)
    succeeded([calling.read.enqueue(known)])
    finished(calling.stumble.enqueue("raise"), State.FAILED)
    eventually(lambda: streak(queue) == 1)
    finished(calling.read.enqueue(pages, how), State.SUCCEEDED if how == "well" else State.FAILED)
    worker.stop()
    assert streak(queue) == failures


# Records and spawned jobs


def prices() -> dict[str, tuple[int, float]]:
    return {one.dedupe_key: (one.data["price"], one.strength) for one in calling.app.records("prices")}


def test_a_jobs_records_and_new_jobs_are_committed_with_its_success(start, queue):
    start()
    queue.run(store.pause_source("shop"))  # What is asked for stays to be counted.
    assert calling.find.enqueue("a", 10, 0.5).result(timeout=30) == 1
    assert calling.find.enqueue("a", 11, 0.4).result(timeout=30) == 1
    assert calling.find.enqueue("a", 12, 0.9, how="die once").result(timeout=30) == 2
    assert prices() == {"a": (12, 0.9)}
    assert waiting(queue, "source", "shop") == 1, "they have one dedupe key"
    (record,) = calling.app.records(source="endless")
    assert (record.scope, record.data) == ("prices", {"price": 12})


def test_a_job_that_does_not_succeed_leaves_neither_half(start, queue):
    worker = start(max_args_bytes="1000")
    queue.run(store.pause_queue("free"))
    calling.free.using(dedupe_key="taken").enqueue()
    for how in ("raise", "ask for nonsense", "ask for too much"):
        job = calling.find.using(max_attempts=1).enqueue("a", 10, 0.5, how=how)
        finished(job, State.FAILED)
        assert len(attempts(queue, job)) == 1
    assert prices() == {}
    assert waiting(queue, "source", "shop") == 0
    assert worker.process.poll() is None


def letters(count: int) -> str:
    """Letters of four bytes, in an order that does not compress."""
    return "".join(map(chr, random.Random(5).sample(range(0x20000, 0x2A000), count)))


def test_records_and_spawned_jobs_have_at_most_as_many_bytes_as_the_database_takes(start, queue):
    start(slots=1)
    queue.run(store.pause_source("shop"))
    longest = {"scope": letters(250), "key": letters(250)}
    succeeded([calling.find.enqueue(price=1, strength=1.0, **longest)])
    assert [(one.scope, one.dedupe_key) for one in calling.app.records()] == [tuple(longest.values())]
    for name in longest:
        job = calling.find.using(max_attempts=1).enqueue(price=1, strength=1.0, **{**longest, name: letters(251)})
        finished(job, State.FAILED)
        assert "it must be text of 1 to 1000 bytes of UTF-8" in (attempts(queue, job)[0].error or "")
    job = calling.find.using(max_attempts=1).enqueue("a", 10, 0.5, how="ask for too many")
    finished(job, State.FAILED)
    assert "the jobs that one job spawns have more than 16,777,216 bytes" in (attempts(queue, job)[0].error or "")
    assert waiting(queue, "source", "endless") == 0


def test_the_records_of_a_worker_that_stops_are_kept(start, queue):
    worker = start()
    jobs = [calling.find.enqueue(f"key-{n}", n, 1.0) for n in range(20)]
    eventually(lambda: len(admitted(queue, "endless")) >= 5)
    assert worker.stop() == 0
    done = [job for job in jobs if job.status() is State.SUCCEEDED]
    assert len(prices()) == len(done) > 0


# Dedupe keys


def test_a_dedupe_key_is_the_external_id_or_a_hash_of_what_makes_the_finding():
    assert dedupe_key("4711", url="https://x") == dedupe_key(4711) == "ext_4711"
    facts: dict[str, Any] = {"url": "https://shop.example/coin?page=2#top", "title": "  Gold\tCoin  1 oz "}
    facts |= {"price_cents": 199_900, "day": date(2026, 1, 31), "kind": "ask"}

    def same(**other: Any) -> str:
        return dedupe_key(**{**facts, **other})

    key = same()
    assert key.startswith("hash_")
    assert len(key) == len("hash_") + 16
    assert key == same(url="https://shop.example/coin") == same(title="gold coin 1 OZ") == same(day="2026-01-31")
    assert key == same(external_id=None) == same(external_id="")
    changed: list[dict[str, Any]] = [
        {"url": "https://shop.example/bar"},
        {"title": "silver"},
        {"price_cents": 1},
        {"day": None},
        {"kind": "bid"},
    ]
    assert len({key, *(dedupe_key(**(facts | one)) for one in changed)}) == 6


def test_a_dedupe_key_is_made_of_any_named_parts():
    key = dedupe_key(isbn="978-3", edition=2)
    assert key == dedupe_key(edition="2", isbn="978-3", shelf=None, url="")
    others = (dedupe_key(isbn="978-3"), dedupe_key(isbn="978-3", edition=3), dedupe_key(isbn="2", edition="978-3"))
    assert len({key, dedupe_key(), *others}) == 5


def test_a_dedupe_key_is_the_same_for_ever():
    """Keys are stored: a change in how they are made would lose all known findings."""
    from hashlib import sha256

    facts = "https://shop.example/coin|gold coin|199900|2026-01-31|ask"
    key = dedupe_key(
        url="https://shop.example/coin?x", title="Gold  Coin", price_cents=199_900, day="2026-01-31", kind="ask"
    )
    assert key == f"hash_{sha256(facts.encode()).hexdigest()[:16]}"
