"""A session of the worker without the worker."""

import asyncio
import contextlib

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outlive import db, store
from outlive.errors import EmbeddedError
from outlive.statement import Statement
from outlive.worker.loops import forever
from outlive.worker.session import Session
from tests.driving.databases import end_sessions, login
from tests.driving.making import Queue
from tests.waiting import eventually


def limit(queue: Queue, role: str, connections: int) -> None:
    """Say how many connections a role may have."""
    queue.execute(f"alter role {role} connection limit {connections}".encode())


def test_a_statement_that_is_cancelled_and_cut_off_is_cancelled_and_not_broken(database_url, queue):
    """A service that gets over broken connections would go on, and its worker would never stop."""

    async def stop_a_service() -> None:
        session = Session(database_url)

        async def sleep() -> None:
            with contextlib.suppress(psycopg.Error):
                await session.run(Statement("sleep", b"select pg_sleep(60)", (), lambda rows: rows))
            await asyncio.Event().wait()

        service = asyncio.create_task(forever("sleep", sleep))
        sleeping = "select count(*) = 1 from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"
        await asyncio.to_thread(eventually, lambda: queue.execute(sleeping).fetchone() == (True,))
        service.cancel()
        session.hang_up()
        _, late = await asyncio.wait([service], timeout=20)
        await session.close()
        assert not late

    asyncio.run(stop_a_service())


def test_a_session_that_became_read_only_is_replaced_after_one_failure(database_url, queue):
    """A connection from the last moment of a read-only spell stays read-only: each failure on it costs a pause."""
    name = queue.info.dbname
    write = Statement("write", b"delete from outlive.awaited", (), lambda rows: None)

    async def write_after_a_spell_of_read_only() -> None:
        session = Session(database_url)
        queue.execute(f"alter database {name} set default_transaction_read_only = on".encode())
        await session.connect()
        queue.execute(f"alter database {name} reset default_transaction_read_only".encode())
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await session.run(write)
        await session.run(write)
        await session.close()

    asyncio.run(write_after_a_spell_of_read_only())


def test_a_service_that_misses_that_it_is_cancelled_is_not_run_again():
    runs, begun = 0, asyncio.Event()

    async def miss() -> None:
        nonlocal runs
        runs += 1
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def stop_it() -> None:
        service = asyncio.create_task(forever("miss", miss))
        await begun.wait()
        service.cancel()
        await asyncio.wait([service], timeout=20)

    asyncio.run(stop_it())
    assert runs == 1


def test_an_error_that_says_what_to_do_is_logged_without_a_traceback(caplog):
    async def run() -> None:
        again = asyncio.Event()

        async def fail() -> None:
            if caplog.records:
                again.set()
            raise EmbeddedError("The keeper of the embedded server died while starting; see keeper.log.")

        service = asyncio.create_task(forever("liveness", fail))
        await again.wait()
        service.cancel()
        await asyncio.wait([service])

    asyncio.run(run())
    first = caplog.records[0]
    assert first.getMessage().startswith("liveness: The keeper of the embedded server died while starting; see")
    assert (first.levelname, first.exc_info) == ("WARNING", None)


def test_lost_connections_are_one_line_and_no_outage_if_others_can_be_made(database_url, queue, caplog):
    caplog.set_level("INFO", logger="outlive.worker")

    async def lose_two() -> None:
        sessions = [Session(database_url), Session(database_url)]
        for session in sessions:
            await session.run(store.clock())
        await asyncio.to_thread(end_sessions, queue)
        for session in sessions:
            with pytest.raises(psycopg.OperationalError):
                await session.run(store.clock())
            await session.run(store.clock())
            await session.close()

    asyncio.run(lose_two())
    (line,) = caplog.records
    assert line.levelname == "INFO"
    assert "terminating connection" in line.getMessage()


def test_a_refused_connection_beside_one_that_works_is_no_lost_database(database_url, queue, caplog):
    async def be_refused(url: str) -> None:
        first, second, third = sessions = [Session(url) for _ in range(3)]
        await first.run(store.clock())
        for refused in (second, third, second):
            with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
                await refused.run(store.clock())
        limit(queue, role, 3)
        for session in sessions:
            await session.run(store.clock())
            await session.close()

    with login(queue, "outlive_worker") as role:
        limit(queue, role, 1)
        asyncio.run(be_refused(make_conninfo(database_url, user=role)))
    refused, over = [line.getMessage() for line in caplog.records]
    assert refused.startswith(f"can't open another connection to {db.named(database_url)} (connection failed: ")
    assert refused.endswith("raise the limit that the error names, or lower the setting `connections`")
    assert over.startswith(f"another connection to {db.named(database_url)} could be opened after 0.")


def test_a_database_whose_last_session_is_gone_is_lost_although_its_server_answers(database_url, queue, caplog):
    async def lose_all(url: str) -> None:
        first, second = Session(url), Session(url)
        await first.run(store.clock())
        with pytest.raises(psycopg.OperationalError):
            await second.run(store.clock())
        limit(queue, role, 0)
        await asyncio.to_thread(end_sessions, queue)
        with pytest.raises(psycopg.OperationalError):
            await second.run(store.clock())

    with login(queue, "outlive_worker") as role:
        limit(queue, role, 1)
        asyncio.run(lose_all(make_conninfo(database_url, user=role)))
    refused, lost = [line.getMessage().split(" (")[0] for line in caplog.records]
    where = db.named(database_url)
    assert (refused, lost) == (f"can't open another connection to {where}", f"lost the database {where}")


def test_an_outage_names_the_database_without_the_password(caplog):
    async def try_twice() -> None:
        session = Session("postgresql://me:secret@localhost:1/shop")
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError):
                await session.run(store.clock())

    asyncio.run(try_twice())
    (line,) = caplog.records
    assert line.getMessage().startswith("lost the database shop at localhost:1 (")
    assert "secret" not in line.getMessage()
