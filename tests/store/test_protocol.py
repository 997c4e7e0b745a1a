"""The protocol for workers in other languages, by a role that may call its functions and nothing else."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outlive import db, migrate, store
from outlive.model import SourceLimits
from outlive.states import State
from tests.driving.databases import session
from tests.driving.making import (
    counters,
    hold_of,
    let_time_pass,
    make,
    make_ready,
    new_worker,
    register_task,
    row,
    row_of,
    set_now,
    state_of,
    value,
    values,
)
from tests.store.acting import clear
from tests.store.noon import database_url
from tests.waiting import eventually

__all__ = ["database_url"]

STALE, BAD, NOT_ALIVE = "OL002", "OL003", "OL006"


class Foreign:
    """A worker that only knows the functions."""

    def __init__(self, connection: db.Connection, slots: int = 4, **more: Any) -> None:
        self.connection = connection
        self.id: UUID = self.call("register", name="node", tasks=["work"], slots=slots, **more)

    def call(self, function: str, **arguments: Any) -> Any:
        return value(self.connection, *_called(function, arguments))

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
def theirs(connection: db.Connection, database_url: str) -> Iterator[db.Connection]:
    clear(connection)
    with session(connection, database_url, "outlive_protocol") as one:
        yield one


@pytest.fixture
def foreign(theirs: db.Connection) -> Foreign:
    return Foreign(theirs)


def declare_dead(connection: db.Connection, worker: UUID) -> None:
    connection.execute("update outlive.workers set state = 'dead' where id = %s", [worker])
    db.run(connection, store.reap())


def test_no_setting_of_a_session_moves_the_clock_by_which_leases_end(empty_database_url: str) -> None:
    with db.connect(empty_database_url) as admin:
        migrate.migrate(admin, roles=True)
        job = make(admin)
        with session(admin, empty_database_url, "outlive_protocol") as one:
            one.execute("set outlive.now = '2100-01-01'")
            foreign = Foreign(one)
            foreign.renew(foreign.token())
        left = value(admin, "select lease_until - now() from outlive.running where id = %s", job)
        assert timedelta(minutes=4) < left < timedelta(minutes=6)


def test_a_job_is_claimed_with_all_its_arguments_and_ends_with_a_result(
    connection: db.Connection, foreign: Foreign
) -> None:
    long = "x" * 100_000  # A Python worker's claim does not carry as much.
    job = make(connection, args=b'{"long": "%s"}' % long.encode())
    make(connection, "another task")
    [(token, id, task, args, attempt, lease_until, secret)] = foreign.claim(10)
    assert (id, task, attempt, args, len(secret)) == (job, "work", 1, {"long": long}, 32)
    assert lease_until - value(connection, "select now()") > timedelta(minutes=4)
    assert state_of(connection, job) is State.RUNNING
    foreign.succeed(token, result='{"n": 1}', spawns='[{"task": "next"}]')
    assert row_of(connection, job)["state"] == State.SUCCEEDED
    assert value(connection, "select result::text from outlive.attempts where job_id = %s", job) == '{"n": 1}'
    assert value(connection, "select count(*) from outlive.waiting where task = 'next'") == 1


def test_a_job_can_be_completed_with_the_secret_of_its_attempt(connection: db.Connection, foreign: Foreign) -> None:
    job = make(connection)
    [(token, *_, secret)] = foreign.claim()
    connection.execute("select outlive.complete(%s, %s)", [token, secret])
    assert state_of(connection, job) is State.SUCCEEDED


def test_a_worker_claims_by_priority_and_no_more_than_its_slots(connection: db.Connection, foreign: Foreign) -> None:
    db.run(connection, store.register_sources([SourceLimits("shop", rate_limit_per_minute=60, burst=2)]))
    low, _ = make(connection, priority=9), make(connection, priority=9)
    sourced = [make(connection, priority=3, source="shop") for _ in range(3)]
    urgent = make(connection, priority=0)
    make(connection, queue="paused")
    db.run(connection, store.pause_queue("paused"))
    assert [id for _, id, *_ in foreign.claim(1)] == [urgent]
    assert [id for _, id, *_ in foreign.claim(100)] == [*sourced[:2], low]
    assert foreign.claim(100) == []


def test_the_ends_of_jobs_open_the_breaker_of_their_source(connection: db.Connection, foreign: Foreign) -> None:
    db.run(connection, store.register_sources([SourceLimits("shop", breaker_failures=2)]))
    for _ in range(4):
        make(connection, source="shop")
    streak = "select failure_streak from outlive.sources"
    foreign.fail(foreign.token())
    assert value(connection, streak) == 1
    foreign.succeed(foreign.token())
    assert value(connection, streak) == 0
    foreign.fail(foreign.token(), outcome="timed_out")
    foreign.fail(foreign.token())
    assert value(connection, streak) == 2
    make_ready(connection)
    assert foreign.claim(4) == []


def test_a_stale_worker_can_neither_end_nor_keep_its_attempt(
    connection: db.Connection, foreign: Foreign, theirs: db.Connection
) -> None:
    job = make(connection)
    token = foreign.token()
    declare_dead(connection, foreign.id)
    other = Foreign(theirs)
    second = other.token()
    for function in ("succeed", "fail", "inputs_of"):
        said = refused(STALE, foreign, function, worker=foreign.id, token=token)
        assert said == f"attempt {token} is no longer this worker's: it was given up or has ended"
        refused(STALE, foreign, function, worker=foreign.id, token=second)
    for function in ("claim", "renew"):
        assert "register again" in refused(NOT_ALIVE, foreign, function, worker=foreign.id)
    assert other.renew(token, second) == {token: "lost", second: "keep"}
    other.succeed(second)
    refused(STALE, other, "succeed", worker=other.id, token=second)
    refused(STALE, other, "fail", worker=other.id, token=second)
    assert values(connection, "select outcome from outlive.attempts order by attempt") == ["lost", "succeeded"]
    assert state_of(connection, job) is State.SUCCEEDED


def test_a_success_commits_with_what_the_job_has_written(connection: db.Connection, foreign: Foreign) -> None:
    job = make(connection)
    token = foreign.token()
    with foreign.connection.transaction(force_rollback=True):
        foreign.succeed(token)
    assert (state_of(connection, job), foreign.renew(token)) == (State.RUNNING, {token: "keep"})
    with foreign.connection.transaction():
        foreign.succeed(token)
        meanwhile = "select verdict from outlive.renew(%s, %s)"
        assert values(connection, meanwhile, foreign.id, [token]) == ["keep"]
    assert state_of(connection, job) is State.SUCCEEDED


def test_failures_are_retried_as_the_limits_of_the_job_say(connection: db.Connection, foreign: Foreign) -> None:
    register_task(connection, max_attempts=2, max_crashes=2)
    job = make(connection)
    assert foreign.fail(foreign.token(), error="no " * 9000, after="1 hour") == State.RETRYABLE
    assert value(connection, "select ready_at - now() > '59 minutes' from outlive.waiting")
    make_ready(connection)
    assert foreign.fail(foreign.token(), outcome="released") == State.RETRYABLE
    assert foreign.fail(foreign.token(), outcome="failed") == State.FAILED
    killer = make(connection)
    crash = {"outcome": "crashed", "exit_code": -11, "signal": "SIGSEGV", "output": "opening", "stack": "in parse"}
    assert foreign.fail(foreign.token(), **crash) == State.RETRYABLE
    make_ready(connection)
    assert foreign.fail(foreign.token(), outcome="out_of_memory", signal="SIGKILL") == State.QUARANTINED
    assert (counters(connection, job), counters(connection, killer)) == ((2, 0, 0), (0, 2, 0))
    first = row(connection, "select * from outlive.attempts where outcome = 'crashed'")
    assert (first["signal"], first["output"], first["stack"]) == ("SIGSEGV", "opening", "in parse")
    assert (first["worker"], first["worker_name"]) == (foreign.id, "node")
    final = make(connection)
    assert foreign.fail(foreign.token(), retry=False) == State.FAILED == state_of(connection, final)


def test_a_known_killer_is_quarantined_under_another_id(connection: db.Connection, foreign: Foreign) -> None:
    register_task(connection, max_crashes=1, quarantine_by="fingerprint")
    make(connection, args=b"[1]")
    foreign.fail(foreign.token(), outcome="crashed")
    again, other = make(connection, args=b"[1]"), make(connection, args=b"[2]")
    assert [id for _, id, *_ in foreign.claim(4)] == [other]
    assert state_of(connection, again) is State.QUARANTINED


def test_a_worker_is_told_of_cancelled_jobs_and_of_a_drain(connection: db.Connection, foreign: Foreign) -> None:
    job = make(connection)
    token = foreign.token()
    db.run(connection, store.cancel([job]))
    assert foreign.renew(token) == {token: "cancel"}
    assert foreign.fail(token, outcome="cancelled", error="on request") == State.CANCELLED
    db.run(connection, store.drain_workers("node"))
    make(connection)
    assert foreign.claim() == []
    assert foreign.renew() == {None: "drain"}


def test_a_worker_that_says_goodbye_gives_back_its_jobs_at_no_cost(connection: db.Connection, foreign: Foreign) -> None:
    jobs = [make(connection) for _ in range(3)]
    foreign.claim(3)
    assert foreign.call("goodbye", worker=foreign.id) == 3
    assert [counters(connection, job) for job in jobs] == [(0, 0, 0)] * 3
    assert values(connection, "select distinct outcome from outlive.attempts") == ["released"]
    assert value(connection, "select state from outlive.workers") == "stopped"
    assert values(connection, "select worker from outlive.missing_locks") == []
    refused(NOT_ALIVE, foreign, "claim", worker=foreign.id)
    assert foreign.call("goodbye", worker=foreign.id) == 0


def test_the_death_of_a_draining_worker_costs_its_jobs_nothing(connection: db.Connection, foreign: Foreign) -> None:
    job = make(connection)
    token = foreign.token()
    foreign.rows("renew", worker=foreign.id, tokens=[token], draining=True)
    assert foreign.claim() == []
    declare_dead(connection, foreign.id)
    assert counters(connection, job) == (0, 0, 0)


def test_jobs_that_ran_when_workers_died_are_suspects_and_run_alone(
    connection: db.Connection, theirs: db.Connection
) -> None:
    """Of two jobs that ran together in two workers that died, each runs alone; the innocent one is cleared."""
    jobs = {make(connection), make(connection)}
    for _ in range(2):
        victim = Foreign(theirs)
        assert {id for _, id, *_ in victim.claim(4)} == jobs
        declare_dead(connection, victim.id)
    assert all(hold and hold[0] == "suspect" for hold in (hold_of(connection, job) for job in jobs))
    last = Foreign(theirs)
    [(token, innocent, *_)] = last.claim(4)
    make(connection)
    assert last.claim(4) == []  # Nothing starts beside a suspect,
    set_now(theirs, value(connection, "select now()"), later_s=4)
    assert len(last.claim(4)) == 1  # but another job waits for three seconds at most.
    last.succeed(token)
    last.call("goodbye", worker=last.id)
    (killer,) = jobs - {innocent}
    connection.execute("delete from outlive.waiting")
    for _ in range(2):
        lonely = Foreign(theirs)
        assert [id for _, id, *_ in lonely.claim(4)] == [killer]
        declare_dead(connection, lonely.id)
    assert (state_of(connection, killer), state_of(connection, innocent)) == (State.QUARANTINED, State.SUCCEEDED)


def test_the_end_of_the_session_shows_that_the_worker_is_dead(
    connection: db.Connection,
    database_url: str,
    theirs: db.Connection,
) -> None:
    absent = "select worker from outlive.missing_locks"
    with session(connection, database_url, "outlive_protocol") as dying:
        worker = Foreign(dying)
        assert values(connection, absent) == []
        Foreign(dying, worker=worker.id)
        locks = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
        assert value(connection, locks, dying.info.backend_pid) == 1
    eventually(lambda: values(connection, absent) == [worker.id], what="the lock is missing")
    Foreign(theirs, worker=worker.id)  # It was only the connection.
    assert values(connection, absent) == []
    pooled = Foreign(theirs, liveness=False)
    assert value(connection, "select watched from outlive.workers where id = %s", pooled.id) is False


def test_a_worker_that_was_wrongly_declared_dead_takes_back_the_losses(
    connection: db.Connection, foreign: Foreign, theirs: db.Connection
) -> None:
    job = make(connection)
    foreign.claim()
    declare_dead(connection, foreign.id)
    assert counters(connection, job) == (0, 0, 1)
    refused(NOT_ALIVE, foreign, "register", name="node", tasks=["work"], worker=foreign.id)
    Foreign(theirs, formerly=foreign.id)
    assert counters(connection, job) == (0, 0, 0)


def test_one_death_is_taken_back_once_however_often_its_worker_registers(
    connection: db.Connection, foreign: Foreign, theirs: db.Connection
) -> None:
    register_task(connection, max_losses=9)
    job = make(connection)
    foreign.claim()
    connection.execute("update outlive.running set losses = 1")  # An earlier death, which stays charged.
    declare_dead(connection, foreign.id)
    assert counters(connection, job) == (0, 0, 2)
    let_time_pass(connection)
    for _ in range(3):
        Foreign(theirs, formerly=foreign.id)
    assert counters(connection, job) == (0, 0, 1)


def test_a_job_gets_the_results_of_the_jobs_that_it_waited_for(connection: db.Connection, foreign: Foreign) -> None:
    first, second = make(connection), make(connection)
    links = b'{"after": ["%s", "%s"]}' % (str(second).encode(), str(first).encode())
    make(connection, links=links)
    foreign.succeed(foreign.token(), result="[1]")
    foreign.succeed(foreign.token(), result="null")
    token = foreign.token()
    assert foreign.rows("inputs_of", worker=foreign.id, token=token) == [(None,), ([1],)]


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
    ("succeed", {"token": 0, "result": "1e400"}),
    ("succeed", {"token": 0, "result": '{"a": [-1E+0400]}'}),
    ("succeed", {"token": 0, "result": 5000 * "9"}),
    ("succeed", {"token": 0, "result": 3000 * "[" + 3000 * "]"}),
    ("succeed", {"token": 0, "result": 600 * '{"a":' + "1" + 600 * "}"}),
    ("succeed", {"token": 0, "records": f'[{{"scope": "s", "key": "k", "data": {600 * "["}{600 * "]"}}}]'}),
    ("succeed", {"token": 0, "result": '"' + 17_000_000 * "x" + '"'}),
]


def test_bad_input_is_refused_and_loses_nothing(connection: db.Connection, foreign: Foreign) -> None:
    job = make(connection)
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
    assert (state_of(connection, job), foreign.renew(token)) == (State.RUNNING, {token: "keep"})
    assert values(connection, "select name from outlive.workers") == ["node"]
    foreign.succeed(token)
