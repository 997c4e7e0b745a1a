"""Peers are measured beside outlive; a peer that can't be measured gives a reason."""

import json
from pathlib import Path

import pytest

from outlive_lab.bench import command
from outlive_lab.peers import contest, plan, results
from outlive_lab.peers.session import Amounts, Failed, Place, as_url, parsed
from tests.driving.making import Queue

TINY = Amounts(part=0.001, seconds=0.05, pickups=3)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small sizes, and an empty cache with no way to fill it."""
    monkeypatch.setattr(contest, "QUICK", TINY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("tiny")
def test_outlive_is_measured_and_a_peer_that_is_missing_says_why(server_url, tmp_path):
    there, page = tmp_path / "peers.json", tmp_path / "peers.md"
    words = ["--peers", "--quick", "--only", "pgqueuer", "--database-url", server_url]

    code = command.main([*words, "--json", str(there), "--report", str(page)])

    assert code == 0
    told = json.loads(there.read_text())
    ours = told["systems"]["outlive"]["modes"]
    assert all(mode["failed"] is None and len(mode["samples"]["drain"]) == 2 for mode in ours.values())
    assert ours["default"]["samples"].keys() == {"drain", "one", "bulk", "p50", "p99", "bare", "jobs", "stats"}
    assert "can't be installed" in told["systems"]["pgqueuer"]["modes"]["tuned"]["failed"]
    assert "warm drain, beside --quiet" in {figure["name"] for figure in told["figures"]}
    assert "warm drain, beside PgQueuer" not in {figure["name"] for figure in told["figures"]}
    assert "| PgQueuer | Postgres | – |" in page.read_text()
    assert "- PgQueuer: can't be installed" in page.read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_peer_is_installed_and_measured_beside_outlive(server_url, tmp_path, monkeypatch):
    monkeypatch.setattr(contest, "QUICK", Amounts(part=0.02, seconds=0.05, pickups=3))
    there = tmp_path / "peers.json"

    command.main(["--peers", "--quick", "--only", "pgqueuer", "--database-url", server_url, "--json", str(there)])

    told = json.loads(there.read_text())
    peer = told["systems"]["pgqueuer"]
    if "can't be installed" in (peer["modes"]["tuned"]["failed"] or ""):
        pytest.skip(peer["modes"]["tuned"]["failed"])
    assert "pgqueuer==1.6.0" in peer["installed"]
    assert peer["modes"]["tuned"]["samples"].keys() == {"drain", "one", "bulk", "p50", "p99"}
    assert all(figure["ratio"] for figure in told["figures"] if "PgQueuer" in figure["name"])


def test_a_system_on_redis_says_that_redis_is_missing(server_url):
    [rq] = [system for system in plan.systems() if system.name == "rq"]
    outcome = contest.Outcome([rq])

    with Queue.at(server_url) as admin:
        contest.session(outcome, rq, "fork", Place(admin, server_url, redis=None), TINY)

    assert results.reasons(outcome) == ["RQ: redis-server is not installed: apt install redis-server (fork)"]


def test_the_answer_of_a_driver_is_read():
    assert parsed(b'{"per_s": 12.5}\n') == {"per_s": 12.5}
    with pytest.raises(Failed, match="TimeoutError: no job began"):
        parsed(b'{"error": "TimeoutError: no job began for 60 s"}\n')
    with pytest.raises(Failed, match="the driver said b'Segmentation fault"):
        parsed(b"Segmentation fault\n")


def test_a_peer_gets_the_address_as_a_url():
    assert as_url("dbname=jobs host=/var/tmp/some port=5433") == "postgresql:///jobs?host=%2Fvar%2Ftmp%2Fsome&port=5433"


def test_every_system_has_a_driver_and_pins_its_version():
    systems = plan.systems()

    assert systems[0].name == plan.OURS
    assert len(systems) == 8
    drivers = {path.stem for path in (Path(plan.FILE).parent / "drivers").glob("with_*.py")}
    assert drivers == {system.driver for system in systems}
    assert all("==" in pin for system in systems for pin in system.install)
    assert all({"default", "tuned"} <= set(system.modes) for system in systems)
