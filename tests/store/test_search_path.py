"""Objects that another login makes in schema public never run with the rights of a worker, a client or an operator."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import outlive
from outlive import config, db, migrate, search_path, store
from tests.driving.databases import login, new_database
from tests.driving.making import Queue, request, value

# Each fits a call of ours better than the server's own function, which takes any type.
_HOSTILE = """
create table public.loot (who text);
grant all on public.loot to public;
create function public.steal(had bigint, given text) returns bigint language plpgsql as
  $$ begin insert into public.loot values (current_user); return had; end $$;
create function public.steal(had bigint, given jsonb) returns bigint language plpgsql as
  $$ begin insert into public.loot values (current_user); return had; end $$;
create aggregate public.count(text) (sfunc = public.steal, stype = bigint, initcond = '0');
create aggregate public.count(jsonb) (sfunc = public.steal, stype = bigint, initcond = '0');
create function public.cardinality(given uuid[]) returns int language plpgsql as
  $$ begin insert into public.loot values (current_user); return array_length(given, 1); end $$;
create function public.same(a uuid[], b uuid[]) returns boolean language plpgsql as
  $$ begin insert into public.loot values (current_user); return a::text = b::text; end $$;
create operator public.= (leftarg = uuid[], rightarg = uuid[], function = public.same);
create operator public.<> (leftarg = uuid[], rightarg = uuid[], function = public.same);
"""
_STOLEN = "select count(*) from public.loot"
_SPAWNED = b'[{"task": "work", "dedupe_key": "k", "options": {"max_attempts": 2}}]'
PURPOSES = [found for found in vars(db).values() if isinstance(found, db.Purpose)]


@pytest.fixture
def hostile_url(server_url: str) -> Iterator[str]:
    """A database as Postgres 14 makes them: every login may create in schema public. One that may only enqueue did."""
    with new_database(server_url) as url, psycopg.connect(url, autocommit=True) as admin:
        admin.execute("grant create on schema public to public")
        with login(admin, "outlive_enqueue") as name:
            with psycopg.connect(make_conninfo(url, user=name), autocommit=True) as attacker:
                attacker.execute(_HOSTILE)
            yield url
            admin.execute(f"drop owned by {name}".encode())


@contextmanager
def as_worker(url: str) -> Iterator[str]:
    with psycopg.connect(url, autocommit=True) as admin, login(admin, "outlive_worker") as name:
        yield make_conninfo(url, user=name)


def work(connection: psycopg.Connection[Any]) -> None:
    """Spawn jobs with what the hostile functions wait for, as the end of a job does, and count."""
    connection.execute("select outlive.spawn(%s)", [_SPAWNED.decode()])
    connection.execute("select outlive.follow_up(array[gen_random_uuid()], array['succeeded'])")
    connection.execute("select outlive.cancel(array[gen_random_uuid()])")


def test_every_function_of_the_schema_is_pinned_or_bound_when_it_is_made(database_url):
    with psycopg.connect(database_url) as connection:
        unpinned = connection.execute(
            "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'outlive'::regnamespace"
            " and p.prosqlbody is null and not %s = any(coalesce(p.proconfig, '{}')) order by 1",
            [f"search_path={search_path.TRUSTED}"],
        ).fetchall()
    assert unpinned == []


def test_a_login_that_may_only_enqueue_runs_nothing_as_a_caller_of_our_functions(hostile_url):
    with as_worker(hostile_url) as url, psycopg.connect(url, autocommit=True) as careless:
        careless.execute("select count('x'::text)")
        assert value(careless, _STOLEN) == 1  # The trap works.
        work(careless)
        assert value(careless, _STOLEN) == 1


def test_every_session_of_ours_is_pinned(hostile_url):
    with as_worker(hostile_url) as url:
        for purpose in PURPOSES:
            with Queue.at(url, purpose) as connection:
                assert connection.value("show search_path") == search_path.TRUSTED
                connection.execute("select count('x'::text)")
                assert connection.value(_STOLEN) == 0


def test_async_sessions_are_pinned(hostile_url):
    async def asked() -> object:
        async with await db.aconnect(hostile_url, db.SERVICE) as connection:
            return await (await connection.execute("show search_path")).fetchone()

    assert asyncio.run(asked()) == (search_path.TRUSTED,)


_COUNTING = db.Statement("counting", b"select count('x'::text)", (), lambda rows: rows[0][0])


def test_behind_a_pooler_each_transaction_is_pinned_and_the_session_is_left_alone(hostile_url):
    with as_worker(hostile_url) as url, Queue.at(url) as connection:
        connection.execute("reset search_path")
        connection.pooled = True  # As `connect` does it behind a pooler.
        assert connection.run(_COUNTING) == 1
        assert db.run_all(connection, [_COUNTING, _COUNTING]) == [1, 1]
        with connection.transaction():
            assert connection.run(_COUNTING) == 1
        connection.run(store.enqueue([request()], max_args_bytes=100))
        assert connection.value(_STOLEN) == 0
        assert connection.value("show search_path") == '"$user", public'


def test_behind_a_pooler_async_transactions_are_pinned_too(hostile_url):
    async def count() -> None:
        async with await db.aconnect(hostile_url) as connection:
            await connection.execute("reset search_path")
            connection.pooled = True
            assert await db.arun(connection, _COUNTING) == 1
            assert await db.arun_all(connection, [_COUNTING, _COUNTING]) == [1, 1]
            assert await (await connection.execute(_STOLEN)).fetchone() == (0,)

    asyncio.run(count())


def test_a_caller_s_own_connection_runs_nothing_hostile(hostile_url):
    app = outlive.App()
    app.configure(config.load(flags={"database_url": hostile_url}))

    @app.task(name="task")
    def task(n: int) -> None: ...

    with as_worker(hostile_url) as url, psycopg.connect(url, autocommit=True) as mine:
        first = task.using(connection=mine).enqueue(1)
        task.using(connection=mine, delay="1h", dedupe_key="k").enqueue(2)
        app.enqueue_many([task.using(after=[first]).job(3), task.job(4)], connection=mine)
        with app.batch("all", connection=mine) as batch:
            task.using(batch=batch, connection=mine).enqueue(5)
        assert value(mine, "select count(*) from outlive.jobs") == 5
        assert value(mine, _STOLEN) == 0


def test_a_migration_binds_names_to_the_server_s_own(server_url):
    with new_database(server_url, template="template0") as url, psycopg.connect(url, autocommit=True) as admin:
        admin.execute("grant create on schema public to public")
        admin.execute(_HOSTILE)
        for pooled in (False, True):
            admin.execute("drop schema if exists outlive cascade")
            with Queue.at(url) as connection:
                if pooled:
                    connection.execute("reset search_path")
                connection.pooled = pooled
                migrate.migrate(connection)
            uses = (
                "select distinct d.objid::text from pg_depend d join pg_proc p on d.refobjid = p.oid"
                " where d.refclassid = 'pg_proc'::regclass and p.pronamespace = 'public'::regnamespace"
                " and d.classid in ('pg_proc'::regclass, 'pg_rewrite'::regclass, 'pg_attrdef'::regclass)"
                " and d.deptype = 'n' and not exists ("
                "   select from pg_proc q where q.oid = d.objid and q.pronamespace = 'public'::regnamespace)"
            )
            assert admin.execute(uses).fetchall() == []


@pytest.mark.parametrize("pooled", [False, True])
def test_no_session_of_ours_compiles_statements_whatever_the_database_says(server_url, pooled, monkeypatch):
    if pooled:  # As behind a pooler, which sends a statement to another backend.
        pin = search_path.pin_session
        monkeypatch.setattr(search_path, "pin_session", lambda pid, check_ms=None: pin(pid + 1, check_ms))
    statement = db.Statement("jit", b"select current_setting('jit')", (), lambda rows: rows[0][0], ())
    with new_database(server_url) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"alter database {admin.info.dbname} set jit = on".encode())
        for purpose in PURPOSES:
            with db.connect(url, purpose) as connection:
                assert connection.pooled is pooled
                assert db.run(connection, statement) == "off"
