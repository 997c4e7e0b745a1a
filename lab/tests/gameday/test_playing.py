"""Real games, as people play them: with real workers, real kills, and a verdict."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from laboratory import lab
from outlive import linux
from outlive.worker.limits import cgroups
from outlive.worker.limits.cgroups import Group
from outlive_lab.gameday import connections, squeeze
from outlive_lab.gameday.history import FAILOVERS, Kind
from outlive_lab.gameday.seeded import with_deck
from tests.cli.test_demo import processes_in
from tests.driving.making import Queue
from tests.waiting import eventually

PATIENCE_S = 110.0
SEED = 26309
"""Every kind of fault is among its first 35."""

TABLES = ["jobs", "attempts", "waiting", "running", "held", "dependencies", "batches", "callbacks", "keyed_jobs"]
TABLES += ["schedules", "crashes"]
SMALL = ("--workers", 2, "--slots", 2, "--rate", 4)


def home_of(game: "subprocess.Popen[str]") -> Path | None:
    """The directory that a game works in: its workers are there, and other games may go on beside it."""
    for pid in linux.descendants_of(game.pid):
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}/cwd").readlink()
            for folder in (place, *place.parents):
                if folder.name.startswith("outlive-gameday-"):
                    return folder
    return None


def told(game: "subprocess.Popen[str]") -> tuple[int, dict[str, Any]]:
    """The exit code and the verdict, whatever it is."""
    out, err = game.communicate(timeout=PATIENCE_S)
    assert out, err
    return game.returncode, json.loads(out)


def took_s(verdict: dict[str, Any], name: str) -> float:
    [times] = [times for times in verdict["times"] if times["name"] == name]
    return times["p99_s"] or 0.0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_jobs_survive_a_short_game():
    game = lab(None).process("gameday", "--kills", 30, "--rate", 3, "--busy", "--seed", SEED, "--json")
    home = eventually(lambda: home_of(game), within_s=60)
    assert home
    _, verdict = told(game)

    assert verdict["breaches"] == []
    assert (verdict["lost"], verdict["finished_twice"], verdict["effect_doubled"], verdict["stale_effect"]) == (0,) * 4
    assert verdict["kills"] >= 30
    assert verdict["jobs_finished"] >= verdict["jobs_acknowledged"] > 0
    assert (
        verdict["bound"] == f"none in {verdict['kills']} kills: less than {3 / verdict['kills']:.2%} of kills, at 95 %"
    )
    # The machine may be busy with other tests: how fast it is when it is not, the long one says.
    assert took_s(verdict, "child death to recorded") < 2.0
    assert took_s(verdict, "worker death to claimable again") < 10.0
    assert not home.exists()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_game_of_two_hundred_kills_holds_its_bounds_and_writes_a_report(tmp_path):
    game = lab(None).process("gameday", "--kills", 200, "--seed", 7, "--report", tmp_path)
    out, err = game.communicate(timeout=300)

    assert game.returncode == 0, out
    assert "kills, " in err  # Without a terminal there are lines instead of a bar.
    assert (tmp_path / "gameday-7.png").read_bytes().startswith(b"\x89PNG")
    verdict = json.loads((tmp_path / "gameday-7.json").read_text())
    assert verdict["right"] is True
    page = (tmp_path / "gameday-7.md").read_text()
    assert verdict["bound"] in page
    assert "--seed 7" in page


@pytest.mark.long
@pytest.mark.timeout(300)
def test_workers_frozen_past_their_leases_bring_late_writes_to_the_fence():
    """A game whose only faults are such freezes, and kills of children in between. The database is there all the
    time: every tree has its jobs taken over, and every completion that it was about to write comes to the fence."""
    words = ("gameday", "--kills", "12", "--rate", "0.5", "--seed", "3", "--busy", "--json")
    ran = subprocess.run(
        [sys.executable, "-c", with_deck("PAUSE: 4"), *words], capture_output=True, text=True, timeout=250
    )
    verdict = json.loads(ran.stdout)
    freezes = verdict["faults"]["whole tree frozen past its lease"]
    late, fenced = verdict["late_completions_of_trees_taken_over"], verdict["of_those_fenced"]
    print(f"{freezes} freezes, {late} late completions, {fenced} fenced")
    assert verdict["breaches"] == []
    assert fenced == late >= freezes - 1 > 0  # The end of the game may wake the last one.


@pytest.mark.long
@pytest.mark.timeout(600)
def test_outages_frozen_machines_and_kills_by_the_kernel_are_charged_to_no_job():
    """A game of such faults only, and kills of children and workers in between."""
    words = ("gameday", "--kills", "40", "--rate", "1", "--seed", "3", "--busy", "--json")
    deck = with_deck("OUTAGE: 2, MACHINE: 2, OOM: 3, CHILD: 3, TREE: 1")
    ran = subprocess.run([sys.executable, "-c", deck, *words], capture_output=True, text=True, timeout=550)
    verdict = json.loads(ran.stdout)
    faults = {kind: verdict["faults"][kind] for kind in (Kind.OUTAGE, Kind.MACHINE, Kind.OOM, Kind.CROWD)}
    print(", ".join(f"{kind}: {count}" for kind, count in faults.items()))
    assert verdict["breaches"] == []
    assert faults[Kind.OUTAGE] > 0
    assert faults[Kind.MACHINE] > 0
    assert faults[Kind.OOM] > 0 or not squeeze.possible()
    assert faults[Kind.CROWD] == 1


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_jobs_survive_the_faults_of_primaries_under_patroni():
    game = lab(None).process("gameday", "--ha", "--minutes", 5, "--seed", 3, "--busy", "--json")
    out, err = game.communicate(timeout=1100)
    if "--ha needs" in err:
        pytest.skip(err.strip())
    verdict = json.loads(out)
    failovers = {kind: count for kind in FAILOVERS if (count := verdict["faults"][kind])}
    print(", ".join(f"{kind}: {count}" for kind, count in failovers.items()))
    assert verdict["breaches"] == []
    assert len(failovers) >= 4


def begin(url: str) -> tuple["subprocess.Popen[str]", Path]:
    """A game without end in that database, once it has killed something, and the directory that it works in."""
    game = lab(url).process("gameday", "--kills", 1_000_000, *SMALL, "--json")
    home = eventually(lambda: home_of(game), within_s=60)
    assert home
    with Queue.at(url) as connection:
        eventually(lambda: _kills(connection) > 0, within_s=60, what="a job of the game was killed")
    return game, home


def _kills(queue: Queue) -> int:
    [(count,)] = queue.execute("select count(*) from outlive.attempts where outcome in ('crashed', 'lost')")
    return int(count)


@pytest.fixture
def game(database_url: str) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    process, home = begin(database_url)
    yield process, home
    process.kill()
    process.wait()
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.long
def test_a_game_that_is_stopped_tells_what_it_saw_and_leaves_nothing(game, database_url):
    process, home = game
    process.send_signal(signal.SIGINT)
    code, verdict = told(process)

    assert verdict["breaches"] == []
    assert code == (130 if verdict["right"] else 1)
    assert verdict["stopped"] is True
    assert verdict["faults"]["Postgres restarted"] == 0  # It is not the game's own.
    assert not home.exists()
    eventually(lambda: not processes_in(home), within_s=5)
    if verdict["right"]:
        with Queue.at(database_url) as connection:
            left = [table for table in TABLES if connection.count(table)]
            assert (left, connection.value("select to_regnamespace('outlive_gameday')")) == ([], None)


def test_a_game_that_is_killed_leaves_no_process(game):
    process, home = game
    eventually(lambda: len(processes_in(home)) > 2, within_s=30, what="a worker has a zygote; all may just have died")
    process.kill()
    process.wait()
    eventually(lambda: not processes_in(home), within_s=5, what="its workers are gone with it")


def test_a_database_with_other_peoples_jobs_is_refused(cli, queue):
    queue.make("shop.fetch")
    ran = cli("gameday", "--kills", 1)
    assert (ran.code, ran.out) == (2, "")
    assert "has other jobs (of shop.fetch)" in ran.err
    assert "--force" in ran.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--kills", 5, "--minutes", 1), "--kills and --minutes are both given"),
        (("--rate", 0), "--rate is 0: it must be more than 0"),
        (("--minutes", -1), "--minutes is -1: it must be more than 0"),
        (("--kills", 0), "--kills is 0: it must be from 1 to"),
        (("--workers", 1), "--workers is 1: it must be from 2 to 50"),
        (("--report", "pyproject.toml"), "which is not a directory"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(cli, words, sentence):
    ran = cli("gameday", *words)
    assert ran.code == 2
    assert sentence in ran.err


def test_a_completion_waits_before_it_is_written_whichever_cursor_sends_it(database_url):
    with connections.Connection.connect(database_url, autocommit=True) as connection:
        connection.pause_s = 0.001
        psycopg.RawCursor(connection).execute("select")
        assert connection.pause_s == 0.0


def test_a_shared_client_opens_another_connection_if_the_server_has_closed_its_own(database_url, queue):
    its_session = "select pid from pg_stat_activity where application_name = 'gameday shared'"

    async def use_it_after_its_session_has_ended() -> None:
        client = connections.Client(database_url)
        await client.run("select", [])
        queue.execute("select pg_terminate_backend(%s)", queue.values(its_session))
        eventually(lambda: not queue.values(its_session))
        await client.run("select", [])
        await client.close()

    asyncio.run(use_it_after_its_session_has_ended())


SLEEPER = "input(); kept = b'x' * (16 << 20); print(flush=True); import time; time.sleep(600)"


@pytest.fixture
def group() -> Iterator[Group]:
    place = cgroups.find()
    if place is None or place.version == 2:
        pytest.skip("no memory group of version 1 can be made here")
    top = place.path / f"{cgroups.PREFIX}squeezed"
    made = Group(place.version, top / "zygote")
    made.path.mkdir(parents=True)
    yield made
    eventually(made.remove, within_s=10, what="the group is gone")
    top.rmdir()


def test_the_kernel_kills_the_zygote_first(group):
    with (
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as zygote,
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as neighbour,
    ):
        for one in (zygote, neighbour):
            group.add(one.pid)  # Before it takes memory, which the kernel counts where it was taken.
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.write(b"\n")
            one.stdin.flush()
            one.stdout.readline()
        assert squeeze.group_of(zygote.pid) == group
        squeezing = squeeze.squeeze(zygote.pid, group)
        assert eventually(lambda: next(squeezing), within_s=60, what="the kernel has killed a process")
        assert zygote.wait(10) == -signal.SIGKILL
        assert group.kills() >= 1  # It may kill another one too: it counts freed memory some milliseconds late.
        assert next(squeezing, "over") == "over"
        neighbour.kill()
