"""The command migrate: once, again, as a dry run, and as a script."""

import shlex

import psycopg
import pytest

from outlive import migrate
from tests.driving.commands import Cli


def test_migrate_brings_an_empty_database_up_to_date_and_may_be_repeated(empty_database_url):
    cli = Cli(empty_database_url)
    before = cli("migrate", "--check")
    assert before.code == 5
    command = f"outlive migrate --database-url {shlex.quote(empty_database_url)}"
    assert before.err == f"outlive: the database has no outlive schema yet: run `{command}`\n"
    assert cli("migrate").out == f"schema version none is now {migrate.VERSION}\n"
    assert cli("migrate").out == f"schema version {migrate.VERSION}\n"
    assert cli("migrate", "--check").code == 0
    assert cli("migrate", "--roles").out.endswith("the roles exist\n")


def test_the_printed_script_makes_the_schema(empty_database_url):
    script = Cli(None)("migrate", "--sql", "--roles").out
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(script.encode())
    assert Cli(empty_database_url)("migrate", "--check").code == 0


@pytest.mark.parametrize(
    "words", [("jobs",), ("show", "01a1dd4a-5690-7153-9dec-d38bcb1117af"), ("retry", "--all"), ("stats",)]
)
def test_no_command_works_on_another_schema(empty_database_url, words):
    ran = Cli(empty_database_url)(*words)
    assert ran.code == 5
    assert "outlive migrate" in ran.err
    assert ran.err.count("\n") == 1


def test_the_version_that_is_shown_is_that_of_the_database(cli, queue):
    newest = migrate.VERSION + 1
    queue.execute("insert into outlive.schema_version (version, serves) values (%s, %s)", [newest, migrate.VERSION])
    there = f"version {newest}, which serves version {migrate.VERSION} of this outlive"
    assert cli("migrate", "--check").out == cli("migrate").out == f"schema {there}\n"
    assert f"the schema has {there}" in cli("doctor").out


def test_check_goes_with_nothing_else(cli):
    assert cli("migrate", "--check", "--roles").code == 2
