"""Short runs of the million deaths: right as it is, and wrong as soon as a rule of the database is missing."""

import asyncio
import json

import psycopg
import pytest

from laboratory import lab
from outlive_lab.deaths import plan, round
from outlive_lab.deaths.checker import Tables, check
from outlive_lab.deaths.plan import Fate
from outlive_lab.deaths.round import Round

SEED = "7 1"


@pytest.fixture
def _impatient(monkeypatch):
    """What is broken may keep jobs from ending. Where nothing is, an innocent suspect may wait for a minute."""
    monkeypatch.setattr(round, "DRAIN_S", 15.0)


def rules_broken(url: str, deaths: int) -> set[str]:
    history = asyncio.run(Round(url, None, SEED, deaths).play(lambda _: None))
    with psycopg.connect(url, autocommit=True) as connection:
        return {rule for rule, _, _ in check(history, Tables(connection))}


def replaced(url: str, function: str, old: str, new: str) -> None:
    """Let a function of the schema do something else."""
    with psycopg.connect(url, autocommit=True) as connection:
        [(text,)] = connection.execute("select pg_get_functiondef(%s::regproc)", [function]).fetchall()
        assert old in text
        connection.execute(text.replace(old, new))


@pytest.mark.timeout(240)
def test_nothing_is_lost_when_hundreds_of_workers_die(tmp_path):
    words = ("--deaths", 150, "--seed", 3, "--report", tmp_path, "--json")
    ran = lab(None)("deaths", *words)
    told = json.loads(ran.out)
    assert told["broken"] == {}, told["rounds"][0]["named"]
    assert ran.code == 0
    assert told["deaths"] >= 150
    assert told["rounds"][0]["seen"]["server crashed"] == 1
    assert told["rounds"][0]["seen"]["stale writes refused"] > 0
    assert told["rounds"][0]["quarantined"]["kills"] == 1
    assert "at 95 %" in (tmp_path / "deaths-3.md").read_text()
    assert json.loads(lab(None)("deaths", *words, "--resume").out) == told


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_impatient")
def test_an_end_without_the_token_is_found(database_url, monkeypatch):
    monkeypatch.setattr(plan, "FATES", {Fate.LATE: 9, Fate.FROZEN: 1})
    fence = "where r.token = any(tokens) and r.worker = by_worker"
    by_job = (
        "where r.id in (select q.id from outlive.running q where q.token = any(tokens) union all "
        "select a.job_id from outlive.attempts a where a.token = any(tokens))"
    )
    replaced(database_url, "outlive.end_attempts", fence, by_job)
    assert "ended by another" in rules_broken(database_url, 20)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_impatient")
def test_a_sweep_that_frees_too_early_is_found(database_url):
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "create or replace view outlive.missing_locks as "
            "select l.worker, l.key from outlive.liveness l where hashtext(l.worker::text) % 8 = 0"
        )
    assert "declared dead while it lived" in rules_broken(database_url, 20)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_impatient")
def test_a_charge_for_a_job_that_was_not_begun_is_found(database_url):
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "create or replace function outlive.charged(had outlive.running) returns boolean language sql stable "
            "return true"
        )
    assert "wrong blame" in rules_broken(database_url, 30)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_impatient")
def test_a_killer_that_is_convicted_without_proof_is_found(database_url):
    replaced(database_url, "outlive.verdict", "alone >= 2 and", "alone >= 1 and")
    assert "wrong blame" in rules_broken(database_url, 1)
