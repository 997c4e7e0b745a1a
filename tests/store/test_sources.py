"""Sources as rows: their rates, concurrency limits and breakers; and records, written with the success of a job."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outlive import store
from outlive.errors import StaleAttempt
from outlive.model import Claimed, Ended, Grant, SourceLimits, Turn
from outlive.protocol import Progress
from outlive.states import Outcome, State
from tests.driving.making import NOON, WORKER, Connect, Queue, lane, new_worker, request
from tests.spans import within_bounds
from tests.store.acting import assert_sound, clear
from tests.store.histories import SHORT, run_histories
from tests.waiting import eventually


def declare(connection: Queue, name: str = "shop", **said: Any) -> None:
    connection.run(store.register_sources([SourceLimits(name, **said)]))


def claim(queue: Queue, *sources: str, limit: int = 512, worker: UUID = WORKER, lease_s: float = 300.0) -> Turn:
    lanes = [lane(source=source, asks=True) for source in sources or ("shop",)]
    return queue.run(store.end_and_claim(worker, (), lanes, limit=limit, lease_s=lease_s))


def begin(connection: Queue, source: str = "shop", **how: Any) -> Claimed:
    """Make and claim one job of the source."""
    connection.make(source=source)
    (claimed,) = claim(connection, source, limit=1, **how).claimed
    return claimed


def ask(queue: Queue, token: int | None = None, source: str = "shop") -> Grant:
    return queue.run(store.ask_source(source, token))


def tell(queue: Queue, token: int | None, ok: bool | None, *slots: int, source: str = "shop") -> None:
    queue.run(store.count_outcomes([(source, token, ok)], slots))


def fail(queue: Queue, times: int = 5) -> None:
    for _ in range(times):
        tell(queue, None, False)


def health(queue: Queue, name: str = "shop") -> dict[str, Any]:
    return queue.row("select * from outlive.source_health where name = %s", name)


def change(connection: Queue, **said: float | None) -> bool:
    return connection.run(store.set_source("shop", said))


# Tokens


def test_a_source_gives_its_burst_at_once_and_then_one_token_at_a_time(queue):
    queue.set_now()
    declare(queue, rate_limit_per_minute=60, burst=3)
    queue.make_many(10, source="shop")
    assert len(claim(queue).claimed) == 3
    for after_s, tokens in ((0.5, 0), (1.0, 1), (1.9, 0), (4.0, 3), (1000.0, 3)):
        queue.set_now(later_s=after_s)
        assert len(claim(queue).claimed) == tokens, after_s


def test_a_source_without_a_rate_gives_as_many_as_are_asked_for(queue):
    declare(queue)
    queue.make_many(10, source="shop")
    assert len(claim(queue, limit=7).claimed) == 7
    assert all(ask(queue).granted for _ in range(10))
    assert health(queue)["tokens"] is None


def test_a_refused_request_is_told_when_there_will_be_a_token(queue):
    queue.set_now()
    declare(queue, rate_limit_per_minute=6)
    running = begin(queue)
    queue.make(source="shop")
    assert claim(queue) == Turn([], [], {"shop": 10.0})
    queue.set_now(later_s=4)
    assert ask(queue, running.token) == Grant(granted=False, wait_s=6.0, open=False, slot=None)
    queue.set_now(later_s=10)
    assert ask(queue, running.token).granted
    assert health(queue)["tokens"] == 0


def test_a_job_that_runs_and_waits_goes_before_those_that_would_begin(queue):
    queue.set_now()
    declare(queue, rate_limit_per_minute=60)
    running = begin(queue)
    queue.make(source="shop")
    assert not ask(queue, running.token).granted
    queue.set_now(later_s=1.1)
    assert claim(queue).claimed == []
    queue.set_now(later_s=1.2)
    assert ask(queue, running.token).granted
    queue.set_now(later_s=2.3)
    assert len(claim(queue).claimed) == 1


def test_a_job_that_died_while_it_waited_holds_up_no_other_for_long(queue):
    queue.set_now()
    declare(queue, rate_limit_per_minute=60)
    running = begin(queue)
    queue.make(source="shop")
    assert not ask(queue, running.token).granted
    queue.end(Ended(running.token, Outcome.CRASHED))
    queue.set_now(later_s=1.3)
    assert len(claim(queue).claimed) == 1


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Claims, each as the milliseconds since the one before and the number of jobs; 0 jobs are a request of a job.

    The milliseconds may be negative: a statement may have begun before one that got the lock first.
    """
    return draw(st.lists(st.tuples(st.integers(-200, 3000), st.integers(0, 4)), min_size=1, max_size=25))


def test_in_no_span_of_time_more_is_taken_than_burst_and_rate_allow(queue):
    @settings(SHORT)
    @given(st.floats(1, 3000), st.integers(1, 5), steps())
    def play(rate: float, burst: int, moves: list[tuple[int, int]]) -> None:
        queue.execute("delete from outlive.sources")
        clear(queue)
        queue.set_now()
        declare(queue, rate_limit_per_minute=rate, burst=burst)
        queue.make_many(100, source="shop")
        taken: list[tuple[float, int]] = []
        at_ms = most_given = 0
        for later_ms, wanted in moves:
            at_ms = max(0, at_ms + later_ms)
            queue.set_now(later_s=at_ms / 1000)
            got = len(claim(queue, limit=wanted).claimed) if wanted else int(ask(queue).granted)
            assert got <= max(1, wanted)
            most_given += got
            taken.append((at_ms / 1000, got))
        within_bounds(taken, rate_per_s=rate / 60, burst=burst)
        assert most_given >= 1

    play()


def test_a_steady_asker_gets_all_that_the_rate_allows(queue):
    declare(queue, rate_limit_per_minute=70, burst=2)
    granted = 0
    for step in range(601):
        queue.set_now(later_s=step / 10)
        granted += ask(queue).granted
    assert granted in (70, 71, 72)


def test_no_more_than_allowed_run_at_once_and_a_slot_comes_back_with_the_attempts_end(queue):
    declare(queue, max_concurrency=2)
    queue.make_many(4, source="shop")
    first, second = claim(queue).claimed
    assert claim(queue) == Turn([], [], {"shop": 0.25})
    queue.end(Ended(first.token, Outcome.CRASHED, signal="SIGKILL"))
    assert len(claim(queue).claimed) == 1
    queue.end(Ended(second.token, Outcome.SUCCEEDED))
    assert len(claim(queue).claimed) == 1


def test_a_job_can_ask_and_tell_a_source_only_in_its_own_name():
    def asked(token: int | None) -> list[Any]:
        return [store.ask_source("shop", token), store.count_outcomes([("shop", token, True)])]

    for one in (*asked(7), *asked(None)):
        assert store.asked_by_job(one.name, one.parameters, 7).parameters == one.parameters
    for one in asked(8):
        with pytest.raises(StaleAttempt, match="does not run"):
            store.asked_by_job(one.name, one.parameters, 7)


def test_progress_is_written_only_by_the_worker_that_has_the_attempt(queue):
    declare(queue)
    running = begin(queue)
    said = [Progress(running.token, 1.0, None, None)]
    queue.run(store.write_progress(new_worker(), said))
    assert queue.count("progress") == 0
    queue.run(store.write_progress(WORKER, said))
    assert queue.count("progress") == 1


def test_the_slot_of_a_job_is_also_that_of_its_own_requests(queue):
    declare(queue, max_concurrency=1)
    running = begin(queue)
    assert ask(queue, running.token) == Grant(granted=True, wait_s=0.0, open=False, slot=None)


def test_a_request_of_another_sources_job_takes_a_slot_until_it_or_its_attempt_ends(queue):
    declare(queue, max_concurrency=1)
    first, second = begin(queue, "bank"), begin(queue, "bank")
    slot = ask(queue, first.token).slot
    assert slot is not None
    assert not ask(queue, second.token).granted
    tell(queue, second.token, None, slot)
    assert not ask(queue, second.token).granted, "a job gave back the slot of another"
    tell(queue, first.token, None, slot)
    assert ask(queue, second.token).slot is not None
    queue.make(source="shop")
    assert claim(queue).claimed == []
    queue.end(Ended(second.token, Outcome.CRASHED, signal="SIGKILL"))
    assert ask(queue, first.token).granted
    assert queue.values("select token from outlive.requests") == [first.token], "what the dead had is left"


# What is not claimed


def test_the_jobs_of_a_source_that_is_switched_off_wait(queue):
    running = begin(queue)
    queue.make(source="shop")
    assert queue.run(store.pause_source("shop"))
    assert claim(queue).claimed == []
    assert ask(queue, running.token).open
    assert queue.run(store.resume_source("shop"))
    assert len(claim(queue).claimed) == 1
    assert not queue.run(store.pause_source("missing"))
    assert not queue.run(store.resume_source("missing"))


def test_a_worker_that_was_given_up_claims_nothing(queue):
    queue.make(source="shop")
    queue.run(store.register_worker(WORKER, name="n", hostname="h", pid=1, version="v", queues=None, slots=1))
    queue.execute("update outlive.workers set state = 'dead'")
    assert claim(queue) == Turn([], [], {})
    assert len(claim(queue, worker=new_worker()).claimed) == 1


def test_a_source_locked_by_another_claim_is_passed_over(connect):
    one, other = connect(), connect()
    other.execute("set lock_timeout = '50ms'")
    for source in ("shop", "bank"):
        one.make_many(2, source=source)
    with one.transaction():
        assert len(claim(one, "shop", limit=1).claimed) == 1
        admitted = claim(other, "shop", "bank", limit=4)
        assert [job.source for job in admitted.claimed] == ["bank", "bank"]
        assert admitted.waits_s == {"shop": 0.02}
    assert len(claim(other, "shop").claimed) == 1


def test_the_most_urgent_and_then_the_oldest_of_a_source_go_first(queue):
    queue.set_now()
    declare(queue, rate_limit_per_minute=60)
    late = queue.make(source="shop", priority=5)
    urgent = queue.make(source="shop", priority=1)
    queue.set_now(later_s=-60)
    old = queue.make(source="shop", priority=5)
    order = []
    for n in range(3):
        queue.set_now(later_s=10 * n)
        offered = [lane(source="shop", priority=priority, asks=True) for priority in (1, 5)]
        order += [one.id for one in queue.claim(offered, limit=5)]
    assert order == [urgent, old, late]


def test_a_job_over_its_crash_limit_is_caught_and_costs_no_token(queue):
    queue.set_now()
    declare(queue, rate_limit_per_minute=60)
    job = queue.make(source="shop", options={"max_crashes": 2})
    (claimed,) = claim(queue).claimed
    queue.end(Ended(claimed.token, Outcome.CRASHED, signal="SIGSEGV"))
    queue.execute("""update outlive.jobs set options = '{"max_crashes": 1}'""")
    queue.set_now(later_s=3600)
    assert claim(queue).claimed == []
    assert queue.state_of(job) is State.QUARANTINED
    assert health(queue)["tokens"] == 1


def test_a_suspect_pays_like_everybody_else(queue):
    queue.set_now()
    queue.register_task(max_losses=2)
    declare(queue, rate_limit_per_minute=60)
    begin(queue, lease_s=0.1)
    queue.set_now(later_s=0.5)
    assert len(queue.run(store.expire())) == 1
    suspect = store.claim_suspect(WORKER, tasks=["work"])
    assert queue.run(suspect) == []
    queue.set_now(later_s=1)
    assert len(queue.run(suspect)) == 1
    assert not ask(queue).granted


def test_a_suspect_can_be_the_probe(queue):
    queue.set_now()
    queue.register_task(max_losses=2)
    begin(queue, lease_s=0.1)
    queue.set_now(later_s=1)
    queue.run(store.expire())
    fail(queue)
    queue.set_now(later_s=302)
    (claimed,) = queue.run(store.claim_suspect(WORKER, tasks=["work"]))
    assert health(queue)["breaker"] == "half-open"
    tell(queue, claimed.token, True)
    assert health(queue)["breaker"] == "closed"


# Sources that need not be asked


def in_way(queue: Queue, what: str) -> None:
    """Give the shop a reason to be asked."""
    match what:
        case "a rate" | "a limit on concurrency":
            name = "rate_limit_per_minute" if what == "a rate" else "max_concurrency"
            change(queue, **{name: 60})
        case "an operator's pause":
            queue.run(store.pause_source("shop"))
        case "a failed call":
            fail(queue, times=1)
        case "an open breaker":
            fail(queue)


REASONS = ["a rate", "a limit on concurrency", "an operator's pause", "a failed call", "an open breaker"]


def test_the_jobs_of_a_source_that_admits_all_are_claimed_like_those_without_one_also_while_it_is_locked(connect):
    queue, stranger = connect(), connect()
    declare(queue)
    queue.make_many(3, source="shop")
    assert [one.admits_all for one in queue.run(store.sourced_lanes(["work"])).lanes] == [True]
    with stranger.transaction():
        stranger.execute("select from outlive.sources for update")
        assert len(queue.claim([lane(source="shop")])) == 3


@pytest.mark.parametrize("what", REASONS)
def test_a_claim_that_does_not_ask_passes_over_a_source_that_must_be_asked(queue, what):
    declare(queue)
    queue.make(source="shop")
    in_way(queue, what)
    assert not any(one.admits_all for one in queue.run(store.sourced_lanes(["work"])).lanes)
    assert queue.claim([lane(source="shop")]) == []


def test_a_source_that_is_well_hears_of_more_successes_once_a_second(connect):
    queue, stranger = connect(), connect()
    queue.set_now()
    declare(queue)
    tell(queue, None, True)
    heard = [("shop", None, True), ("shop", None, True)]
    with stranger.transaction():
        stranger.execute("select from outlive.sources for update")
        queue.set_now(later_s=0.9)
        assert queue.run(store.count_outcomes(heard, patient=False)) == []
        queue.set_now(later_s=1.1)
        assert queue.run(store.count_outcomes(heard, patient=False)) == [1, 2]
        queue.set_now(later_s=0.9)
        assert queue.run(store.count_outcomes([*heard, ("shop", None, False)], patient=False)) == [1, 2, 3]
    queue.set_now(later_s=1.1)
    assert queue.run(store.count_outcomes(heard, patient=False)) == []
    assert health(queue)["last_success_at"] == NOON + timedelta(seconds=1.1)


# Rows and overrides


def test_an_operators_setting_wins_until_it_is_taken_back(queue):
    declare(queue, rate_limit_per_minute=60, burst=2, max_concurrency=3)
    assert change(queue, rate_limit_per_minute=6.5, burst=7)
    shown = health(queue)
    assert (shown["rate_limit_per_minute"], shown["burst"], shown["max_concurrency"]) == (6.5, 7, 3)
    declare(queue, rate_limit_per_minute=120, burst=4)
    assert change(queue, rate_limit_per_minute=None)
    shown = health(queue)
    assert (shown["rate_limit_per_minute"], shown["burst"], shown["max_concurrency"]) == (120, 7, None)
    assert not queue.run(store.set_source("missing", {"burst": 1}))


@pytest.mark.parametrize("by", ["an operator", "the app"])
def test_a_higher_rate_holds_at_once_whatever_was_owed_at_the_lower(queue, by):
    queue.set_now()
    declare(queue, rate_limit_per_minute=0.01)
    assert ask(queue).granted
    if by == "the app":
        declare(queue, rate_limit_per_minute=60)
    else:
        change(queue, rate_limit_per_minute=60)
    assert not ask(queue).granted
    queue.set_now(later_s=1)
    assert ask(queue).granted


def test_declaring_the_same_again_gives_no_token_back(queue):
    queue.set_now()
    declare(queue, rate_limit_per_minute=60, burst=3)
    assert [ask(queue).granted for _ in range(4)] == [True, True, True, False]
    queue.set_now(later_s=-1)  # A worker whose statement had to wait.
    declare(queue, rate_limit_per_minute=60, burst=3)
    queue.set_now(later_s=0.9)
    assert not ask(queue).granted


def test_a_source_that_only_a_job_names_has_the_limits_of_its_tasks_source(queue):
    declare(queue, rate_limit_per_minute=60, burst=2, max_concurrency=3, breaker_failures=4, breaker_pause_s=5)
    queue.register_task(source="shop")
    queue.make(source="example.org")
    queue.make_many(2, source="example.com")
    queue.make("unknown", source="example.net")
    assert queue.make() is not None
    query = "select rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause_s"
    for name in ("shop", "example.org", "example.com"):
        found = queue.row(query + " from outlive.sources where name = %s", name)
        assert tuple(found.values()) == (60, 2, 3, 4, 5), name
    assert health(queue, "example.net")["rate_limit_per_minute"] is None
    named = queue.values("select distinct source from outlive.waiting order by 1")
    assert named == ["example.com", "example.net", "example.org", "shop"]


def test_limits_are_spread_without_waiting_for_a_source_that_another_transaction_has_locked(connect):
    connection, stranger = connect(), connect()
    connection.execute("set lock_timeout = '2s'")
    connection.enqueue([request(source=name) for name in ("example.net", "example.org")])
    declare(connection, rate_limit_per_minute=60)
    connection.register_task(source="shop")
    with stranger.transaction():
        stranger.execute("select from outlive.sources where name = 'example.org' for update")
        assert connection.run(store.spread_limits(["work"])) == ["example.org"]
    rates = "select rate_limit_per_minute from outlive.sources order by name"
    assert connection.values(rates) == [60, None, 60]
    assert connection.run(store.spread_limits(["work"])) == []
    assert connection.values(rates) == [60, 60, 60]


def test_an_unknown_source_is_made_by_the_first_request(queue):
    assert ask(queue, source="new").granted
    assert health(queue, "new")["breaker"] == "closed"
    queue.make(source="gone")
    queue.execute("delete from outlive.sources")
    assert claim(queue, "gone") == Turn([], [], {"gone": 0.02})
    assert len(claim(queue, "gone").claimed) == 1
    tell(queue, None, False, source="still unknown")


# The breaker


def half_open(queue: Queue, jobs: int = 3) -> Claimed:
    """A source whose breaker is half-open, and an attempt of it that began before."""
    queue.set_now()
    early = begin(queue)
    queue.make_many(jobs, source="shop")
    fail(queue)
    queue.set_now(later_s=300)
    return early


def test_a_breaker_that_opens_or_closes_is_told_once(connect):
    one, other = connect(), connect()
    one.set_now(), other.set_now()
    declare(one)
    assert one.run(store.breakers()) == []
    fail(one)
    (told,) = one.run(store.breakers())
    assert (told["name"], told["paused_until"], told["failure_streak"]) == ("shop", NOON + timedelta(minutes=5), 5)
    assert other.run(store.breakers()) == []
    one.run(store.resume_source("shop"))
    with one.transaction():
        (told,) = one.run(store.breakers())
        assert (told["name"], told["paused_until"]) == ("shop", None)
        assert other.run(store.breakers()) == []
    assert other.run(store.breakers()) == []


def act_in_opposite_orders(connect: Connect, locked: str, *acts: Callable[[Queue], object]) -> None:
    """Let two sessions act that both meet a row in the middle which a third one has locked."""
    holder, sessions = connect(), [connect() for _ in acts]
    waits = "select count(*) = 2 from pg_locks where not granted and pid = any(%s)"
    with ThreadPoolExecutor() as threads:
        with holder.transaction():
            holder.execute(f"select from outlive.{locked} for update".encode())
            both = [threads.submit(act, session) for act, session in zip(acts, sessions, strict=True)]
            eventually(lambda: holder.value(waits, [session.info.backend_pid for session in sessions]))
        for each in both:
            each.result(timeout=20)


def test_outcomes_counted_in_opposite_orders_never_wait_for_each_other_in_a_circle(connect):
    holder = connect()
    for name in ("a", "m", "z"):
        declare(holder, name)

    def told(names: str) -> Callable[[Queue], object]:
        return lambda queue: queue.run(store.count_outcomes([(name, None, False) for name in names]))

    act_in_opposite_orders(connect, "sources where name = 'm'", told("amz"), told("zma"))
    assert holder.values("select failure_streak from outlive.sources") == [2, 2, 2]


WHICH = st.integers(0, 9)


class Breaker(RuleBasedStateMachine):
    """A breaker beside a model of it: two failures in a row open it for ten seconds, then one probe is admitted."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self.connection = queue
        queue.execute("delete from outlive.sources")
        queue.execute("delete from outlive.requests")
        clear(queue)
        self.now = queue.set_now()
        declare(queue, breaker_failures=2, breaker_pause_s=10)
        queue.make_many(100, source="shop")
        queue.make_many(100, source="bank")
        self.enabled, self.streak = True, 0
        self.paused_until: datetime | None = None
        self.probe: int | None = None
        self.running: set[int] = set()
        self.tokens: list[int] = []
        self.jobs_are_claimed(2)

    @property
    def state(self) -> str:
        if self.paused_until is None:
            return "closed"
        return "open" if self.now < self.paused_until else "half-open"

    def admits(self, token: int | None = None) -> bool:
        if not self.enabled or self.state == "open":
            return False
        return self.state == "closed" or self.probe not in self.running or self.probe == token

    def begun(self, token: int) -> None:
        if token not in self.running:
            self.running.add(token)
            self.tokens.append(token)

    @initialize(half_open=st.booleans())
    def it_may_have_opened_and_waited(self, half_open: bool) -> None:
        if half_open:
            self.it_opens_and_waits()

    @precondition(lambda self: self.enabled and self.state == "closed")
    @rule()
    def it_opens_and_waits(self) -> None:
        """Bring about a probe, which rarely happens by chance."""
        self.calls_fail(0, 2)
        self.time_goes_by(10)

    @rule(seconds=st.sampled_from([4, 10, 60]))
    def time_goes_by(self, seconds: float) -> None:
        self.now = self.connection.set_now(self.now, later_s=seconds)

    @rule(wanted=st.integers(1, 3))
    def jobs_are_claimed(self, wanted: int) -> None:
        expected = (wanted if self.state == "closed" else 1) if self.admits() else 0
        claimed = claim(self.connection, limit=wanted).claimed
        assert len(claimed) == expected
        for job in claimed:
            self.begun(job.token)
            if self.state == "half-open":
                self.probe = job.token

    @rule()
    def a_job_of_another_source_begins(self) -> None:
        self.begun(claim(self.connection, "bank", limit=1).claimed[0].token)

    @precondition(lambda self: bool(self.running))
    @rule(which=WHICH)
    def a_job_asks_from_inside(self, which: int) -> None:
        token = sorted(self.running)[which % len(self.running)]
        granted = ask(self.connection, token).granted
        assert granted == self.admits(token)
        if granted and self.state == "half-open":
            self.probe = token

    def told(self, token: int, ok: bool | None) -> None:
        tell(self.connection, token, ok)
        if ok is None:
            self.probe = None if token == self.probe else self.probe
            return
        if self.state == "half-open" and token != self.probe:
            return
        self.streak = 0 if ok else self.streak + 1
        self.probe = None
        if self.state == "half-open":
            self.paused_until = None if ok else self.now + timedelta(seconds=10)
        elif self.state == "closed" and self.streak >= 2:
            self.paused_until = self.now + timedelta(seconds=10)

    @rule(which=WHICH, times=st.integers(1, 3))
    def calls_fail(self, which: int, times: int) -> None:
        for _ in range(times):
            self.told(self.tokens[which % len(self.tokens)], False)

    @rule(which=WHICH, ok=st.sampled_from([True, None]))
    def a_call_ends_well_or_says_nothing(self, which: int, ok: bool | None) -> None:
        self.told(self.tokens[which % len(self.tokens)], ok)

    @precondition(lambda self: self.probe is not None)
    @rule(ok=st.sampled_from([True, False, None]))
    def the_probe_comes_back(self, ok: bool | None) -> None:
        assert self.probe is not None
        self.told(self.probe, ok)

    @precondition(lambda self: bool(self.running))
    @rule(which=WHICH, outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.LOST, Outcome.CANCELLED]))
    def an_attempt_ends_and_says_nothing(self, which: int, outcome: Outcome) -> None:
        token = sorted(self.running)[which % len(self.running)]
        assert self.connection.end(Ended(token, outcome)) == []
        self.running.remove(token)

    @rule(enabled=st.booleans())
    def an_operator_switches_it(self, enabled: bool) -> None:
        self.connection.run(store.resume_source("shop") if enabled else store.pause_source("shop"))
        self.enabled = enabled
        if enabled:
            self.streak, self.paused_until, self.probe = 0, None, None

    @invariant()
    def the_row_is_as_the_model(self) -> None:
        found = health(self.connection)
        names = ("enabled", "breaker", "failure_streak", "paused_until")
        assert [found[name] for name in names] == [self.enabled, self.state, self.streak, self.paused_until]
        assert self.connection.value("select probe from outlive.sources where name = 'shop'") == self.probe


@pytest.mark.timeout(400)
def test_the_breaker_follows_its_model_in_every_order(queue):
    run_histories(Breaker, queue, settings(SHORT, max_examples=30, stateful_step_count=50))


# What jobs find, and what they ask for next


def found(key: str, data: object, strength: float = 1.0, scope: str = "prices") -> dict[str, object]:
    return {"scope": scope, "key": key, "data": data, "strength": strength}


def complete(
    queue: Queue,
    claimed: Claimed,
    records: Sequence[object] = (),
    spawns: Sequence[object] = (),
    *,
    worker: UUID = WORKER,
) -> None:
    written, asked = (msgspec.json.encode(said) if said else None for said in (records, spawns))
    ended = Ended(claimed.token, Outcome.SUCCEEDED, result=b"1", records=written, spawns=asked)
    queue.run(store.write_end(worker, ended))


def kept(queue: Queue) -> dict[tuple[str, str, str], tuple[object, float]]:
    records = queue.run(store.list_records(limit=100))
    return {(one.scope, one.source, one.dedupe_key): (one.data, one.strength) for one in records}


def test_only_a_stronger_finding_takes_the_place_of_another(queue):
    queue.set_now()
    first = begin(queue)
    complete(queue, first, [found("a", 1, 0.5), found("b", 1)])
    queue.set_now(later_s=60)
    second = begin(queue)
    complete(queue, second, [found("a", 2, 0.6), found("b", 2)])
    third = begin(queue)
    complete(queue, third, [found("a", 3, 0.4)])
    assert kept(queue) == {("prices", "shop", "a"): (2, 0.6), ("prices", "shop", "b"): (1, 1.0)}
    stored = queue.row("select * from outlive.records where dedupe_key = 'a'")
    assert (stored["job_id"], stored["created_at"]) == (second.id, NOON)
    assert stored["updated_at"] == NOON + timedelta(seconds=60)


def test_scope_source_and_key_make_a_finding_and_of_two_in_one_job_the_stronger_is_kept(queue):
    complete(queue, begin(queue), [found("a", 1), found("a", 2, 2.0), found("a", 3, 1.5)])
    complete(queue, begin(queue), [found("a", 4, scope="names")])
    complete(queue, begin(queue, "bank"), [found("a", 5)])
    assert {where: data for where, (data, _) in kept(queue).items()} == {
        ("prices", "shop", "a"): 2,
        ("names", "shop", "a"): 4,
        ("prices", "bank", "a"): 5,
    }
    assert [one.data for one in queue.run(store.list_records(scope="names", limit=9))] == [4]
    assert [one.data for one in queue.run(store.list_records(source="bank", limit=9))] == [5]


def test_findings_next_jobs_and_success_are_written_together(queue):
    claimed = begin(queue)
    next_one, later = new_worker(), new_worker()
    spawns = [
        {"id": next_one, "task": "parse", "args": [1], "queue": "slow", "source": "bank", "priority": 2},
        {"id": later, "task": "parse", "delay_s": 60, "dedupe_key": "k", "options": {"max_losses": 9}},
    ]
    complete(queue, claimed, [found("a", 1)], spawns)
    assert queue.state_of(claimed.id) is State.SUCCEEDED
    assert len(kept(queue)) == 1
    made = queue.row("select * from outlive.jobs where id = %s", next_one)
    assert [made[name] for name in ("queue", "source", "priority", "args")] == ["slow", "bank", 2, [1]]
    made = queue.row("select * from outlive.jobs where id = %s", later)
    assert (made["dedupe_key"], made["options"]) == ("k", {"max_losses": 9})
    assert made["ready_at"] - made["created_at"] == timedelta(seconds=60)
    assert queue.value("select result from outlive.attempts") == 1
    assert_sound(queue)


@pytest.mark.parametrize(
    ("bad", "sqlstate"),
    [
        ({"task": "parse", "args": [1], "dedupe_key": "taken", "on_conflict": "raise"}, "OL001"),
        ({"task": "parse", "args": 1}, "23514"),
        ({"task": "", "args": []}, "23514"),
    ],
)
def test_a_next_job_that_cannot_be_made_undoes_all_of_it(queue, bad, sqlstate):
    queue.make("parse", dedupe_key="taken")
    claimed = begin(queue)
    before = [queue.count(table) for table in ("jobs", "waiting", "running", "attempts", "records")]
    good = {"id": new_worker(), "task": "before", "args": []}
    with pytest.raises(psycopg.Error) as raised:
        complete(queue, claimed, [found("a", 1)], [good, {"id": new_worker(), **bad}])
    assert raised.value.sqlstate == sqlstate
    assert [queue.count(table) for table in ("jobs", "waiting", "running", "attempts", "records")] == before
    assert queue.state_of(claimed.id) is State.RUNNING


def test_jobs_that_find_the_same_in_opposite_orders_never_wait_in_a_circle(connect):
    holder = connect()
    complete(holder, begin(holder), [found("m", 0, 0.1)])

    def finding(keys: str) -> Callable[[Queue], object]:
        job = begin(holder)
        return lambda queue: complete(queue, job, [found(key, 1) for key in keys])

    act_in_opposite_orders(connect, "records", finding("amz"), finding("zma"))
    assert len(kept(holder)) == 3
