"""The command doctor: its findings in a real database, and its verdict on a bad one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlive import db, store
from outlive.cli.doctor import Finding, judge_jobs, judge_server
from tests.driving.commands import Cli
from tests.driving.databases import new_database
from tests.driving.making import claim_job, make, make_quarantined

HEALTHY = {"fsync": "on", "synchronous_commit": "on", "autovacuum": "on", "autovacuum_naptime_s": 10.0, "dead_rows": 0}


def findings(cli: Cli) -> dict[str, dict[str, Any]]:
    ran = cli("doctor", "--json")
    assert ran.code == 1  # The tests' own server has fsync off, which is a problem.
    return {finding["what"]: finding for finding in json.loads(ran.out)}


def test_the_doctor_looks_at_the_server_and_the_jobs(cli: Cli, connection: db.Connection) -> None:
    claim_job(connection, make(connection, "shop.stuck"), lease_s=0)
    make_quarantined(connection)
    make(connection)
    found = findings(cli)
    levels = {what: finding["level"] for what, finding in found.items()}
    assert levels["fsync is off: a crash of the machine can lose or damage all data"] == "problem"
    assert levels["1 job is stuck: no reaper has freed the jobs of a silent worker"] == "problem"
    assert levels["1 job is in quarantine"] == "advice"
    assert levels["1 job is ready and no worker is active"] == "problem"
    assert all(finding["next"] for finding in found.values() if finding["level"] != "fine")
    text = cli("doctor").out
    assert "✗ fsync is off" in text
    assert "→ alter system set fsync = on" in text


def test_the_doctor_names_the_file_of_settings_that_is_in_force(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert "no outlive.toml is in use" in findings(cli)
    (tmp_path / "outlive.toml").write_text("slots = 2\n")
    assert f"settings are read from {tmp_path}/outlive.toml" in findings(cli)


def test_a_database_without_schema_is_a_problem(empty_database_url: str) -> None:
    ran = Cli(empty_database_url)("doctor")
    assert ran.code == 1
    assert "✗ the database has no outlive schema yet\n    → run `outlive migrate`" in ran.out


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_another_encoding_is_refused_and_named(server_url: str, encoding: str) -> None:
    """54"""
    with new_database(server_url, template="template0", options=f"encoding '{encoding}' locale 'C'") as url:
        cli = Cli(url)
        refused = cli("migrate")
        assert (refused.code, encoding in refused.err) == (5, True)
        doctor = cli("doctor")
        assert doctor.code == 1
        assert f"✗ the database has the encoding {encoding}" in doctor.out


def test_a_long_transaction_is_named_by_its_backend(
    connection: db.Connection, connect: Callable[[], db.Connection]
) -> None:
    other = connect()
    other.execute("begin isolation level repeatable read")
    other.execute("select 1 from outlive.jobs")
    [health] = db.run(connection, store.health())
    assert health["oldest_snapshot_pid"] is not None
    [advice] = [f for f in judge_server(health | {"oldest_snapshot_s": 300.0}) if "removing rows for" in f.what]
    assert advice.level == "advice"
    assert f"pg_terminate_backend({health['oldest_snapshot_pid']})" in (advice.next or "")


@pytest.mark.parametrize(
    ("sick", "level", "said"),
    [
        ({}, "fine", "Postgres"),
        ({"server_version": 130011}, "problem", "Postgres 13 is too old"),
        ({"synchronous_commit": "off"}, "problem", "synchronous_commit is off"),
        ({"autovacuum": "off"}, "problem", "autovacuum is off"),
        ({"autovacuum_naptime_s": 60.0}, "advice", "autovacuum runs only every 60.0 s"),
        ({"connections": 85, "max_connections": 100}, "advice", "85 of 100 connections"),
        ({"connections": 98, "max_connections": 100}, "problem", "98 of 100 connections"),
        ({"dead_rows": 2_000_000}, "advice", "2,000,000 dead rows"),
    ],
)
def test_each_ill_of_the_server_has_its_weight(
    connection: db.Connection, sick: dict[str, object], level: str, said: str
) -> None:
    [health] = db.run(connection, store.health())
    worst = _worst(list(judge_server(health | HEALTHY | {"oldest_snapshot_s": 0.0} | sick)))
    assert worst.level == level
    assert said in worst.what
    assert worst.next or level == "fine"


def test_idle_workers_and_idle_queues_are_no_problem(connection: db.Connection) -> None:
    [health] = db.run(connection, store.health())
    assert _worst(list(judge_jobs(health, ready=0))).level == "advice"
    assert _worst(list(judge_jobs(health | {"active_workers": 2}, ready=5))).level == "fine"


def _worst(findings: list[Finding]) -> Finding:
    return max(findings, key=lambda finding: ["fine", "advice", "problem"].index(finding.level))
