"""Liveness: sessions that hold a lock, heartbeats behind them, and the evidence that declares a worker dead."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from uuid import UUID

import pytest

from outlive import store
from outlive.config import Config
from outlive.model import Dead
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.session import Session
from tests.driving.making import Connect, Queue
from tests.store.acting import ANNA, BERT, NOW
from tests.store.noon import database_url, fresh_at_noon
from tests.waiting import eventually

__all__ = ["database_url", "fresh_at_noon"]

KEY = 7 << 32 | 9
KEYS = (1, 2**31, 2**32 - 1, 2**32, KEY, 2**63 - 1)
A_TICK = timedelta(microseconds=1)


def live(queue: Queue, session: Queue, worker: UUID = ANNA, key: int = KEY) -> Queue:
    """Register a worker, and let a session show that it lives; returns the session."""
    queue.register_worker(worker)
    assert session.run(store.hold_liveness_lock(worker, key))
    return session


def absent(queue: Queue) -> dict[UUID, int | str]:
    """The absent workers, each with the key of its lock, or with the reason if it has none."""
    return {one.worker: one.key or one.reason for one in queue.run(store.absent())}


def vanish(queue: Queue, session: Queue, worker: UUID = ANNA, key: int = KEY) -> None:
    """End a session, and wait until the server has noticed."""
    session.close()
    eventually(lambda: absent(queue).get(worker) == key, what="its lock is gone")


def state_of(queue: Queue, worker: UUID = ANNA) -> str:
    return str(queue.value("select state from outlive.workers where id = %s", worker))


# The lock of a session.


def test_no_lock_counts_as_missing_while_the_database_is_read_only(queue, connect):
    vanish(queue, live(queue, connect()))
    queue.execute("set default_transaction_read_only = on")
    assert absent(queue) == {}
    queue.execute("set default_transaction_read_only = off")
    assert absent(queue) == {ANNA: KEY}


def test_a_worker_whose_session_is_gone_shows_as_stale_before_any_reaper_looks(queue, connect):
    def seen() -> tuple[str, int, int]:
        [row], [health] = queue.run(store.list_workers()), queue.run(store.job_health())
        counted = "select sum(value)::int from outlive.metrics where name = 'workers' and label = 'stale'"
        return row["state"], health["active_workers"], int(queue.value(counted) or 0)

    session = live(queue, connect())
    assert seen() == ("active", 1, 0)
    vanish(queue, session)
    assert seen() == ("stale", 0, 1)
    assert state_of(queue) == "active", "only a reaper declares it dead"
    assert connect().run(store.hold_liveness_lock(ANNA, KEY + 1))
    assert seen() == ("active", 1, 0)


@pytest.mark.parametrize("key", KEYS)
def test_a_worker_is_absent_when_its_session_is_gone_and_not_before(queue, connect, key):
    session = live(queue, connect(), key=key)
    assert absent(queue) == {}
    vanish(queue, session, key=key)
    assert absent(queue) == {ANNA: key}


def test_a_key_that_another_worker_has_is_refused_and_nothing_is_written(queue, connect):
    live(queue, connect(), ANNA)
    assert not connect().run(store.hold_liveness_lock(BERT, KEY))
    assert queue.count("liveness") == 1


def test_a_worker_with_a_new_session_does_not_need_its_old_one(queue, connect):
    old, new = connect(), connect()
    live(queue, old)
    live(queue, new, key=KEY + 1)
    assert absent(queue) == {}
    pid = old.info.backend_pid
    old.close()
    held = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
    eventually(lambda: queue.value(held, pid) == 0)
    assert absent(queue) == {}
    vanish(queue, new, key=KEY + 1)


def test_another_session_that_holds_a_workers_key_hides_no_death(queue, ring):
    """Fault 63: the session waits for the lock, and gets it when the worker dies."""
    live(queue, ring.first)
    waiting = ring.start(lambda stranger: stranger.execute("select pg_advisory_lock(%s)", [KEY]))
    assert absent(queue) == {}
    ring.first.close()
    waiting.result(timeout=10)
    assert absent(queue) == {ANNA: KEY}
    assert [one.id for one in queue.run(store.declare_dead({ANNA: KEY}))] == [ANNA]


def test_a_session_that_has_the_pid_of_an_earlier_one_is_not_taken_for_it(queue, connect):
    live(queue, connect())
    queue.execute("update outlive.liveness set backend_started = backend_started - interval '1 day'")
    assert absent(queue) == {ANNA: KEY}


def test_a_check_of_all_locks_costs_the_fleet_and_not_its_square_whatever_it_was_planned_for(queue, connect):
    fleet = connect()
    fleet.execute("select pg_advisory_lock(n) from generate_series(1, 500) n")
    fleet.execute("""
        insert into outlive.liveness
        select gen_random_uuid(), n, pg_postmaster_start_time(), pg_backend_pid(), a.backend_start
        from generate_series(1, 500) n, pg_stat_get_activity(pg_backend_pid()) a""")
    queue.execute("set enable_hashjoin = off; set enable_mergejoin = off")  # As for a table that was empty.
    nodes = queue.plan(store.absent().text, ())
    assert max((one["Actual Rows"] + one.get("Rows Removed by Filter", 0)) * one["Actual Loops"] for one in nodes) < 5e3


CRASH = "truncate outlive.liveness"  # What a crash does to an unlogged table.
RESTART = "update outlive.liveness set postmaster_started = postmaster_started - interval '1 hour'"
UNSEEN = 0
"""The key of workers that have shown no life since the server started or crashed."""


def live_until_restart(queue: Queue, connect: Connect, how: str) -> None:
    """Let a worker live, and leave the table of liveness as a restart of the server does: empty or outdated."""
    vanish(queue, live(queue, connect()))
    queue.execute(how.encode())


@pytest.mark.parametrize("how", [CRASH, RESTART])
def test_after_a_restart_of_the_server_only_a_worker_that_shows_no_life_since_is_declared_dead(queue, connect, how):
    live_until_restart(queue, connect, how)
    assert absent(queue) == {ANNA: "never locked"}
    assert queue.run(store.declare_dead({ANNA: KEY})) == [], "a lock that was lost by the restart proves no death"
    again = live(queue, connect(), key=KEY + 1)
    assert absent(queue) == {}
    assert queue.run(store.declare_dead({ANNA: UNSEEN})) == []
    assert state_of(queue) == "active"
    vanish(queue, again, key=KEY + 1)
    queue.execute(how.encode())
    queue.run(store.sleep(ANNA))
    assert [dead.id for dead in queue.run(store.declare_dead({ANNA: UNSEEN}))] == [ANNA]
    assert queue.run(store.declare_dead({ANNA: UNSEEN})) == []
    assert absent(queue) == {}
    assert (queue.count("liveness"), queue.count("sleepers")) == (0, 0)


def missed(queue: Queue) -> set[UUID]:
    """The workers that a reaper that looks now would declare dead."""
    unseen = [worker for worker, key in absent(queue).items() if key == "never locked"]
    return queue.run(store.note_missed(unseen, for_s=10.0))


@pytest.mark.parametrize("how", [CRASH, RESTART])
def test_a_worker_that_shows_no_life_is_missed_even_if_no_reaper_lives_for_ten_seconds(queue, connect, how):
    live_until_restart(queue, connect, how)
    assert missed(queue) == set()
    queue.set_now(NOW + timedelta(seconds=10) - A_TICK)
    assert missed(queue) == set()
    queue.execute(how.encode())
    queue.set_now(NOW + timedelta(seconds=10))
    assert missed(queue) == {ANNA}


def test_a_worker_that_shows_life_is_not_missed_for_the_time_before(queue, connect):
    live_until_restart(queue, connect, CRASH)
    assert missed(queue) == set()
    live(queue, connect(), key=KEY + 1)
    queue.execute(CRASH)
    queue.set_now(NOW + timedelta(seconds=10))
    assert missed(queue) == set()
    queue.set_now(NOW + timedelta(seconds=20))
    assert missed(queue) == {ANNA}


def test_a_worker_that_took_its_lock_between_a_check_and_its_note_is_not_missed_later(queue, connect):
    live_until_restart(queue, connect, CRASH)
    live(queue, connect(), key=KEY + 1)
    assert queue.run(store.note_missed([ANNA], for_s=10.0)) == set()
    queue.execute(CRASH)
    queue.set_now(NOW + timedelta(days=1))
    assert missed(queue) == set()


def test_a_worker_that_is_heard_of_is_not_missed(queue, connect):
    live_until_restart(queue, connect, CRASH)
    assert missed(queue) == set()
    queue.run(store.heartbeat(ANNA, "active"))
    queue.set_now(NOW + timedelta(seconds=10))
    assert missed(queue) == set()


# Burials.


def test_a_worker_is_declared_dead_once_and_with_its_jobs(queue, connect):
    session = live(queue, connect())
    queue.make(), queue.make()
    queue.claim(worker=ANNA, limit=2)
    vanish(queue, session)
    queue.set_now(NOW + timedelta(seconds=5))
    dead = Dead(ANNA, "crawler-1", "host", 42, NOW, "its session is gone", 2)
    assert queue.run(store.declare_dead({ANNA: KEY})) == [dead]
    assert queue.run(store.declare_dead({ANNA: KEY})) == []
    assert state_of(queue) == "dead"
    assert queue.value("select died_at from outlive.workers") == NOW + timedelta(seconds=5)
    assert absent(queue) == {}


@pytest.mark.parametrize("state", ["dead", "stopped", None])
def test_a_worker_that_has_ended_is_neither_looked_for_nor_revived(queue, connect, state):
    session = live(queue, connect())
    queue.execute(
        "update outlive.workers set state = %s" if state else "delete from outlive.workers where %s::text is null",
        [state],
    )
    vanish(queue, session)
    assert queue.run(store.declare_dead({ANNA: KEY})) == []
    assert absent(queue) == {}
    queue.execute(CRASH)
    assert absent(queue) == {}
    assert queue.run(store.declare_dead({ANNA: UNSEEN})) == []
    assert silent(queue, timedelta(hours=1)) == []
    assert not queue.run(store.heartbeat(ANNA, "active"))
    kept = [(state, NOW)] if state else []
    assert queue.execute("select state, last_seen from outlive.workers").fetchall() == kept
    queue.run(store.stop_worker(ANNA))
    assert queue.values("select state from outlive.workers") == ([state] if state else [])


def test_a_worker_that_has_its_lock_back_or_another_key_by_now_is_not_declared_dead(queue, connect):
    vanish(queue, live(queue, connect()))
    back = live(queue, connect())
    assert queue.run(store.declare_dead({ANNA: KEY})) == []
    vanish(queue, back)
    another = live(queue, connect(), key=KEY + 1)
    assert queue.run(store.declare_dead({ANNA: KEY})) == []
    vanish(queue, another, key=KEY + 1)
    assert queue.run(store.declare_dead({ANNA: KEY})) == []  # That verdict was about another session.
    assert state_of(queue) == "active"


def test_a_reaper_whose_session_was_replaced_gives_others_time_to_come_back_too(queue, connect, database_url):
    """The cause may have ended the sessions of workers too, so a missing lock is proof only after three seconds."""
    session = live(queue, connect())
    vanish(queue, session)

    async def until_it_is_dead(*, replaced: bool) -> float:
        reaper = Reaper(Session(database_url), Config(), Alerts())
        await reaper.check()
        if replaced:
            await reaper.session.close()
        began = time.monotonic()
        while state_of(queue) != "dead":
            await reaper.check_once()
            assert time.monotonic() - began < 20
        await reaper.session.close()
        return time.monotonic() - began

    assert asyncio.run(until_it_is_dead(replaced=True)) >= 3.0
    queue.execute("update outlive.workers set state = 'active'")
    session = live(queue, connect())
    vanish(queue, session)
    assert asyncio.run(until_it_is_dead(replaced=False)) < 3.0


def declared_dead(queue: Queue, *workers: UUID) -> list[UUID]:
    """Declare these workers dead, in this order."""
    return [dead.id for dead in queue.run(store.declare_dead({worker: worker.int for worker in workers}))]


def vanished(queue: Queue, connect: Connect) -> None:
    """Two workers whose sessions are gone."""
    for worker in (ANNA, BERT):
        session = connect()
        live(queue, session, worker, worker.int)
        vanish(queue, session, worker, worker.int)


def test_reapers_at_once_declare_each_worker_dead_once(queue, connect):
    vanished(queue, connect)
    reapers = [connect() for _ in range(4)]
    with ThreadPoolExecutor(len(reapers)) as threads:
        found = list(threads.map(lambda reaper: declared_dead(reaper, ANNA, BERT), reapers))
    found.append(declared_dead(queue, ANNA, BERT))  # The workers that all of them have skipped.
    assert sorted(chain.from_iterable(found)) == [ANNA, BERT]


def test_declaring_workers_dead_in_opposite_order_does_not_deadlock(queue, connect, ring):
    vanished(queue, connect)
    with ring.first.transaction():
        assert declared_dead(ring.first, ANNA) == [ANNA]
        answer = ring.start(lambda second: declared_dead(second, BERT, ANNA))
        mine = declared_dead(ring.first, BERT)
    assert sorted(mine + answer.result(timeout=10)) == [BERT]


def test_declaring_a_worker_dead_that_stops_just_now_does_not_deadlock(queue, connect, ring):
    vanished(queue, connect)
    with ring.first.transaction():
        assert ring.first.run(store.heartbeat(ANNA, "draining"))
        answer = ring.start(lambda second: declared_dead(second, ANNA))
        ring.first.run(store.stop_worker(ANNA))
    assert answer.result(timeout=10) == []
    assert state_of(queue) == "stopped"


# Heartbeats.


def silent(queue: Queue, after: timedelta) -> list[UUID]:
    """Sweep so long after noon; returns the workers that are declared dead."""
    queue.set_now(NOW + after)
    return [dead.id for dead in queue.run(store.give_up_silent())]


def test_a_silent_worker_is_stale_after_a_minute_and_dead_after_two(queue):
    queue.register_worker(ANNA)
    assert absent(queue) == {}, "it has shown no life yet: its database is behind a pooler, or it has just started"
    seen = []
    for after in (timedelta(seconds=60), timedelta(seconds=120)):
        seen += [(silent(queue, moment), state_of(queue)) for moment in (after, after + A_TICK)]
    assert seen == [([], "active"), ([], "stale"), ([], "stale"), ([ANNA], "dead")]
    assert silent(queue, timedelta(hours=1)) == []
    died_at = queue.value("select died_at from outlive.workers")
    assert died_at == NOW + timedelta(seconds=120) + A_TICK


def test_a_worker_that_was_never_looked_at_goes_from_active_to_dead(queue):
    queue.register_worker(ANNA)
    queue.make()
    queue.claim(worker=ANNA, limit=1)
    queue.set_now(NOW + timedelta(hours=1))
    [dead] = queue.run(store.give_up_silent())
    assert dead == Dead(ANNA, "crawler-1", "host", 42, NOW, "no heartbeat for 120 s", 1)


def test_the_leases_of_another_worker_do_not_count(queue):
    queue.register_worker(ANNA)
    queue.make()
    queue.set_now(NOW + timedelta(seconds=119))
    queue.register_worker(BERT)
    queue.claim(worker=BERT, limit=1)
    assert silent(queue, timedelta(seconds=121)) == [ANNA]


@pytest.mark.parametrize("state", ["active", "draining"])
def test_a_stale_worker_that_is_heard_of_again_has_the_state_that_it_reports(queue, state):
    queue.register_worker(ANNA)
    assert queue.run(store.heartbeat(ANNA, state))
    assert queue.value("show synchronous_commit") == "on", "only a heartbeat itself may be lost in a crash"
    assert state_of(queue) == state
    silent(queue, timedelta(seconds=61))
    assert state_of(queue) == "stale"
    assert queue.run(store.heartbeat(ANNA, state))
    assert state_of(queue) == state
    assert silent(queue, timedelta(seconds=121)) == []  # It was heard of a minute ago.
    assert silent(queue, timedelta(seconds=182)) == [ANNA]


def test_a_worker_given_up_for_its_silence_is_not_found_absent_as_well(queue, connect):
    session = live(queue, connect())
    assert silent(queue, timedelta(hours=1)) == [ANNA]
    assert absent(queue) == {}
    session.close()
    assert queue.count("liveness") == 0


def test_two_that_give_up_the_silent_at_once_find_each_of_them_once(queue, connect):
    for n in range(1, 41):
        queue.register_worker(UUID(int=n))
    reapers = [connect() for _ in range(4)]
    with ThreadPoolExecutor(len(reapers)) as threads:
        found = list(threads.map(lambda reaper: silent(reaper, timedelta(hours=1)), reapers))
    found.append(silent(queue, timedelta(hours=1)))
    assert sorted(chain.from_iterable(found)) == [UUID(int=n) for n in range(1, 41)]


# The end on purpose, and what else a dead worker leaves behind.


def test_a_worker_that_stops_is_not_missed(queue, connect):
    session = live(queue, connect())
    session.run(store.stop_worker(ANNA))
    session.close()
    assert state_of(queue) == "stopped"
    assert queue.count("liveness") == 0
    assert silent(queue, timedelta(hours=1)) == []


@pytest.mark.parametrize("way", ["declared dead", "silent", "stopped"])
def test_enqueuing_sends_no_notification_to_workers_that_have_ended(queue, connect, way):
    session = live(queue, connect())
    queue.register_worker(BERT)
    for worker in (ANNA, BERT):
        queue.run(store.sleep(worker))
    match way:
        case "declared dead":
            vanish(queue, session)
            queue.run(store.declare_dead({ANNA: KEY}))
        case "silent":
            queue.set_now(NOW + timedelta(hours=1))
            queue.run(store.heartbeat(BERT, "active"))
            queue.run(store.give_up_silent())
        case "stopped":
            queue.run(store.stop_worker(ANNA))
    sleepers = "select worker from outlive.sleepers"
    assert queue.values(sleepers) == [BERT]
    queue.run(store.sleep(ANNA))
    assert queue.values(sleepers) == [BERT], "it does not know yet that it was declared dead"


# What else workers ask.


def test_one_living_worker_at_a_time_makes_room_for_a_suspect(queue):
    for worker in (ANNA, BERT):
        queue.register_worker(worker)
    assert queue.run(store.make_room(ANNA, for_s=60))
    assert not queue.run(store.make_room(BERT, for_s=60))
    queue.run(store.end_room(ANNA))
    assert queue.run(store.make_room(BERT, for_s=60))
    queue.run(store.stop_worker(BERT))
    assert queue.run(store.make_room(ANNA, for_s=0)), "the other one has stopped"
    queue.register_worker(carl := UUID(int=77))
    assert queue.run(store.make_room(carl, for_s=60)), "the time of the other one is over"


def test_a_lock_by_name_is_one_sessions_until_it_gives_it_back_or_ends(queue, connect):
    first, second = connect(), connect()
    assert first.run(store.try_lock("sweep"))
    assert not second.run(store.try_lock("sweep"))
    assert second.run(store.try_lock("another"))
    first.run(store.unlock("sweep"))
    assert second.run(store.try_lock("sweep"))
    second.close()
    eventually(lambda: queue.run(store.try_lock("sweep")))
