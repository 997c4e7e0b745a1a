"""Migrations: the same schema however a database came to it, and one sentence that says what is wrong with another."""

import re
import shlex
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outlive import migrate, store
from outlive.errors import DatabaseBusy, SchemaMismatch
from outlive.model import Ended
from outlive.states import Outcome, State
from tests.driving import releases
from tests.driving.databases import SETTABLE_CLOCK, new_database, worker_connections
from tests.driving.making import Connect, Queue, links, new_worker, values
from tests.waiting import eventually

SNAPSHOTS = sorted((Path(__file__).parent / "schemas").glob("v*.sql"), key=lambda path: int(path.stem[1:]))
UPGRADES = sorted((Path(migrate.__file__).parent / "sql" / "upgrades").glob("*.sql"))
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")

# All that makes a schema what it is, one line of text each.
CATALOG = """
select format('column %s.%s: %s%s%s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
    case when a.attnotnull then ' not null' end, ' default ' || pg_get_expr(d.adbin, d.adrelid),
    case when a.attidentity <> '' then ' identity ' || a.attidentity::text end,
    ' collate ' || (select collname from pg_collation where oid = a.attcollation and a.attcollation <> 100))
from pg_attribute a join pg_class c on c.oid = a.attrelid
  left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relnamespace = 'outlive'::regnamespace and c.relkind in ('r', 'v') and a.attnum > 0 and not a.attisdropped
union all
select format('relation %s: %s %s %s', relname, relkind, relpersistence, reloptions)
from pg_class where relnamespace = 'outlive'::regnamespace and relkind in ('r', 'v', 'S')
union all
select format('constraint %s on %s: %s', conname, conrelid::regclass, pg_get_constraintdef(oid))
from pg_constraint where connamespace = 'outlive'::regnamespace and contype <> 'n'
union all
select format('index: %s;', pg_get_indexdef(indexrelid))
from pg_index i join pg_class c on c.oid = i.indrelid where c.relnamespace = 'outlive'::regnamespace
union all
select format('function: %s', pg_get_functiondef(oid)) from pg_proc where pronamespace = 'outlive'::regnamespace
union all
select format('view %s: %s', viewname, definition) from pg_views where schemaname = 'outlive'
union all
select format('trigger %s on %s', tgname, tgrelid::regclass) from pg_trigger t join pg_class c on c.oid = t.tgrelid
where c.relnamespace = 'outlive'::regnamespace and not tgisinternal
union all
select format('type %s: %s', typname, typtype) from pg_type
where typnamespace = 'outlive'::regnamespace and typtype in ('e', 'd')
order by 1
"""


def catalog(connection: psycopg.Connection[Any]) -> list[str]:
    return values(connection, CATALOG)


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Queue]:
    with Queue.at(empty_database_url) as connection:
        yield connection


def test_migrating_again_changes_nothing(empty):
    migrate.migrate(empty)
    before = catalog(empty)
    job = empty.make()
    oid = empty.value("select 'outlive.job_states'::regclass::oid")
    assert migrate.migrate(empty) == (migrate.VERSION, migrate.VERSION)
    assert catalog(empty) == before
    assert empty.value("select 'outlive.job_states'::regclass::oid") == oid
    assert empty.state_of(job) is State.PENDING


def test_a_migration_that_fails_leaves_nothing_behind(empty, monkeypatch):
    whole = migrate.script()
    monkeypatch.setattr(migrate, "script", lambda current: whole + "; select 1 / 0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate.migrate(empty)
    assert empty.value("select to_regnamespace('outlive')") is None


def test_eight_migrating_one_empty_database_at_once_end_with_one_schema(empty_database_url):
    start = threading.Barrier(8)

    def go(_: int) -> tuple[int, int]:
        with Queue.at(empty_database_url) as connection:
            start.wait()
            return migrate.migrate(connection)

    with ThreadPoolExecutor(8) as threads:
        steps = sorted(threads.map(go, range(8)))
    assert steps == [(0, migrate.VERSION)] + [(migrate.VERSION, migrate.VERSION)] * 7
    with Queue.at(empty_database_url) as connection:
        assert connection.values("select version from outlive.schema_version") == [migrate.VERSION]


def test_a_database_without_the_schema_is_told_to_be_migrated(empty):
    with pytest.raises(SchemaMismatch, match=r"^the database has no outlive schema yet: run `outlive migrate`$"):
        migrate.check(empty)


@pytest.mark.parametrize(
    "given",
    [
        "host=h user=me dbname=d password=ab&secret",
        "host=h user=me dbname=d password=ab'secret",
        "host=h user=me dbname=d password='ab secret'",
        "postgresql://me:secret@h/d",
        "postgresql://me@h/d?password=ab'secret",
        "postgresql://me@h/d?pass%77ord=secret",
        "postgresql://me@h/d?sslpassword=secret",
    ],
)
def test_the_command_that_migrates_another_database_has_no_password(empty, given):
    with pytest.raises(SchemaMismatch, match="run `outlive migrate --database-url") as told:
        migrate.check(empty, given)
    assert "secret" not in str(told.value)
    *_, named = shlex.split(str(told.value).split("`")[1])
    assert conninfo_to_dict(named) == {"host": "h", "user": "me", "dbname": "d"}


def test_an_older_schema_is_told_to_be_migrated(queue, monkeypatch):
    have, need = migrate.VERSION, migrate.VERSION + 1
    monkeypatch.setattr(migrate, "VERSION", need)
    sentence = f"^the database has schema version {have}, but this outlive needs {need}: run `outlive migrate`$"
    with pytest.raises(SchemaMismatch, match=sentence):
        migrate.check(queue)


def test_a_newer_schema_is_neither_used_nor_migrated(queue):
    newer = migrate.VERSION + 1
    queue.execute("insert into outlive.schema_version values (%s)", [newer])
    before = catalog(queue)
    sentence = f"version {newer}, newer than the {migrate.VERSION} of this outlive: upgrade outlive here$"
    with pytest.raises(SchemaMismatch, match=sentence):
        migrate.check(queue)
    with pytest.raises(SchemaMismatch, match=sentence):
        migrate.migrate(queue)
    assert catalog(queue) == before


def test_a_newer_schema_that_serves_this_version_is_used_and_left_as_it_is(queue):
    queue.execute("insert into outlive.schema_version values (%s, now(), %s)", [migrate.VERSION + 1, migrate.VERSION])
    before = catalog(queue)
    migrate.check(queue)
    assert migrate.migrate(queue) == (migrate.VERSION, migrate.VERSION)
    assert catalog(queue) == before


def test_there_is_a_snapshot_of_every_version():
    assert [path.stem for path in SNAPSHOTS] == [f"v{version}" for version in range(1, migrate.VERSION + 1)]


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda path: path.stem)
def test_every_earlier_version_is_migrated_to_the_schema_of_a_fresh_install(empty, server_url, snapshot):
    """A change to a released schema raises its version, brings an upgrade, and freezes the new script:
    `outlive migrate --sql > tests/store/schemas/vN.sql`. A version that is not released yet may be frozen again."""
    with new_database(server_url, template="template0") as url, Queue.at(url) as fresh:
        migrate.migrate(fresh)
        expected = catalog(fresh)
    empty.execute(snapshot.read_bytes())
    assert migrate.migrate(empty) == (int(snapshot.stem[1:]), migrate.VERSION)
    found = catalog(empty)
    assert set(found) - set(expected) == set()
    assert set(expected) - set(found) == set()
    assert found == expected
    migrate.check(empty)


@pytest.mark.parametrize("path", UPGRADES, ids=lambda path: path.stem)
def test_no_upgrade_adds_a_column_with_a_default(path):
    """Minor versions since 15.20 and 17.12 refuse that for a table whose rows are a function's parameter."""
    added = re.findall(r"add column[^,;]*", path.read_text())
    assert added
    assert [words for words in added if " default " in words] == []


# An upgrade beside others


@pytest.fixture
def version_1(empty: Queue) -> Queue:
    empty.execute(SNAPSHOTS[0].read_bytes())
    return empty


def test_clients_enqueue_while_an_upgrade_waits_for_a_reader(
    version_1: Queue, empty_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = make_conninfo(empty_database_url, application_name="a long report")
    with ThreadPoolExecutor(1) as thread, psycopg.connect(url) as reader, Queue.at(empty_database_url) as client:
        process, user = reader.info.backend_pid, reader.info.user
        reader.execute("select count(*) from outlive.job_states")
        upgrade = thread.submit(migrate.migrate, version_1)
        client.execute("set lock_timeout = '20s'")
        for attempt in (1, 2):
            eventually(lambda n=attempt: len(caplog.messages) >= n, within_s=30, what="it waits")  # type: ignore[misc]
            client.execute("select outlive.enqueue('work')")
        reader.rollback()
        assert upgrade.result(60) == (1, migrate.VERSION)
        client.execute("select outlive.enqueue('work')")
    sentence = f"the upgrade waits for tables that are in use by a long report (process {process} of user {user}), for "
    assert all(line.startswith(sentence) for line in caplog.messages)
    assert version_1.value("select count(*) from outlive.jobs") == 3


def test_an_upgrade_gives_up_when_a_table_stays_in_use(version_1, empty_database_url, monkeypatch):
    monkeypatch.setattr(migrate, "_GIVE_UP_S", 0)
    with psycopg.connect(empty_database_url) as reader:
        reader.execute("select from outlive.jobs")
        with pytest.raises(DatabaseBusy, match=rf"^the schema was not upgraded: .*process {reader.info.backend_pid} "):
            migrate.migrate(version_1)
    assert migrate.version(version_1) == 1
    assert migrate.migrate(version_1) == (1, migrate.VERSION)


OLD_WORKER = """
insert into outlive.workers (id, name, hostname, pid, version, slots, started_at, last_seen, state, watched)
values (%(id)s, 'old', 'there', 1, '0.1.0', 1, now(), now() - %(seen)s * interval '1 second', %(state)s, true)
"""


def test_an_upgrade_counts_a_worker_with_a_late_heartbeat_as_running_while_it_has_its_lock_or_a_lease(
    version_1, empty_database_url
):
    old = uuid4()
    version_1.execute(OLD_WORKER, {"id": old, "seen": 3600, "state": "stale"})
    version_1.execute("insert into outlive.liveness values (%s, %s, pg_postmaster_start_time())", [old, 5 << 40])
    with psycopg.connect(empty_database_url, autocommit=True) as session:
        session.execute("select pg_advisory_lock(%s)", [5 << 40])
        late = rf"old on there \(its heartbeat is late, but its session lives: process {session.info.backend_pid}\)"
        with pytest.raises(SchemaMismatch, match=f"^workers run that need schema version 1: {late}. Stop them"):
            migrate.migrate(version_1)
        session.execute("select pg_advisory_unlock_all()")
    version_1.execute("select outlive.enqueue('work')")
    version_1.execute(
        "with j as (delete from outlive.waiting returning *) insert into outlive.running (id, attempt, worker, "
        "lease_until, heartbeat_at, started_at, queue, source, task, priority, ready_at, failures, crashes, losses) "
        "select id, 1, %s, now() + interval '1h', now(), now(), queue, source, task, priority, now(), 0, 0, 0 from j",
        [old],
    )
    with pytest.raises(SchemaMismatch, match=r"old on there \(its heartbeat is late, but it has leases until 2"):
        migrate.migrate(version_1)
    assert migrate.version(version_1) == 1
    version_1.execute("update outlive.running set lease_until = now() - interval '1 second'")
    assert migrate.migrate(version_1) == (1, migrate.VERSION)
    assert version_1.values("select begun from outlive.running") == [True]
    assert version_1.values("select count(secret) from outlive.workers") == [1]


# An old server


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda path: path.stem)
def test_every_earlier_version_is_migrated_on_postgres_15(debian_url, snapshot):
    with (
        new_database(debian_url, template="template0") as fresh_url,
        new_database(debian_url, template="template0") as old_url,
        Queue.at(fresh_url) as fresh,
        Queue.at(old_url) as old,
    ):
        migrate.migrate(fresh)
        old.execute(snapshot.read_bytes())
        assert migrate.migrate(old) == (int(snapshot.stem[1:]), migrate.VERSION)
        assert catalog(old) == catalog(fresh)


@pytest.fixture(scope="module")
def debian_url() -> Iterator[str]:
    if not DEBIAN_15.is_dir():
        pytest.skip(f"no Postgres 15 in {DEBIAN_15}")
    with releases.server(DEBIAN_15) as url:
        yield url


OWNED_BY_ROLE = """
do $$ declare one text; begin
  foreach one in array array['owner', 'worker', 'enqueue', 'viewer', 'job'] loop
    if to_regrole('outlive_' || one) is null then execute format('create role outlive_%s', one); end if;
  end loop;
  create role migrating login in role outlive_owner;
  alter schema outlive owner to outlive_owner;
  for one in
    select 'table ' || oid::regclass from pg_class where relnamespace = 'outlive'::regnamespace and relkind in ('r','v')
    union all select 'function ' || oid::regprocedure from pg_proc where pronamespace = 'outlive'::regnamespace
  loop execute format('alter %s owner to outlive_owner', one); end loop;
end $$
"""


def test_an_upgrade_creates_the_roles_that_the_old_version_did_not_have(debian_url):
    with new_database(debian_url, template="template0") as url, Queue.at(url) as admin:
        admin.execute(SNAPSHOTS[0].read_bytes())
        admin.execute(OWNED_BY_ROLE)
        admin.execute("drop database if exists tested with (force)")  # Its rights would keep the role.
        admin.execute("drop role if exists outlive_protocol")
        with (
            Queue.at(make_conninfo(url, user="migrating")) as owner,
            pytest.raises(SchemaMismatch, match=r"^this version has roles that the server lacks, and you may not"),
        ):
            migrate.migrate(owner)
        assert migrate.version(admin) == 1
        assert migrate.migrate(admin) == (1, migrate.VERSION)
        assert admin.value("select has_schema_privilege('outlive_protocol', 'outlive', 'usage')") is True


@pytest.fixture
def on_15(debian_url: str) -> Iterator[Connect]:
    """Connections to a database of Debian's Postgres 15 with the schema."""
    with psycopg.connect(debian_url, autocommit=True) as admin:
        admin.execute("drop database if exists tested with (force)")
        admin.execute("create database tested")
    url = make_conninfo(debian_url, dbname="tested")
    with Queue.at(url) as connection:
        assert connection.info.server_version // 10000 == 15
        assert migrate.migrate(connection, roles=True) == (0, migrate.VERSION)
        assert migrate.migrate(connection, roles=True) == (migrate.VERSION, migrate.VERSION)
        connection.execute(SETTABLE_CLOCK)
    with worker_connections(url) as connect:
        yield connect


def test_a_job_lives_its_life_on_postgres_15(on_15):
    connection = on_15()
    connection.set_now()
    job = connection.make(args=b'{"a": 1}', dedupe_key="key")
    assert connection.value("select outlive.enqueue('work', dedupe_key => 'key')") == job
    assert [one.ready for one in connection.run(store.unsourced_lanes(["work"])).lanes] == [True]
    connection.run_job(job, Outcome.FAILED, error="no luck")
    assert connection.state_of(job) is State.RETRYABLE
    (change,) = connection.run(store.retry([job]))
    assert (change.changed, change.state) == (True, "pending")
    (claimed,) = connection.claim()
    assert (claimed.attempt, claimed.args) == (2, b'{"a": 1}')
    assert connection.run(store.renew(new_worker(), [claimed.token])) == {}
    assert connection.end(Ended(claimed.token, result=b"3")) == []
    assert connection.end(Ended(claimed.token, result=b"4")) == [claimed.token]
    assert connection.state_of(job) is State.SUCCEEDED

    cancelled = connection.make()
    assert [one.changed for one in connection.run(store.cancel([cancelled]))] == [True]
    assert connection.state_of(cancelled) is State.CANCELLED
    killer = connection.make_quarantined()
    assert connection.values("select id from outlive.killers") == [killer]
    assert [one.changed for one in connection.run(store.release([killer]))] == [True]
    lost = connection.claim()[0]
    connection.set_now(later_s=301)
    assert [one.id for one in connection.run(store.expire())] == [lost.id]

    first, second = connection.make(links=links("a")), connection.make(links=links("a"))
    assert {connection.run_job(one).id for one in (first, second)} == {first, second}

    connection.set_now(later_s=86400)
    assert connection.run(store.prune_finished(State.SUCCEEDED, keep_s=60))[:2] == (3, False)
    assert connection.run(store.prune_jobs([cancelled, killer])) == 1
    assert connection.values("select id from outlive.jobs") == [killer]


def test_the_tables_are_the_same_on_postgres_15(on_15, queue):
    """Functions and views are printed differently by different servers; tables are not."""

    def tables(on: Queue) -> list[str]:
        return [line for line in catalog(on) if line.startswith(("column", "relation", "constraint", "index"))]

    assert tables(on_15()) == tables(queue)


def test_a_checkpoint_of_version_1_is_a_step_afterwards(version_1):
    kept, other = uuid4(), uuid4()
    version_1.execute(
        "insert into outlive.progress (job_id, attempt, checkpoint, updated_at)"
        " values (%s, 2, '{\"page\": 7}', now()), (%s, 1, null, now())",
        [kept, other],
    )
    migrate.migrate(version_1)
    found = version_1.run(store.kept_by_jobs([kept, other]))
    assert found == {kept: b'[["checkpoint", {"page": 7}, null]]'}
