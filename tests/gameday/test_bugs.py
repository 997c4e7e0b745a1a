"""Bugs put into a real database: the checker reads what they leave there, and names them."""

from collections.abc import Callable
from uuid import UUID

import pytest

from outlive import db, store
from outlive.gameday import checker, jobs, tables
from outlive.gameday.asked import Bounds
from outlive.gameday.history import Answer, Ask, Fault, History, Kind
from outlive.model import Claimed, Ended
from outlive.states import Outcome
from tests.store import making

TASK = jobs.pay.name
DEAD, ALIVE = UUID(int=1 << 64), UUID(int=2 << 64)


class Play:
    """Two workers of which one dies, played by hand on one connection."""

    def __init__(self, connection: db.Connection) -> None:
        self.connection = connection
        self.history = History()
        tables.make(connection, force=False)
        db.run(connection, store.register_tasks([making.limits(TASK, max_losses=None)]))
        for id, name in ((DEAD, "gameday-dead"), (ALIVE, "gameday-alive")):
            making.register_worker(connection, id, name=name)

    def ask(self) -> UUID:
        id = making.make(self.connection, TASK)
        self.history.asks.append(Ask(id, Answer.OK))
        return id

    def claim(self, worker: UUID, *, lease_s: float = 300.0) -> Claimed:
        [claimed] = making.claim(self.connection, [making.lane(TASK)], worker=worker, limit=1, lease_s=lease_s)
        self.connection.execute("insert into outlive_gameday.starts values (%s, 1)", [claimed.token])
        return claimed

    def complete(self, claimed: Claimed, worker: UUID) -> None:
        """As a job does it: the effect and the completion in one transaction."""
        with self.connection.transaction():
            self.connection.execute("insert into outlive_gameday.effects values (%s, %s)", [claimed.id, claimed.token])
            self.connection.execute("select outlive.complete(%s, %s)", [claimed.token, worker])

    def kill(self) -> None:
        [(now_s,)] = self.connection.execute("select extract(epoch from clock_timestamp())::float8").fetchall()
        self.history.faults.append(Fault(kind=Kind.SUPERVISOR, at_s=now_s, worker="gameday-dead"))

    def broken(self) -> set[str]:
        found = tables.read(self.connection, names="gameday-")
        return {breach.rule for breach in checker.check(self.history, found, Bounds())}


@pytest.fixture
def play(connection: db.Connection) -> Play:
    return Play(connection)


def lose_one(play: Play) -> Claimed:
    """A job's first attempt, lost with its worker."""
    play.ask()
    first = play.claim(DEAD, lease_s=0.0)
    play.kill()
    assert db.run(play.connection, store.expire())
    return first


def test_without_a_bug_nothing_is_found(play: Play) -> None:
    lose_one(play)
    play.complete(play.claim(ALIVE), ALIVE)
    assert play.broken() == set()


def test_a_completion_without_its_token_is_caught(play: Play) -> None:
    """outlive.complete as it would be if it knew the job, and not the attempt."""
    play.connection.execute("""
        create or replace function outlive.complete(token bigint, worker uuid, result json default null,
          records json default null, spawns json default null, peak_memory_bytes bigint default null,
          cpu_s double precision default null, output text default null) returns void language sql as $$
        with ended as (
          delete from outlive.running r
          where r.id = (select job_id from outlive.attempts a where a.token = complete.token) returning r as had)
        select outlive.settle(e.had, 'succeeded') from ended e $$""")
    first = lose_one(play)
    play.claim(ALIVE)
    play.complete(first, DEAD)
    assert play.broken() == {"stale effect", "effect missing"}


def test_an_end_without_its_token_is_caught(play: Play) -> None:
    """A worker that was given up reports, and its report is taken for the attempt that runs now."""
    first = lose_one(play)
    play.complete(play.claim(ALIVE), ALIVE)
    play.connection.execute(
        "insert into outlive.attempts select job_id, attempt + 1, token + 1000, %s, outcome, state, error, exit_code, "
        "signal, peak_memory_bytes, cpu_s, output, stack, result, started_at, ended_at, failures, crashes, losses "
        "from outlive.attempts where job_id = %s and outcome = 'succeeded'",
        [DEAD, first.id],
    )
    assert play.broken() >= {"finished twice"}


def test_reaping_by_id_is_caught(play: Play) -> None:
    """The sweep found the first attempt, was slow, and then ended whatever ran of that job."""
    first = lose_one(play)
    play.claim(ALIVE)
    play.connection.execute(
        "with ended as (delete from outlive.running r where r.id = %s returning r as had) "
        "select outlive.settle(e.had, 'lost', error => 'Worker died unexpectedly') from ended e",
        [first.id],
    )
    play.complete(play.claim(ALIVE), ALIVE)
    assert play.broken() == {"given up wrongly"}


def test_an_acknowledgement_before_the_commit_is_caught(play: Play) -> None:
    with play.connection.transaction(force_rollback=True):
        play.ask()
    assert play.broken() == {"lost"}


def test_a_verdict_from_the_session_alone_is_caught(play: Play) -> None:
    """All sessions are gone after a crash of Postgres, and a reaper that asks no further gives everybody up."""
    play.ask()
    play.claim(ALIVE, lease_s=0.0)
    play.history.outages.append((0.0, 1.0))
    play.connection.execute("update outlive.workers set state = 'dead'")
    assert db.run(play.connection, store.expire())
    again = making.register_worker(play.connection, making.new_worker(), name="gameday-again")
    play.complete(play.claim(again), again)
    assert play.broken() == {"given up wrongly"}


def test_a_loss_that_is_counted_twice_is_caught(play: Play, connect: Callable[[], db.Connection]) -> None:
    """The reaper and the sweep each count it."""
    lose_one(play)
    connect().execute("update outlive.waiting set losses = losses + 1")
    play.complete(play.claim(ALIVE), ALIVE)
    assert play.broken() == {"miscounted"}


def test_a_retry_that_forgets_the_job_is_caught(play: Play) -> None:
    play.ask()
    first = play.claim(ALIVE)
    making.end(play.connection, Ended(first.token, Outcome.FAILED, error="no"), worker=ALIVE)
    play.connection.execute("delete from outlive.waiting where id = %s", [first.id])
    assert play.broken() == {"lost"}
