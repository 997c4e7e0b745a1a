"""Enqueuing in the caller's own transaction: the job is committed with it or not at all."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import rows
from psycopg.adapt import PyFormat

import outlive
from tests.client.example import add


@pytest.fixture
def mine(app: outlive.App, database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url) as connection:
        connection.execute("create table mine (n int)")
        connection.commit()
        yield connection
        connection.rollback()


@pytest.mark.parametrize("factory", [rows.dict_row, rows.namedtuple_row, rows.scalar_row, rows.kwargs_row(dict)])
@pytest.mark.parametrize("autocommit", [True, False])
def test_the_caller_s_connection_is_left_as_it_was(app, database_url, count, factory, autocommit):
    with psycopg.connect(database_url, row_factory=factory, autocommit=autocommit) as connection:
        text = "select '[1]'::json as a, '{}'::jsonb as b, gen_random_uuid() is null as c"
        before = [connection.execute(text, binary=binary).fetchall() for binary in (False, True)]
        dumper = connection.adapters.get_dumper(str, PyFormat.AUTO)
        connection.commit()
        first = add.using(connection=connection, dedupe_key="k").enqueue(1)
        assert add.using(connection=connection, dedupe_key="k").enqueue(2) == first
        assert [connection.execute(text, binary=binary).fetchall() for binary in (False, True)] == before
        assert connection.adapters.get_dumper(str, PyFormat.AUTO) is dumper
        assert connection.row_factory is factory
        assert connection.autocommit is autocommit
        assert connection.cursor_factory is psycopg.Cursor
        connection.commit()
    assert count() == 1


def test_the_caller_may_use_the_database_s_settings_and_search_path_as_it_likes(app, mine, count):
    mine.execute("set search_path = nowhere; set timezone = 'Asia/Tokyo'; set datestyle = 'German'")
    add.using(connection=mine, delay=0).enqueue(1)
    mine.commit()
    assert count() == 1


def test_a_transaction_that_has_failed_already_takes_no_job(app, mine):
    with pytest.raises(psycopg.errors.DivisionByZero):
        mine.execute("select 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        add.using(connection=mine).enqueue(1)


def test_a_serialisation_failure_reaches_the_caller_as_it_is_because_the_caller_repeats_the_transaction(
    app, mine, database_url
):
    mine.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    mine.execute("select * from outlive.dedupe_keys")
    with psycopg.connect(database_url) as other:
        add.using(connection=other, dedupe_key="k").enqueue(1)
    with pytest.raises(psycopg.errors.SerializationFailure):
        add.using(connection=mine, dedupe_key="k").enqueue(1)


def test_a_job_for_many_has_no_connection_of_its_own(mine):
    with pytest.raises(outlive.ConfigError, match="pass connection= to enqueue_many"):
        add.using(connection=mine).job(1)


def test_enqueuing_twice_with_one_id_in_and_out_of_a_transaction_makes_one_job(app, mine, count):
    once = add.using(id=uuid4())
    once.using(connection=mine).enqueue(1)
    mine.commit()
    once.enqueue(1)
    assert count() == 1
