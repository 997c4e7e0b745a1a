"""The databases of the plugin, on a server whose role may do little."""

import threading
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outlive.pytest.databases import Databases
from tests.waiting import eventually

_DROPPING = "select count(*) from pg_stat_activity where usename = %s and state = 'active' and query ~ '^drop database'"


def test_a_role_that_may_only_create_databases_drops_one_in_which_the_server_is_at_work(empty_database_url):
    """Autovacuum is there as another role's session is: the role may end neither."""
    role = f"tester_{uuid4().hex[:8]}"
    with psycopg.connect(empty_database_url, autocommit=True) as admin:
        admin.execute(f"create role {role} login createdb".encode())
        databases = Databases(make_conninfo(empty_database_url, user=role))
        with databases.new() as url:
            name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
            other = psycopg.connect(make_conninfo(url, user=str(admin.info.user)))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                databases._admin.execute(f"drop database {name} with (force)".encode())
            left = psycopg.connect(url)

            def leave() -> None:
                eventually(lambda: admin.execute(_DROPPING, [role]).fetchone() != (0,))
                other.close()

            leaving = threading.Thread(target=leave)
            leaving.start()
        leaving.join()
        assert admin.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None
        with pytest.raises(psycopg.OperationalError):
            left.execute("select 1")
        databases.close()
