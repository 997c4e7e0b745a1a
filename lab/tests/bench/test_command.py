"""The bench measures, at sizes too small for its figures to mean anything."""

import json
import os

import pytest
from psycopg.conninfo import conninfo_to_dict

from outlive import db
from outlive_lab.bench import command, growth, run
from outlive_lab.bench.databases import Database
from outlive_lab.bench.draining import Drain
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.past import Past
from outlive_lab.bench.stock import Stock
from tests.driving.commands import Cli
from tests.driving.making import Queue

TINY = run.Sizes(
    seconds=0.02,
    samples=1,
    backlog=2_000,
    few=500,
    stock=1_500,
    bulk=50,
    lanes=70,
    hold_s=0.1,
    reads=20,
    finished=200,
    history=400,
    warm=300,
    fresh=20,
    pickups=3,
    killing=50,
    waiting=20,
    fleets=(1, 4),
    real_workers=3,
    kills=1,
)
KEYS = {"line", "name", "unit", "median", "min", "max", "samples", "reference", "ratio", "bound", "passed", "series"}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "QUICK", TINY)
    monkeypatch.setattr("outlive_lab.bench.claims.ENOUGH_PER_S", {1: 100, 8: 100, 64: 100, 200: 100, 512: 100})


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("tiny")
def test_every_line_gives_figures_as_json_and_as_a_picture(server_url, tmp_path):
    lines = list(command.BENCHMARKS)
    there, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    words = ["--quick", "--database-url", server_url, "--json", str(there), "--plot", str(picture), "--only", *lines]

    code = command.main(words)

    assert code == 0
    told = json.loads(there.read_text())
    assert {figure["line"] for figure in told["figures"]} == set(lines)
    assert all(figure.keys() == KEYS for figure in told["figures"])
    # A job may begin before the call that enqueues it has returned.
    assert all(figure["median"] > 0 for figure in told["figures"] if figure["line"] != "pick-up")
    assert told["versions"].keys() == {"outlive", "postgres", "psycopg", "python"}
    assert told["settings"]["synchronous_commit"] == "on"
    assert told["sizes"]["backlog"] == TINY.backlog
    assert picture.read_bytes().startswith(b"\x89PNG")


SMALL = growth.Sizes(
    seconds=0.5,
    drained=8000,
    pending=(100, 12_000),
    finished=(0, 20_000),
    workers=(1,),
    lanes=(1, 20),
    payload_bytes=(100, 1000),
    app_mb=(0, 1),
)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_curve_has_its_points_and_a_picture(server_url, tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "QUICK", SMALL)
    monkeypatch.setattr(growth, "WHOLE", 200)
    there, picture, page = tmp_path / "growth.json", tmp_path / "growth.png", tmp_path / "growth.md"
    words = ["--growth", "--quick", "--database-url", server_url, "--only", *growth.GROWTHS]

    code = command.main([*words, "--json", str(there), "--plot", str(picture), "--report", str(page)])

    assert code == 0
    points = json.loads(there.read_text())["points"]
    measured = {(point["curve"], point["at"]) for point in points}
    assert {("pending", 100), ("pending", 12_000), ("lanes", 1), ("lanes", 20)} <= measured
    assert {("finished", 20_000), ("outlive stats", 20_000)} <= measured
    assert all(point["value"] > 0 for point in points)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| pending | pending jobs | 12,000 |" in page.read_text()
    assert "![the figures](growth.png)" in page.read_text()


@pytest.mark.usefixtures("tiny")
def test_json_on_standard_output_is_all_that_is_there(server_url, capsys):
    assert command.main(["--quick", "--only", "enqueue", "--database-url", server_url, "--json", "-"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert [figure["name"] for figure in told["figures"]] == ["bare INSERT, one by one", "enqueue, one by one"]


@pytest.mark.usefixtures("tiny")
def test_nothing_is_left_on_the_server(server_url):
    command.main(["--quick", "--only", "status", "--database-url", server_url])

    ours = f"outlive_bench_{os.getpid()}_"  # Other processes may bench on this server, too.
    with Queue.at(server_url) as connection:
        left = connection.execute("select datname from pg_database where starts_with(datname, %s)", [ours]).fetchall()
    assert left == []


def test_a_database_that_holds_jobs_is_refused(database_url, capsys):
    with Queue.at(database_url) as connection:
        Stock(count=1).put(connection)

    assert command.main(["--quick", "--only", "status", "--database-url", database_url]) == 1

    name = str(conninfo_to_dict(database_url)["dbname"])
    assert f"the database {name} holds jobs" in capsys.readouterr().err.replace("\n", " ")


def test_a_figure_is_held_against_its_bound():
    def passed(samples: list[float], bound: Bound, reference: list[float] | None = None) -> bool | None:
        return Figure("", "", "", samples, bound=bound, reference=reference or []).passed

    assert passed([1, 30, 40], Bound("at least", 30)) is True
    assert passed([1, 29, 40], Bound("at least", 30)) is False
    assert passed([3, 1, 9], Bound("at most", 2)) is False
    assert passed([70, 75, 80], Bound("of reference", 0.75), [90, 100, 200]) is True
    assert passed([70, 74, 80], Bound("of reference", 0.75), [90, 100, 200]) is False
    assert passed([52], Bound("at most of reference", 1.1), [50]) is True
    assert passed([56], Bound("at most of reference", 1.1), [50]) is False


def test_a_drain_ends_every_job_that_a_worker_could_claim(database_url):
    with Queue.at(database_url, db.PINNED) as connection:
        Stock(count=30).put(connection)
        Stock(count=20, priority=2).put(connection)
        Stock(count=30, source="open-", lanes=3).put(connection)
        Stock(count=5, source="paused", paused=True).put(connection)
        Stock(count=5, ahead_s=3600.0).put(connection)
        drain = Drain(connection, k=7)
        turns = []
        while claimed := drain.turn():
            turns.append(claimed)
        drain.finish()

        ended = connection.execute(
            "select j.source, count(*) from outlive.attempts a join outlive.jobs j on j.id = "
            "a.job_id where a.outcome = 'succeeded' group by 1 order by 1"
        ).fetchall()
        left = connection.execute("select source, count(*) from outlive.waiting group by 1 order by 1").fetchall()
    assert max(turns) == 7
    assert ended == [("", 50), ("open-000000", 10), ("open-000001", 10), ("open-000002", 10)]
    assert left == [("", 5), ("paused", 5)]


def test_a_past_is_what_workers_would_have_left(database_url, monkeypatch):
    monkeypatch.setattr("outlive_lab.bench.past.CHUNK", 1500)
    with Queue.at(database_url) as connection:
        Past(4000).put(Database(database_url, connection))

        counted = connection.execute("select status, count(*) from outlive.job_states group by 1").fetchall()
        states: dict[str, int] = dict(counted)
    assert sum(states.values()) == 4000
    assert states.keys() == {"succeeded", "failed", "cancelled", "quarantined"}
    assert states["succeeded"] > 3800
    assert Cli(database_url)("verify").code == 0
