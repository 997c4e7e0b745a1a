"""Liveness: sessions that hold a lock, heartbeats behind them, and the evidence that declares a worker dead."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from uuid import UUID

import pytest

from outlive import db, store
from outlive.config import Config
from outlive.model import Dead
from outlive.worker.alerts import Alerts
from outlive.worker.reaper import Reaper
from outlive.worker.session import Session
from tests.driving.making import Connect, claim, count, make, register_worker, set_now, value
from tests.store.acting import ANNA, BERT, NOW, give_up
from tests.store.noon import database_url, fresh_at_noon
from tests.waiting import eventually

__all__ = ["database_url", "fresh_at_noon"]

KEY = 7 << 32 | 9
KEYS = (1, 2**31, 2**32 - 1, 2**32, KEY, 2**63 - 1)
A_TICK = timedelta(microseconds=1)


def live(connection: db.Connection, session: db.Connection, worker: UUID = ANNA, key: int = KEY) -> db.Connection:
    """Register a worker, and let a session show that it lives; returns the session."""
    register_worker(connection, worker)
    assert db.run(session, store.show_life(worker, key))
    return session


def absent(connection: db.Connection, worker: UUID | None = None) -> dict[UUID, int | None]:
    return db.run(connection, store.absent(worker))


def vanish(connection: db.Connection, session: db.Connection, worker: UUID = ANNA, key: int = KEY) -> None:
    """End a session, and wait until the server has noticed."""
    session.close()
    eventually(lambda: absent(connection).get(worker) == key, what="its lock is gone")


def state_of(connection: db.Connection, worker: UUID = ANNA) -> str:
    return str(value(connection, "select state from outlive.workers where id = %s", worker))


# The lock of a session.


def test_no_lock_counts_as_missing_while_the_database_is_read_only(connection: db.Connection, connect: Connect) -> None:
    vanish(connection, live(connection, connect()))
    connection.execute("set default_transaction_read_only = on")
    assert absent(connection) == {}
    connection.execute("set default_transaction_read_only = off")
    assert absent(connection) == {ANNA: KEY}


def test_a_worker_whose_session_is_gone_shows_as_stale_before_any_reaper_looks(
    connection: db.Connection, connect: Connect
) -> None:
    def seen() -> tuple[str, int, int]:
        [row], [health] = db.run(connection, store.list_workers()), db.run(connection, store.health())
        counted = "select sum(value)::int from outlive.metrics where name = 'workers' and label = 'stale'"
        return row["state"], health["active_workers"], int(value(connection, counted) or 0)

    session = live(connection, connect())
    assert seen() == ("active", 1, 0)
    vanish(connection, session)
    assert seen() == ("stale", 0, 1)
    assert state_of(connection) == "active", "only a reaper declares it dead"
    assert db.run(connect(), store.show_life(ANNA, KEY + 1))
    assert seen() == ("active", 1, 0)


@pytest.mark.parametrize("key", KEYS)
def test_a_worker_is_absent_when_its_session_is_gone_and_not_before(
    connection: db.Connection, connect: Connect, key: int
) -> None:
    session = live(connection, connect(), key=key)
    assert absent(connection) == {}
    assert absent(connection, ANNA) == {}
    vanish(connection, session, key=key)
    assert absent(connection) == {ANNA: key}


def test_a_key_that_another_worker_has_is_refused_and_nothing_is_written(
    connection: db.Connection, connect: Connect
) -> None:
    live(connection, connect(), ANNA)
    assert not db.run(connect(), store.show_life(BERT, KEY))
    assert count(connection, "liveness") == 1


def test_a_worker_with_a_new_session_does_not_need_its_old_one(connection: db.Connection, connect: Connect) -> None:
    old, new = connect(), connect()
    live(connection, old)
    live(connection, new, key=KEY + 1)
    assert absent(connection) == {}
    pid = old.info.backend_pid
    old.close()
    held = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
    eventually(lambda: value(connection, held, pid) == 0)
    assert absent(connection) == {}
    vanish(connection, new, key=KEY + 1)


def test_the_same_lock_in_another_database_does_not_count(
    connection: db.Connection, connect: Connect, empty_database_url: str
) -> None:
    session = live(connection, connect())
    vanish(connection, session)
    with db.connect(empty_database_url) as elsewhere:
        elsewhere.execute("select pg_advisory_lock(%s)", [KEY])
        assert absent(connection) == {ANNA: KEY}


def test_a_lock_of_two_numbers_does_not_count(connection: db.Connection, connect: Connect) -> None:
    session, other = connect(), connect()
    live(connection, session)
    vanish(connection, session)
    other.execute("select pg_advisory_lock(%s::int, %s::int)", [KEY >> 32, KEY & 0xFFFFFFFF])
    assert absent(connection) == {ANNA: KEY}


def test_another_session_that_holds_a_workers_key_hides_no_death(connection: db.Connection, connect: Connect) -> None:
    """Fault 63: the session waits for the lock, and gets it when the worker dies."""
    session, stranger = connect(), connect()
    live(connection, session)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(stranger.execute, "select pg_advisory_lock(%s)", [KEY])
        eventually(lambda: waits(connection, stranger))
        assert absent(connection) == {}
        session.close()
        waiting.result(timeout=10)
    assert absent(connection) == {ANNA: KEY}
    assert [one.id for one in db.run(connection, store.declare_dead({ANNA: KEY}))] == [ANNA]


def test_a_session_that_has_the_pid_of_an_earlier_one_is_not_taken_for_it(
    connection: db.Connection, connect: Connect
) -> None:
    live(connection, connect())
    connection.execute("update outlive.liveness set backend_started = backend_started - interval '1 day'")
    assert absent(connection) == {ANNA: KEY}


def test_a_worker_hears_that_it_was_given_up(connection: db.Connection, connect: Connect) -> None:
    live(connection, connect())
    give_up(connection, ANNA)
    assert absent(connection, ANNA) == {ANNA: None}
    assert absent(connection, BERT) == {}


CRASH = "truncate outlive.liveness"  # What a crash does to an unlogged table.
RESTART = "update outlive.liveness set postmaster_started = postmaster_started - interval '1 hour'"
UNSEEN = 0
"""The key of workers that have shown no life since the server started or crashed."""


def live_until_restart(connection: db.Connection, connect: Connect, how: str) -> None:
    """Let a worker live, and leave the table of liveness as a restart of the server does: empty or outdated."""
    vanish(connection, live(connection, connect()))
    connection.execute(how.encode())


def test_the_table_of_liveness_is_unlogged(connection: db.Connection) -> None:
    assert value(connection, "select relpersistence from pg_class where oid = 'outlive.liveness'::regclass") == "u"


@pytest.mark.parametrize("how", [CRASH, RESTART])
def test_locks_lost_by_a_restart_of_the_server_prove_no_death(
    connection: db.Connection, connect: Connect, how: str
) -> None:
    live_until_restart(connection, connect, how)
    assert absent(connection) == {ANNA: UNSEEN}
    assert db.run(connection, store.declare_dead({ANNA: KEY})) == []
    assert state_of(connection) == "active"


@pytest.mark.parametrize("how", [CRASH, RESTART])
def test_a_worker_that_shows_life_after_the_restart_is_not_declared_dead(
    connection: db.Connection, connect: Connect, how: str
) -> None:
    live_until_restart(connection, connect, how)
    live(connection, connect(), key=KEY + 1)
    assert absent(connection) == {}
    assert db.run(connection, store.declare_dead({ANNA: UNSEEN})) == []
    assert state_of(connection) == "active"


@pytest.mark.parametrize("how", [CRASH, RESTART])
def test_a_worker_that_shows_no_life_after_the_restart_can_be_declared_dead(
    connection: db.Connection, connect: Connect, how: str
) -> None:
    live_until_restart(connection, connect, how)
    db.run(connection, store.sleep(ANNA))
    assert [dead.id for dead in db.run(connection, store.declare_dead({ANNA: UNSEEN}))] == [ANNA]
    assert db.run(connection, store.declare_dead({ANNA: UNSEEN})) == []
    assert absent(connection) == {}
    assert (count(connection, "liveness"), count(connection, "sleepers")) == (0, 0)


def missed(connection: db.Connection) -> set[UUID]:
    """The workers that a reaper that looks now would declare dead."""
    unseen = [worker for worker, key in absent(connection).items() if key == UNSEEN]
    return db.run(connection, store.note_missed(unseen, for_s=10.0))


@pytest.mark.parametrize("how", [CRASH, RESTART])
def test_a_worker_that_shows_no_life_is_missed_even_if_no_reaper_lives_for_ten_seconds(
    connection: db.Connection, connect: Connect, how: str
) -> None:
    live_until_restart(connection, connect, how)
    assert missed(connection) == set()
    set_now(connection, NOW + timedelta(seconds=10) - A_TICK)
    assert missed(connection) == set()
    connection.execute(how.encode())
    set_now(connection, NOW + timedelta(seconds=10))
    assert missed(connection) == {ANNA}


def test_a_worker_that_shows_life_is_not_missed_for_the_time_before(
    connection: db.Connection, connect: Connect
) -> None:
    live_until_restart(connection, connect, CRASH)
    assert missed(connection) == set()
    live(connection, connect(), key=KEY + 1)
    connection.execute(CRASH)
    set_now(connection, NOW + timedelta(seconds=10))
    assert missed(connection) == set()
    set_now(connection, NOW + timedelta(seconds=20))
    assert missed(connection) == {ANNA}


def test_a_worker_that_took_its_lock_between_a_check_and_its_note_is_not_missed_later(
    connection: db.Connection, connect: Connect
) -> None:
    live_until_restart(connection, connect, CRASH)
    live(connection, connect(), key=KEY + 1)
    assert db.run(connection, store.note_missed([ANNA], for_s=10.0)) == set()
    connection.execute(CRASH)
    set_now(connection, NOW + timedelta(days=1))
    assert missed(connection) == set()


def test_a_worker_that_is_heard_of_is_not_missed(connection: db.Connection, connect: Connect) -> None:
    live_until_restart(connection, connect, CRASH)
    assert missed(connection) == set()
    db.run(connection, store.heartbeat(ANNA, "active"))
    set_now(connection, NOW + timedelta(seconds=10))
    assert missed(connection) == set()


@pytest.mark.parametrize("state", ["dead", "stopped"])
def test_a_worker_that_ended_before_a_crash_is_not_expected_to_show_life(
    connection: db.Connection, connect: Connect, state: str
) -> None:
    session = live(connection, connect())
    connection.execute("update outlive.workers set state = %s", [state])
    vanish(connection, session)
    connection.execute(CRASH)
    assert absent(connection) == {}
    assert db.run(connection, store.declare_dead({ANNA: UNSEEN})) == []
    assert state_of(connection) == state


def test_a_worker_that_never_showed_life_is_not_missed_for_it(connection: db.Connection) -> None:
    """Its database is behind a pooler, or it has only just started."""
    register_worker(connection, ANNA)
    assert absent(connection) == {}


# Burials.


def test_a_worker_is_declared_dead_once_and_with_its_jobs(connection: db.Connection, connect: Connect) -> None:
    session = live(connection, connect())
    make(connection), make(connection)
    claim(connection, worker=ANNA, limit=2)
    vanish(connection, session)
    set_now(connection, NOW + timedelta(seconds=5))
    dead = Dead(ANNA, "crawler-1", "host", 42, NOW, "its session is gone", 2)
    assert db.run(connection, store.declare_dead({ANNA: KEY})) == [dead]
    assert db.run(connection, store.declare_dead({ANNA: KEY})) == []
    assert state_of(connection) == "dead"
    assert value(connection, "select died_at from outlive.workers") == NOW + timedelta(seconds=5)
    assert absent(connection) == {}


@pytest.mark.parametrize("state", ["active", "stale", "draining"])
def test_a_worker_in_service_can_be_declared_dead(connection: db.Connection, connect: Connect, state: str) -> None:
    session = live(connection, connect())
    connection.execute("update outlive.workers set state = %s", [state])
    vanish(connection, session)
    assert [dead.id for dead in db.run(connection, store.declare_dead({ANNA: KEY}))] == [ANNA]


@pytest.mark.parametrize("state", ["dead", "stopped", "not registered"])
def test_a_worker_that_has_ended_is_not_declared_dead_and_not_looked_for_again(
    connection: db.Connection, connect: Connect, state: str
) -> None:
    session = live(connection, connect())
    if state == "not registered":
        connection.execute("delete from outlive.workers")
    else:
        connection.execute("update outlive.workers set state = %s", [state])
    vanish(connection, session)
    assert db.run(connection, store.declare_dead({ANNA: KEY})) == []
    assert absent(connection) == {}
    assert state == "not registered" or state_of(connection) == state


def test_a_worker_that_has_its_lock_back_is_not_declared_dead(connection: db.Connection, connect: Connect) -> None:
    session = live(connection, connect())
    vanish(connection, session)
    live(connection, connect())
    assert db.run(connection, store.declare_dead({ANNA: KEY})) == []
    assert state_of(connection) == "active"


def test_a_worker_that_has_another_key_by_now_is_not_declared_dead(connection: db.Connection, connect: Connect) -> None:
    session, another = connect(), connect()
    live(connection, session)
    vanish(connection, session)
    live(connection, another, key=KEY + 1)
    assert db.run(connection, store.declare_dead({ANNA: KEY})) == []
    vanish(connection, another, key=KEY + 1)
    assert db.run(connection, store.declare_dead({ANNA: KEY})) == []  # That verdict was about another session.
    assert state_of(connection) == "active"


def test_a_reaper_whose_session_was_replaced_gives_others_time_to_come_back_too(
    connection: db.Connection, connect: Connect, database_url: str
) -> None:
    """The cause may have ended the sessions of workers too, so a missing lock is proof only after three seconds."""
    session = live(connection, connect())
    vanish(connection, session)

    async def until_it_is_dead(*, replaced: bool) -> float:
        reaper = Reaper(Session(database_url), Config(), Alerts())
        await reaper.check()
        if replaced:
            await reaper.session.close()
        began = time.monotonic()
        while state_of(connection) != "dead":
            await reaper.check_once()
            assert time.monotonic() - began < 20
        await reaper.session.close()
        return time.monotonic() - began

    assert asyncio.run(until_it_is_dead(replaced=True)) >= 3.0
    connection.execute("update outlive.workers set state = 'active'")
    session = live(connection, connect())
    vanish(connection, session)
    assert asyncio.run(until_it_is_dead(replaced=False)) < 3.0


def declared_dead(connection: db.Connection, *workers: UUID) -> list[UUID]:
    """Declare these workers dead, in this order."""
    return [dead.id for dead in db.run(connection, store.declare_dead({worker: worker.int for worker in workers}))]


def vanished(connection: db.Connection, connect: Connect) -> None:
    """Two workers whose sessions are gone."""
    for worker in (ANNA, BERT):
        session = connect()
        live(connection, session, worker, worker.int)
        vanish(connection, session, worker, worker.int)


def test_reapers_at_once_declare_each_worker_dead_once(connection: db.Connection, connect: Connect) -> None:
    vanished(connection, connect)
    reapers = [connect() for _ in range(4)]
    with ThreadPoolExecutor(len(reapers)) as threads:
        found = list(threads.map(lambda reaper: declared_dead(reaper, ANNA, BERT), reapers))
    found.append(declared_dead(connection, ANNA, BERT))  # The workers that all of them have skipped.
    assert sorted(chain.from_iterable(found)) == [ANNA, BERT]


def test_declaring_workers_dead_in_opposite_order_does_not_deadlock(
    connection: db.Connection, connect: Connect
) -> None:
    vanished(connection, connect)
    first, second = connect(), connect()
    with ThreadPoolExecutor(1) as threads, first.transaction():
        assert declared_dead(first, ANNA) == [ANNA]
        answer = threads.submit(declared_dead, second, BERT, ANNA)
        eventually(lambda: answer.done() or waits(connection, second))
        mine = declared_dead(first, BERT)
    assert sorted(mine + answer.result(timeout=10)) == [BERT]


def test_declaring_a_worker_dead_that_stops_just_now_does_not_deadlock(
    connection: db.Connection, connect: Connect
) -> None:
    vanished(connection, connect)
    first, second = connect(), connect()
    with ThreadPoolExecutor(1) as threads, first.transaction():
        assert db.run(first, store.heartbeat(ANNA, "draining"))
        answer = threads.submit(declared_dead, second, ANNA)
        eventually(lambda: answer.done() or waits(connection, second))
        db.run(first, store.stop_worker(ANNA))
    assert answer.result(timeout=10) == []
    assert state_of(connection) == "stopped"


def waits(watcher: db.Connection, other: db.Connection) -> bool:
    query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    return value(watcher, query, other.info.backend_pid) is True


# Heartbeats.


def silent(connection: db.Connection, after: timedelta) -> list[UUID]:
    """Sweep so long after noon; returns the workers that are declared dead."""
    set_now(connection, NOW + after)
    return [dead.id for dead in db.run(connection, store.give_up_silent())]


def test_a_silent_worker_is_stale_after_a_minute_and_dead_after_two(connection: db.Connection) -> None:
    register_worker(connection, ANNA)
    seen = []
    for after in (timedelta(seconds=60), timedelta(seconds=120)):
        for moment in (after, after + A_TICK):
            seen.append((silent(connection, moment), state_of(connection)))
    assert seen == [([], "active"), ([], "stale"), ([], "stale"), ([ANNA], "dead")]
    assert silent(connection, timedelta(hours=1)) == []
    died_at = value(connection, "select died_at from outlive.workers")
    assert died_at == NOW + timedelta(seconds=120) + A_TICK


def test_a_worker_that_was_never_looked_at_goes_from_active_to_dead(connection: db.Connection) -> None:
    register_worker(connection, ANNA)
    make(connection)
    claim(connection, worker=ANNA, limit=1)
    set_now(connection, NOW + timedelta(hours=1))
    [dead] = db.run(connection, store.give_up_silent())
    assert dead == Dead(ANNA, "crawler-1", "host", 42, NOW, "no heartbeat for 120 s", 1)


def test_the_leases_of_another_worker_do_not_count(connection: db.Connection) -> None:
    register_worker(connection, ANNA)
    make(connection)
    set_now(connection, NOW + timedelta(seconds=119))
    register_worker(connection, BERT)
    claim(connection, worker=BERT, limit=1)
    assert silent(connection, timedelta(seconds=121)) == [ANNA]


@pytest.mark.parametrize("state", ["active", "draining"])
def test_a_stale_worker_that_is_heard_of_again_has_the_state_that_it_reports(
    connection: db.Connection, state: str
) -> None:
    register_worker(connection, ANNA)
    assert db.run(connection, store.heartbeat(ANNA, state))
    assert state_of(connection) == state
    silent(connection, timedelta(seconds=61))
    assert state_of(connection) == "stale"
    assert db.run(connection, store.heartbeat(ANNA, state))
    assert state_of(connection) == state
    assert silent(connection, timedelta(seconds=121)) == []  # It was heard of a minute ago.
    assert silent(connection, timedelta(seconds=182)) == [ANNA]


@pytest.mark.parametrize("state", ["dead", "stopped"])
def test_a_heartbeat_does_not_revive_a_worker_that_has_ended(connection: db.Connection, state: str) -> None:
    register_worker(connection, ANNA)
    connection.execute("update outlive.workers set state = %s", [state])
    set_now(connection, NOW + timedelta(seconds=1))
    assert not db.run(connection, store.heartbeat(ANNA, "active"))
    assert not db.run(connection, store.heartbeat(BERT, "active"))
    assert state_of(connection) == state
    assert value(connection, "select last_seen from outlive.workers") == NOW


@pytest.mark.parametrize("state", ["dead", "stopped"])
def test_a_worker_that_has_ended_is_not_given_up_for_being_silent(connection: db.Connection, state: str) -> None:
    register_worker(connection, ANNA)
    connection.execute("update outlive.workers set state = %s", [state])
    assert silent(connection, timedelta(hours=1)) == []
    assert state_of(connection) == state


def test_only_a_heartbeat_itself_may_be_lost_in_a_crash_of_the_server(connection: db.Connection) -> None:
    register_worker(connection, ANNA)
    db.run(connection, store.heartbeat(ANNA, "active"))
    assert value(connection, "show synchronous_commit") == "on"


def test_a_worker_given_up_for_its_silence_is_not_found_absent_as_well(
    connection: db.Connection, connect: Connect
) -> None:
    session = live(connection, connect())
    assert silent(connection, timedelta(hours=1)) == [ANNA]
    assert absent(connection, ANNA) == {ANNA: None}
    session.close()
    assert count(connection, "liveness") == 0


def test_two_that_give_up_the_silent_at_once_find_each_of_them_once(
    connection: db.Connection, connect: Connect
) -> None:
    for n in range(1, 41):
        register_worker(connection, UUID(int=n))
    reapers = [connect() for _ in range(4)]
    with ThreadPoolExecutor(len(reapers)) as threads:
        found = list(threads.map(lambda reaper: silent(reaper, timedelta(hours=1)), reapers))
    found.append(silent(connection, timedelta(hours=1)))
    assert sorted(chain.from_iterable(found)) == [UUID(int=n) for n in range(1, 41)]


# The end on purpose, and what else a dead worker leaves behind.


def test_a_worker_that_stops_is_not_missed(connection: db.Connection, connect: Connect) -> None:
    session = live(connection, connect())
    db.run(session, store.stop_worker(ANNA))
    session.close()
    assert state_of(connection) == "stopped"
    assert count(connection, "liveness") == 0
    assert silent(connection, timedelta(hours=1)) == []


def test_a_dead_worker_that_stops_stays_dead(connection: db.Connection) -> None:
    register_worker(connection, ANNA)
    give_up(connection, ANNA)
    db.run(connection, store.stop_worker(ANNA))
    assert state_of(connection) == "dead"


@pytest.mark.parametrize("way", ["declared dead", "silent", "stopped"])
def test_enqueuing_sends_no_notification_to_workers_that_have_ended(
    connection: db.Connection, connect: Connect, way: str
) -> None:
    session = live(connection, connect())
    register_worker(connection, BERT)
    for worker in (ANNA, BERT):
        db.run(connection, store.sleep(worker))
    match way:
        case "declared dead":
            vanish(connection, session)
            db.run(connection, store.declare_dead({ANNA: KEY}))
        case "silent":
            set_now(connection, NOW + timedelta(hours=1))
            db.run(connection, store.heartbeat(BERT, "active"))
            db.run(connection, store.give_up_silent())
        case "stopped":
            db.run(connection, store.stop_worker(ANNA))
    assert connection.execute("select worker from outlive.sleepers").fetchall() == [(BERT,)]


# What else workers ask.


def test_people_see_the_living_first(connection: db.Connection) -> None:
    for worker in (ANNA, BERT):
        register_worker(connection, worker)
    give_up(connection, ANNA)
    seen = [(row["id"], row["state"], row["running"]) for row in db.run(connection, store.list_workers())]
    assert seen == [(BERT, "active", 0), (ANNA, "dead", 0)]


def test_the_clock_is_the_databases(connection: db.Connection) -> None:
    assert db.run(connection, store.clock()) == NOW.timestamp()


def test_a_lock_by_name_is_one_sessions_until_it_gives_it_back_or_ends(
    connection: db.Connection, connect: Connect
) -> None:
    first, second = connect(), connect()
    assert db.run(first, store.try_lock("sweep"))
    assert not db.run(second, store.try_lock("sweep"))
    assert db.run(second, store.try_lock("suspects"))
    db.run(first, store.unlock("sweep"))
    assert db.run(second, store.try_lock("sweep"))
    second.close()
    eventually(lambda: db.run(connection, store.try_lock("sweep")))
