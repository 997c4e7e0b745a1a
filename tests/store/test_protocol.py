"""The protocol for workers in other languages, by a role that may call its functions and nothing else."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outlive import migrate, store
from outlive.model import SourceLimits
from outlive.states import State
from tests.driving.databases import session
from tests.driving.making import Queue, new_worker
from tests.store.acting import clear
from tests.store.noon import database_url
from tests.waiting import eventually

__all__ = ["database_url"]

STALE, BAD, NOT_ALIVE = "OL002", "OL003", "OL006"


class Foreign:
    """A worker that only knows the functions."""

    def __init__(self, connection: Queue, slots: int = 4, **more: Any) -> None:
        self.connection = connection
        self.id: UUID = self.call("register", name="node", tasks=["work"], slots=slots, **more)

    def call(self, function: str, **arguments: Any) -> Any:
        return self.connection.value(*_called(function, arguments))

    def rows(self, function: str, **arguments: Any) -> list[tuple[Any, ...]]:
        query, *values = _called(function, arguments)
        return self.connection.execute(query.replace("select", "select * from", 1).encode(), values).fetchall()

    def claim(self, most: int = 1) -> list[tuple[Any, ...]]:
        return self.rows("claim", worker=self.id, most=most)

    def token(self) -> int:
        [(token, *_)] = self.claim()
        return int(token)

    def renew(self, *tokens: int) -> dict[int | None, str]:
        return dict(self.rows("renew", worker=self.id, tokens=list(tokens)))

    def succeed(self, token: int, **more: Any) -> None:
        self.call("succeed", worker=self.id, token=token, **more)

    def keep(self, token: int, step: str, **more: Any) -> Any:
        return self.call("keep_step", worker=self.id, token=token, step=step, **more)

    def fail(self, token: int, **more: Any) -> str:
        return str(self.call("fail", worker=self.id, token=token, **more))


def _called(function: str, arguments: dict[str, Any]) -> tuple[Any, ...]:
    named = ", ".join(f"{name} => %s" for name in arguments)
    return (f"select outlive.{function}({named})", *arguments.values())


def refused(sqlstate: str, foreign: Foreign, function: str, **arguments: Any) -> str:
    """What the function says when it refuses with this code."""
    with pytest.raises(psycopg.Error) as caught:
        foreign.call(function, **arguments)
    assert caught.value.sqlstate == sqlstate, caught.value
    return str(caught.value.diag.message_primary)


@pytest.fixture
def theirs(queue: Queue, database_url: str) -> Iterator[Queue]:
    clear(queue)
    with session(queue, database_url, "outlive_protocol") as one:
        yield one


@pytest.fixture
def foreign(theirs: Queue) -> Foreign:
    return Foreign(theirs)


def declare_dead(queue: Queue, worker: UUID) -> None:
    queue.execute("update outlive.workers set state = 'dead' where id = %s", [worker])
    queue.run(store.reap())


def test_no_setting_of_a_session_moves_the_clock_by_which_leases_end(empty_database_url):
    with Queue.at(empty_database_url) as admin:
        migrate.migrate(admin, roles=True)
        job = admin.make()
        with session(admin, empty_database_url, "outlive_protocol") as one:
            one.execute("set outlive.now = '2100-01-01'")
            foreign = Foreign(one)
            foreign.renew(foreign.token())
        left = admin.value("select lease_until - now() from outlive.running where id = %s", job)
        assert timedelta(minutes=4) < left < timedelta(minutes=6)


def test_a_job_is_claimed_with_all_its_arguments_and_ends_with_a_result(queue, foreign):
    long = "x" * 100_000  # A Python worker's claim does not carry as much.
    job = queue.make(args=b'{"long": "%s"}' % long.encode())
    queue.make("another task")
    [(token, id, task, args, attempt, lease_until, secret)] = foreign.claim(10)
    assert (id, task, attempt, args, len(secret)) == (job, "work", 1, {"long": long}, 32)
    assert lease_until - queue.value("select now()") > timedelta(minutes=4)
    assert queue.state_of(job) is State.RUNNING
    foreign.succeed(token, result='{"n": 1}', spawns='[{"task": "next"}]')
    assert queue.row_of(job)["state"] == State.SUCCEEDED
    assert queue.value("select result::text from outlive.attempts where job_id = %s", job) == '{"n": 1}'
    assert queue.value("select count(*) from outlive.waiting where task = 'next'") == 1


def test_a_worker_claims_by_priority_and_no_more_than_its_slots(queue, foreign):
    queue.run(store.register_sources([SourceLimits("shop", rate_limit_per_minute=60, burst=2)]))
    low, _ = queue.make(priority=9), queue.make(priority=9)
    sourced = [queue.make(priority=3, source="shop") for _ in range(3)]
    urgent = queue.make(priority=0)
    queue.make(queue="paused")
    queue.run(store.pause_queue("paused"))
    assert [id for _, id, *_ in foreign.claim(1)] == [urgent]
    assert [id for _, id, *_ in foreign.claim(100)] == [*sourced[:2], low]
    assert foreign.claim(100) == []


def test_the_ends_of_jobs_open_the_breaker_of_their_source(queue, foreign):
    queue.run(store.register_sources([SourceLimits("shop", breaker_failures=2)]))
    for _ in range(4):
        queue.make(source="shop")
    streak = "select failure_streak from outlive.sources"
    foreign.fail(foreign.token())
    assert queue.value(streak) == 1
    foreign.succeed(foreign.token())
    assert queue.value(streak) == 0
    foreign.fail(foreign.token(), outcome="timed_out")
    foreign.fail(foreign.token())
    assert queue.value(streak) == 2
    queue.make_ready()
    assert foreign.claim(4) == []


def test_a_stale_worker_can_neither_end_nor_keep_its_attempt(queue, foreign, theirs):
    job = queue.make()
    token = foreign.token()
    declare_dead(queue, foreign.id)
    other = Foreign(theirs)
    second = other.token()
    for function in ("succeed", "fail", "inputs_of", "kept_steps", "keep_step", "wait_in"):
        step = {"step": "charge"} if function in ("keep_step", "wait_in") else {}
        step |= {"signal": "go"} if function == "wait_in" else {}
        said = refused(STALE, foreign, function, worker=foreign.id, token=token, **step)
        assert said == f"attempt {token} is no longer this worker's: it was given up or has ended"
        refused(STALE, foreign, function, worker=foreign.id, token=second, **step)
    for function in ("claim", "renew"):
        assert "register again" in refused(NOT_ALIVE, foreign, function, worker=foreign.id)
    assert other.renew(token, second) == {token: "lost", second: "keep"}
    other.succeed(second)
    refused(STALE, other, "succeed", worker=other.id, token=second)
    refused(STALE, other, "fail", worker=other.id, token=second)
    assert queue.values("select outcome from outlive.attempts order by attempt") == ["lost", "succeeded"]
    assert queue.state_of(job) is State.SUCCEEDED
    assert queue.run(store.steps_of(job)) == []


def test_a_success_commits_with_what_the_job_has_written(queue, foreign):
    job = queue.make()
    token = foreign.token()
    with foreign.connection.transaction(force_rollback=True):
        foreign.succeed(token)
    assert (queue.state_of(job), foreign.renew(token)) == (State.RUNNING, {token: "keep"})
    with foreign.connection.transaction():
        foreign.succeed(token)
        meanwhile = "select verdict from outlive.renew(%s, %s)"
        assert queue.values(meanwhile, foreign.id, [token]) == ["keep"]
    assert queue.state_of(job) is State.SUCCEEDED


def test_failures_are_retried_as_the_limits_of_the_job_say(queue, foreign):
    queue.register_task(max_attempts=2, max_crashes=2)
    job = queue.make()
    assert foreign.fail(foreign.token(), error="no " * 9000, after="1 hour") == State.RETRYABLE
    assert queue.value("select ready_at - now() > '59 minutes' from outlive.waiting")
    queue.make_ready()
    assert foreign.fail(foreign.token(), outcome="released") == State.RETRYABLE
    assert foreign.fail(foreign.token(), outcome="failed") == State.FAILED
    killer = queue.make()
    crash = {"outcome": "crashed", "exit_code": -11, "signal": "SIGSEGV", "output": "opening", "stack": "in parse"}
    assert foreign.fail(foreign.token(), **crash) == State.RETRYABLE
    queue.make_ready()
    assert foreign.fail(foreign.token(), outcome="out_of_memory", signal="SIGKILL") == State.QUARANTINED
    assert (queue.counters(job), queue.counters(killer)) == ((2, 0, 0), (0, 2, 0))
    first = queue.row("select * from outlive.attempts where outcome = 'crashed'")
    assert (first["signal"], first["output"], first["stack"]) == ("SIGSEGV", "opening", "in parse")
    assert (first["worker"], first["worker_name"]) == (foreign.id, "node")
    final = queue.make()
    assert foreign.fail(foreign.token(), retry=False) == State.FAILED == queue.state_of(final)


def test_a_known_killer_is_quarantined_under_another_id(queue, foreign):
    queue.register_task(max_crashes=1, quarantine_by="fingerprint")
    queue.make(args=b"[1]")
    foreign.fail(foreign.token(), outcome="crashed")
    again, other = queue.make(args=b"[1]"), queue.make(args=b"[2]")
    assert [id for _, id, *_ in foreign.claim(4)] == [other]
    assert queue.state_of(again) is State.QUARANTINED


def test_a_worker_is_told_of_cancelled_jobs_and_of_a_drain(queue, foreign):
    job = queue.make()
    token = foreign.token()
    queue.run(store.cancel([job]))
    assert foreign.renew(token) == {token: "cancel"}
    assert foreign.fail(token, outcome="cancelled", error="on request") == State.CANCELLED
    queue.run(store.drain_workers("node"))
    queue.make()
    assert foreign.claim() == []
    assert foreign.renew() == {None: "drain"}


def test_a_worker_that_says_goodbye_gives_back_its_jobs_at_no_cost(queue, foreign):
    jobs = [queue.make() for _ in range(3)]
    foreign.claim(3)
    assert foreign.call("goodbye", worker=foreign.id) == 3
    assert [queue.counters(job) for job in jobs] == [(0, 0, 0)] * 3
    assert queue.values("select distinct outcome from outlive.attempts") == ["released"]
    assert queue.value("select state from outlive.workers") == "stopped"
    assert queue.values("select worker from outlive.missing_locks") == []
    refused(NOT_ALIVE, foreign, "claim", worker=foreign.id)
    assert foreign.call("goodbye", worker=foreign.id) == 0


def test_jobs_that_ran_when_workers_died_are_suspects_and_run_alone(queue, theirs):
    """Of two jobs that ran together in two workers that died, each runs alone; the innocent one is cleared."""
    jobs = {queue.make(), queue.make()}
    for _ in range(2):
        victim = Foreign(theirs)
        assert {id for _, id, *_ in victim.claim(4)} == jobs
        declare_dead(queue, victim.id)
    assert all(hold and hold[0] == "suspect" for hold in (queue.hold_of(job) for job in jobs))
    last = Foreign(theirs)
    [(token, innocent, *_)] = last.claim(4)
    queue.make()
    assert last.claim(4) == []  # Nothing starts beside a suspect,
    theirs.set_now(queue.value("select now()"), later_s=4)
    assert len(last.claim(4)) == 1  # but another job waits for three seconds at most.
    last.succeed(token)
    last.call("goodbye", worker=last.id)
    (killer,) = jobs - {innocent}
    queue.execute("delete from outlive.waiting")
    for _ in range(2):
        lonely = Foreign(theirs)
        assert [id for _, id, *_ in lonely.claim(4)] == [killer]
        declare_dead(queue, lonely.id)
    assert (queue.state_of(killer), queue.state_of(innocent)) == (State.QUARANTINED, State.SUCCEEDED)


def test_the_end_of_the_session_shows_that_the_worker_is_dead(queue, database_url, theirs):
    absent = "select worker from outlive.missing_locks"
    with session(queue, database_url, "outlive_protocol") as dying:
        worker = Foreign(dying)
        assert queue.values(absent) == []
        Foreign(dying, worker=worker.id)
        locks = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
        assert queue.value(locks, dying.info.backend_pid) == 1
    eventually(lambda: queue.values(absent) == [worker.id], what="the lock is missing")
    Foreign(theirs, worker=worker.id)  # It was only the connection.
    assert queue.values(absent) == []
    pooled = Foreign(theirs, liveness=False)
    assert queue.value("select watched from outlive.workers where id = %s", pooled.id) is False


def test_a_worker_that_was_wrongly_declared_dead_takes_back_the_losses(queue, foreign, theirs):
    job = queue.make()
    foreign.claim()
    declare_dead(queue, foreign.id)
    assert queue.counters(job) == (0, 0, 1)
    refused(NOT_ALIVE, foreign, "register", name="node", tasks=["work"], worker=foreign.id)
    Foreign(theirs, formerly=foreign.id)
    assert queue.counters(job) == (0, 0, 0)


def test_a_job_gets_the_results_of_the_jobs_that_it_waited_for(queue, foreign):
    first, second = queue.make(), queue.make()
    links = b'{"after": ["%s", "%s"]}' % (str(second).encode(), str(first).encode())
    queue.make(links=links)
    foreign.succeed(foreign.token(), result="[1]")
    foreign.succeed(foreign.token(), result="null")
    token = foreign.token()
    assert foreign.rows("inputs_of", worker=foreign.id, token=token) == [(None,), ([1],)]


def test_a_step_is_kept_for_the_next_attempt_in_any_language_and_the_first_value_wins(queue, foreign):
    job = queue.make()
    foreign.fail(foreign.token(), after="0 seconds")
    token = foreign.token()
    assert foreign.keep(token, "charge", value="[1]", took="2 seconds") == [1]
    assert foreign.keep(token, "label") is None
    assert foreign.keep(token, "charge", value="[2]") == [1]
    assert foreign.rows("kept_steps", worker=foreign.id, token=token) == [("charge", [1]), ("label", None)]
    assert queue.counters(job) == (0, 0, 0)
    foreign.fail(token, after="0 seconds")
    queue.claim_job(job)
    assert queue.run(store.kept_by_jobs([job]))[job] == b'[["charge", [1], null], ["label", null, null]]'
    assert [(row["attempt"], row["took_s"]) for row in queue.run(store.steps_of(job))] == [(2, 2.0), (2, None)]


def test_a_job_in_another_language_waits_for_a_time_and_its_next_attempt_finds_the_wait(queue, foreign):
    job = queue.make()
    token = foreign.token()
    assert foreign.rows("wait_in", worker=foreign.id, token=token, step="sleep", after="0 seconds") == [
        ("suspended", None)
    ]
    assert queue.state_of(job) is State.SUSPENDED
    queue.run(store.end_due())
    token = foreign.token()
    assert foreign.rows("kept_steps", worker=foreign.id, token=token) == [("sleep", None)]
    assert foreign.rows("wait_in", worker=foreign.id, token=token, step="sleep", after="1 day") == [("over", None)]
    foreign.succeed(token)
    assert queue.state_of(job) is State.SUCCEEDED


def test_a_job_in_another_language_receives_what_was_sent_before_and_after_it_waits(queue, foreign):
    job = queue.make()
    token = foreign.token()
    queue.run(store.send(job, "packed", b"[1]"))
    assert foreign.rows("wait_in", worker=foreign.id, token=token, step="receive:packed", signal="packed") == [
        ("over", [1])
    ]
    again = {"worker": foreign.id, "step": "receive:packed#2", "signal": "packed", "after": "1 day"}
    assert foreign.rows("wait_in", token=token, **again) == [("suspended", None)]
    queue.run(store.send(job, "packed", b"[2]"))
    token = foreign.token()
    kept = foreign.rows("kept_steps", worker=foreign.id, token=token)
    assert kept == [("receive:packed", [1]), ("receive:packed#2", [2])]


REGISTERED: dict[str, Any] = {"name": "node", "tasks": ["work"]}
BAD_INPUT: list[tuple[str, dict[str, Any]]] = [
    ("register", {**REGISTERED, "name": ""}),
    ("register", {**REGISTERED, "name": None}),
    ("register", {**REGISTERED, "tasks": []}),
    ("register", {**REGISTERED, "tasks": ["x" * 201]}),
    ("register", {**REGISTERED, "tasks": ["work", None]}),
    ("register", {**REGISTERED, "queues": []}),
    ("register", {**REGISTERED, "slots": 0}),
    ("register", {**REGISTERED, "slots": None}),
    ("register", {**REGISTERED, "pid": -1}),
    ("register", {**REGISTERED, "formerly": UUID(int=7)}),
    ("claim", {"most": 0}),
    ("claim", {"most": None}),
    ("claim", {"lease": "0 seconds"}),
    ("claim", {"lease": "10 years"}),
    ("renew", {"tokens": None}),
    ("renew", {"tokens": [1, None]}),
    ("renew", {"tokens": [1], "lease": "-1 hour"}),
    ("fail", {"token": 0, "outcome": "succeeded"}),
    ("fail", {"token": 0, "outcome": "lost"}),
    ("fail", {"token": 0, "outcome": None}),
    ("fail", {"token": 0, "retry": None}),
    ("fail", {"token": 0, "after": "-1 hour"}),
    ("fail", {"token": 0, "cpu_s": "NaN"}),
    ("fail", {"token": 0, "cpu_s": "Infinity"}),
    ("fail", {"token": 0, "cpu_s": -1e300}),
    ("fail", {"token": 0, "peak_memory_bytes": -1}),
    ("keep_step", {"token": 0, "step": None}),
    ("keep_step", {"token": 0, "step": 1001 * "x"}),
    ("keep_step", {"token": 0, "step": "charge", "took": "-1 second"}),
    ("keep_step", {"token": 0, "step": "charge", "value": "1e400"}),
    ("keep_step", {"token": 0, "step": "charge", "value": '"' + 17_000_000 * "x" + '"'}),
    ("wait_in", {"token": 0, "step": "sleep"}),
    ("wait_in", {"token": 0, "step": "sleep", "after": "-1 second"}),
    ("wait_in", {"token": 0, "step": "receive:", "signal": ""}),
    ("wait_in", {"token": 0, "step": "receive:go", "signal": "go, home"}),
    ("succeed", {"token": 0, "result": "1e400"}),
    ("succeed", {"token": 0, "result": '{"a": [-1E+0400]}'}),
    ("succeed", {"token": 0, "result": 5000 * "9"}),
    ("succeed", {"token": 0, "result": 3000 * "[" + 3000 * "]"}),
    ("succeed", {"token": 0, "result": 600 * '{"a":' + "1" + 600 * "}"}),
    ("succeed", {"token": 0, "records": f'[{{"scope": "s", "key": "k", "data": {600 * "["}{600 * "]"}}}]'}),
    ("succeed", {"token": 0, "result": '"' + 17_000_000 * "x" + '"'}),
]


def test_bad_input_is_refused_and_loses_nothing(queue, foreign):
    job = queue.make()
    token = foreign.token()
    for function, arguments in BAD_INPUT:
        mine = {} if function == "register" else {"worker": foreign.id}
        known = {"token": token} if "token" in arguments else {}
        said = refused(BAD, foreign, function, **{**mine, **arguments, **known})
        assert said, arguments
    for result in ("{", '"\\u0000"', '"\\ud800"'):
        with pytest.raises(psycopg.DataError):
            foreign.succeed(token, result=result)
    for records in ("3", '[{"scope": "s"}]', '[{"scope": "s", "key": "k", "data": 1}]'):
        with pytest.raises(psycopg.Error):
            foreign.succeed(token, records=records)
    with pytest.raises(psycopg.Error):
        foreign.succeed(token, spawns='[{"task": ""}]')
    refused(STALE, foreign, "fail", worker=foreign.id, token=None)
    refused(NOT_ALIVE, foreign, "claim", worker=None)
    refused(NOT_ALIVE, foreign, "renew", worker=new_worker())
    assert (queue.state_of(job), foreign.renew(token)) == (State.RUNNING, {token: "keep"})
    assert queue.values("select name from outlive.workers") == ["node"]
    foreign.succeed(token)
