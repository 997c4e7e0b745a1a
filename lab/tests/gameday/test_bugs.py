"""The bugs that the checker is there for, played: a client, a worker or a reaper that does one thing wrong, each on a
connection of its own, in a real database. The checker reads what that leaves there, and names it."""

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest
from msgspec.structs import replace

from outlive import store
from outlive.model import Claimed, Ended, Turn
from outlive.statement import Statement
from outlive.states import Outcome
from outlive_lab.gameday import checker, jobs, tables
from outlive_lab.gameday.history import Answer, Ask, Fault, History, Kind
from outlive_lab.gameday.options import Bounds
from tests.driving import making
from tests.driving.making import Queue
from tests.waiting import eventually

T = TypeVar("T")

TASK = jobs.pay.name
Connect = Callable[[], Queue]


class Worker:
    """A worker in a few lines: it claims, does what the game's jobs do, and reports."""

    def __init__(self, queue: Queue, name: str) -> None:
        self.connection, self.name, self.id = queue, name, uuid4()
        queue.register_worker(self.id, name=name)

    def claim(self, *, lease_s: float = 300.0) -> Claimed:
        [claimed] = self.connection.claim([making.lane(TASK)], worker=self.id, limit=1, lease_s=lease_s)
        self.connection.execute("insert into outlive_gameday.starts values (%s, 1, %s)", [claimed.token, claimed.id])
        return claimed

    def complete(self, claimed: Claimed) -> None:
        """The effect and the completion in one transaction."""
        with self.connection.transaction():
            self.do(claimed)
            self.connection.execute("select outlive.complete_with_records(%s, %s)", [claimed.token, self.id])

    def do(self, claimed: Claimed) -> None:
        self.connection.execute("insert into outlive_gameday.effects values (%s, %s)", [claimed.id, claimed.token])

    def report(self, end: Ended) -> list[int]:
        """The tokens that were stale."""
        return self.connection.run(self.ending(end)).refused

    def ending(self, end: Ended) -> Statement[Turn]:
        return store.end_and_claim(self.id, [end])


class CompletingByJob(Worker):
    """Completes whatever attempt its job has now, and not the one that it was given."""

    def complete(self, claimed: Claimed) -> None:
        with self.connection.transaction():
            self.do(claimed)
            self.connection.execute(
                "select outlive.complete_with_records(r.token, r.worker) from outlive.running r where r.id = %s",
                [claimed.id],
            )


class EndingByJob(Worker):
    """Its report has no token: it ends whatever runs of a job that it once had."""

    def ending(self, end: Ended) -> Statement[Turn]:
        had = "from outlive.running r join outlive.attempts a on a.job_id = r.id where a.token = any($2::bigint[])"
        runs = f"(select r.worker {had}), (select array[r.token] {had})"
        return changed(super().ending(end), "$1::uuid, $2::bigint[]", runs)


class Insisting(Worker):
    """Takes a stale token for an answer that was lost on the way, and writes its success down itself."""

    def report(self, end: Ended) -> list[int]:
        if stale := super().report(end):
            self.connection.execute(
                "insert into outlive.attempts (job_id, attempt, token, worker, outcome, state, started_at, ended_at, "
                "failures, crashes, losses) select job_id, attempt + 2, token + 1000, worker, 'succeeded', "
                "'succeeded', started_at, outlive.now(), failures, crashes, losses "
                "from outlive.attempts where token = %s",
                [end.token],
            )
        return stale


def changed(statement: Statement[T], old: str, new: str) -> Statement[T]:
    """A statement of the store with one thing in it different."""
    text = statement.text.decode()
    assert text.count(old) == 1, f"{statement.name} does not read like that any more"
    return replace(statement, text=text.replace(old, new).encode())


class Play:
    """A game by hand: one worker that dies, one that lives, and a client."""

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self.connection = connect()
        self.history = History()
        tables.make(self.connection, force=False)
        self.connection.run(store.register_tasks([making.limits(TASK, max_losses=None)]))

    def worker(self, name: str, kind: type[Worker] = Worker) -> Worker:
        return kind(self.connect(), f"gameday-{name}")

    def ask(self, connection: Queue | None = None) -> UUID:
        id = making.make(connection or self.connection, TASK)
        self.history.asks.append(Ask(id, Answer.OK))
        return id

    def kill(self, worker: Worker) -> None:
        [(now_s,)] = self.connection.execute("select extract(epoch from clock_timestamp())::float8").fetchall()
        self.history.faults.append(Fault(kind=Kind.SUPERVISOR, at_s=now_s, worker=worker.name))

    def lose_one(self, worker: Worker) -> Claimed:
        """A job's first attempt, lost with its worker."""
        self.ask()
        first = worker.claim(lease_s=0.0)
        self.kill(worker)
        assert self.connection.run(store.expire())
        return first

    def broken(self) -> set[str]:
        found = tables.read(self.connection, names="gameday-")
        return {breach.rule for breach in checker.check(self.history, found, Bounds())}


@pytest.fixture
def play(connect: Connect) -> Play:
    return Play(connect)


def test_without_a_bug_nothing_is_found(play):
    dead, alive = play.worker("dead"), play.worker("alive")
    first = play.lose_one(dead)
    again = alive.claim()
    with pytest.raises(psycopg.Error, match="attempt"):
        dead.complete(first)
    assert dead.report(Ended(first.token, Outcome.SUCCEEDED)) == [first.token]
    alive.complete(again)
    assert play.broken() == set()


def test_a_completion_without_its_token_is_caught(play):
    dead, alive = play.worker("dead", CompletingByJob), play.worker("alive")
    first = play.lose_one(dead)
    alive.claim()
    dead.complete(first)
    assert play.broken() == {"stale effect", "effect missing"}


def test_an_end_without_its_token_is_caught(play):
    """The report of a worker that was given up ends the attempt that another one runs."""
    dead, alive = play.worker("dead", EndingByJob), play.worker("alive")
    first = play.lose_one(dead)
    again = alive.claim()
    dead.report(Ended(first.token, Outcome.SUCCEEDED))
    with pytest.raises(psycopg.Error, match="attempt"):
        alive.complete(again)
    assert play.broken() == {"effect missing"}


def test_an_end_that_is_written_in_spite_of_the_fence_is_caught(play):
    dead, alive = play.worker("dead", Insisting), play.worker("alive")
    first = play.lose_one(dead)
    alive.complete(alive.claim())
    dead.report(Ended(first.token, Outcome.SUCCEEDED))
    assert play.broken() >= {"finished twice"}


def test_reaping_by_id_is_caught(play):
    """A sweep finds the first attempt, is slow, and ends what runs of that job by then."""
    dead, alive, sweeper = play.worker("dead"), play.worker("alive"), play.connect()
    play.ask()
    first = dead.claim(lease_s=0.0)
    play.kill(dead)
    [overdue] = sweeper.values("select id from outlive.running where lease_until < outlive.now()")
    assert play.connection.run(store.expire())
    alive.claim()
    assert overdue == first.id
    assert sweeper.run(changed(store.expire(), "r.lease_until < ", f"r.id = '{overdue}' or r.lease_until < "))
    alive.complete(alive.claim())
    assert play.broken() == {"given up wrongly", "innocent charged"}


def test_an_acknowledgement_before_the_commit_is_caught(play):
    """The client says yes while its transaction is open, and then its session is killed."""
    client = play.connect()
    client.execute("begin")
    play.ask(client)
    play.connection.execute("select pg_terminate_backend(%s)", [client.info.backend_pid])
    eventually(lambda: sessions(play.connection, client.info.backend_pid) == 0, within_s=10)
    with pytest.raises(psycopg.OperationalError):
        client.execute("commit")
    assert play.broken() == {"lost"}


def sessions(queue: Queue, pid: int) -> int:
    return int(queue.value("select count(*) from pg_stat_activity where pid = %s", pid))


def test_a_verdict_from_the_session_alone_is_caught(play):
    """The worker's session is gone, as after a crash of Postgres: a reaper that looks only once gives it up at once,
    while it comes back."""
    alive, session, reaper = play.worker("alive"), play.connect(), play.connect()
    assert session.run(store.show_life(alive.id, 17))
    play.ask()
    alive.claim()
    play.connection.execute("select pg_terminate_backend(%s)", [session.info.backend_pid])
    play.history.outages.append((0.0, 1.0))
    absent = eventually(lambda: [one.worker for one in reaper.run(store.absent(None))], within_s=10)
    assert absent == [alive.id]
    reaper.execute("update outlive.workers set state = 'dead' where id = any(%s)", [absent])
    assert reaper.run(store.reap())
    back = play.worker("back")
    back.complete(back.claim())
    assert play.broken() == {"given up wrongly", "innocent charged"}


def test_a_loss_that_is_counted_twice_is_caught(play):
    """Two sweeps find the same attempt; the second one does not end it any more, and counts it all the same."""
    dead, alive, sweeps = play.worker("dead"), play.worker("alive"), [play.connect(), play.connect()]
    play.ask()
    dead.claim(lease_s=0.0)
    play.kill(dead)
    found = [one.values("select id from outlive.running where lease_until < outlive.now()") for one in sweeps]
    for sweep, ids in zip(sweeps, found, strict=True):
        if not sweep.run(store.expire()):
            sweep.execute("update outlive.waiting set losses = losses + 1 where id = any(%s)", [ids])
    alive.complete(alive.claim())
    assert play.broken() == {"miscounted"}


def test_a_retry_that_forgets_the_job_is_caught(play):
    """outlive.settle as it would be if it knew only jobs that are pending again, and not those to be retried."""
    [text] = play.connection.values(
        "select pg_get_functiondef(p.oid) from pg_proc p where p.oid::regproc::text = 'outlive.settle'"
    )
    again = "v.state in ('pending', 'retryable')"
    assert text.count(again) == 1, "outlive.settle does not read like that any more"
    play.connection.execute(text.replace(again, "v.state = 'pending'").encode())
    alive = play.worker("alive")
    play.ask()
    first = alive.claim()
    alive.report(Ended(first.token, Outcome.FAILED, error="no"))
    assert play.broken() == {"lost"}


def test_a_completion_waits_before_it_is_written_whichever_cursor_sends_it(database_url):
    with jobs.Connection.connect(database_url, autocommit=True) as connection:
        connection.pause_s = 0.001
        psycopg.RawCursor(connection).execute("select")
        assert connection.pause_s == 0.0
