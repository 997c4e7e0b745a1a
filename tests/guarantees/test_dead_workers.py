"""Dead workers.

A bound of two seconds is exact where it is run with `--long`, on a machine that has nothing else to do; the ordinary
run allows six for the same, because it shares its cores with other tests.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outlive import State, config, db, embedded, migrate
from outlive.humanize import short_id
from outlive.states import Outcome
from outlive.worker.reporting import alerts
from tests import faults
from tests.driving.commands import Cli, ended, started
from tests.driving.folders import open_folder
from tests.driving.jobs import attempts, begun, finished, hook_calls, hook_into, number_in, outcomes
from tests.driving.making import Queue
from tests.driving.scraping import ANY_PORT, place_of, scrape
from tests.driving.workers import Start, Worker, alive, all_gone
from tests.waiting import eventually

QUICK = {"heartbeat_s": "0.2", "stale_s": "1", "dead_s": "2", "sweep_s": "0.3"}
TOLD_WITHIN_S = [pytest.param(6.0, id="busy"), pytest.param(2.0, id="exact", marks=pytest.mark.long)]
"""The bounds on the time until a death is known: see the module's docstring."""


def state(connection: psycopg.Connection[Any], worker: str) -> str | None:
    row = connection.execute("select state from outlive.workers where id = %s", [worker]).fetchone()
    return row[0] if row else None


def shows_life(connection: psycopg.Connection[Any], worker: str) -> bool:
    """Whether a session holds the lock whose key this worker has registered."""
    row = connection.execute(
        "select from outlive.liveness l join pg_locks k on k.locktype = 'advisory' and k.granted"
        " and k.classid::bigint << 32 | k.objid::bigint = l.key where l.worker = %s"
        " and l.postmaster_started = pg_postmaster_start_time()",
        [worker],
    ).fetchone()
    return row is not None


class Frozen:
    """Freezes a process while the block lasts."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


# Who a worker is


def test_a_worker_registers_itself_and_holds_a_session(start, queue, monkeypatch):
    by_flag = start(wait=False, within=["sh", "-c", 'exec "$@" --name crawler-1', "sh"], queues="default,slow", slots=3)
    monkeypatch.setenv("WORKER_ID", "crawler-2")
    by_variable = start(wait=False)
    monkeypatch.delenv("WORKER_ID")
    nameless = start(wait=False)
    names = {by_flag: "crawler-1", by_variable: "crawler-2", nameless: f"{socket.gethostname()}-{nameless.pid}"}
    for worker, name in names.items():
        worker.started()
        row = queue.execute(
            "select name, hostname, pid, version, queues, slots, state, started_at <= now(), last_seen >= started_at"
            " from outlive.workers where id = %s",
            [worker.id],
        ).fetchone()
        queues, slots = (["default", "slow"], 3) if worker is by_flag else (None, 4)
        who = (name, socket.gethostname(), worker.pid, version("outlive"))
        assert row == (*who, queues, slots, "active", True, True)
        assert shows_life(queue, worker.id)
    assert by_variable.says("variables without the prefix OUTLIVE_ are in force: WORKER_ID (name)")


@pytest.mark.long
def test_each_start_has_an_id_of_its_own_and_the_same_name(start, queue):
    first = start(name="crawler-1")
    first.stop()
    second = start(name="crawler-1")
    assert UUID(first.id) != UUID(second.id)
    found = queue.execute("select id::text, name, state from outlive.workers order by started_at").fetchall()
    assert found == [(first.id, "crawler-1", "stopped"), (second.id, "crawler-1", "active")]


# Heartbeats


def test_a_job_that_holds_the_gil_cannot_stop_the_heartbeat(start, queue, tmp_path):
    start(slots=2, heartbeat_s="0.2")
    locked = faults.hold_the_gil.using(timeout=60).enqueue()
    faults.ignore_all.enqueue(str(tmp_path / "blocks"))
    eventually(lambda: locked.status() is State.RUNNING and (tmp_path / "blocks").exists())
    beats: set[datetime] = set()

    def beats_on() -> bool:
        ((last_seen,),) = queue.execute("select last_seen from outlive.workers").fetchall()
        beats.add(last_seen)
        return len(beats) >= 8

    eventually(beats_on, within_s=10, what="eight heartbeats")
    assert locked.status() is State.RUNNING
    assert queue.execute("select count(*) from outlive.workers").fetchone() == (1,)
    os.kill(number_in(tmp_path / "blocks"), signal.SIGKILL)  # Otherwise the worker waits for it when it is stopped.


def test_the_interval_is_30_s_unless_it_is_set():
    assert config.load(environ={}).heartbeat_s == 30


class Server:
    """A Postgres server of the test's own, which the test stops, starts and shoots at."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.start()
        with Queue.at(self.url) as connection:
            migrate.migrate(connection)

    def start(self) -> None:
        self.url = embedded.ensure(self.home, settings={"fsync": "off", "max_connections": "50"})

    def stop(self) -> None:
        assert embedded.release(self.home, wait_s=20)

    def connect(self) -> psycopg.Connection[Any]:
        """Open a session as soon as the server accepts one: it may be restarting."""

        made: list[psycopg.Connection[Any]] = []

        def there() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                made.append(psycopg.connect(self.url, autocommit=True, application_name="test"))
            return bool(made)

        eventually(there, within_s=20)
        return made[0]

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query.encode()).fetchall()

    def kill_a_backend(self) -> None:
        """Kill a backend with SIGKILL. The server then ends all sessions and recovers."""
        with self.connect() as victim:
            os.kill(victim.info.backend_pid, signal.SIGKILL)

            def broken() -> bool:
                try:
                    victim.execute("select 1")
                except psycopg.OperationalError:
                    return True
                return False

            eventually(broken)


@pytest.fixture
def server(apps: None) -> Iterator[Server]:
    with open_folder() as folder:
        server = Server(folder / "server")
        faults.app.configure(config.load(flags={"database_url": server.url}))
        yield server
        faults.app.connections.close()
        server.stop()


def test_an_outage_of_the_database_is_survived_with_backoff(server, start):
    worker = start(url=server.url, heartbeat_s="0.2", log_level="debug")
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    faults.app.connections.close()
    server.stop()
    for pause_s in ("0.1", "0.3", "1"):
        waits = [f"heartbeat: {why}" for why in ("connection", "consuming", "terminating")]
        eventually(
            lambda: any(
                f"; trying again in {pause_s} s" in line and any(wait in line for wait in waits)  # noqa: B023
                for line in worker.log().splitlines()
            ),
            within_s=20,
            what=f"the heartbeat waits for {pause_s} s",
        )
    stopped_at = time.time()
    server.start()
    assert faults.add.enqueue(2, 2).result(timeout=30) == 4
    eventually(lambda: server.ask("select last_seen from outlive.workers")[0][0].timestamp() > stopped_at, within_s=30)
    assert worker.process.poll() is None
    assert worker.log().count(" started") == 1
    worker.stop()
    warnings = [line for line in worker.log().splitlines() if re.search(r"Z (WARNING|ERROR)", line)]
    warnings = [line for line in warnings if "workers that died on this machine" not in line]  # Another test's.
    assert [re.sub(r".* WARNING | \(.*\)|[\d.]+ s$", "", line) for line in warnings] == [
        f"lost the database {db.named(server.url)}: running jobs continue and their results are buffered until it is"
        " back",
        f"the database {db.named(server.url)} is back after ",
    ]


# Deaths


def test_a_silent_worker_is_stale_then_dead(start, queue, tmp_path):
    assert [getattr(config.load(environ={}), key) for key in ("stale_s", "dead_s")] == [60, 120]
    silent = start(**QUICK)
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    start(**QUICK)
    seen: list[str | None] = []

    def dies() -> bool:
        now = state(queue, silent.id)
        if seen[-1:] != [now]:
            seen.append(now)
        return now == "dead"

    with Frozen(silent.pid):
        eventually(dies, within_s=20)
        assert seen == ["active", "stale", "dead"]
        begun(tmp_path / "go", times=2, within_s=5)
    (tmp_path / "go").touch()
    finished(job, State.SUCCEEDED)
    assert outcomes(queue, job) == [Outcome.LOST, Outcome.SUCCEEDED]


def test_a_worker_that_beats_again_in_time_is_active_again(start, queue):
    silent = start(heartbeat_s="0.2", stale_s="1", dead_s="60", sweep_s="0.3")
    start(heartbeat_s="0.2", stale_s="1", dead_s="60", sweep_s="0.3")
    with Frozen(silent.pid):
        eventually(lambda: state(queue, silent.id) == "stale")
    eventually(lambda: state(queue, silent.id) == "active")
    assert silent.log().count(" started") == 1


def test_a_worker_that_renews_its_leases_is_not_dead(start, queue):
    """Only its heartbeat is missing."""
    start(heartbeat_s="60", stale_s="70", dead_s="80", sweep_s="0.3", lease_s="4")
    faults.hold_the_gil.using(timeout=60).enqueue()
    eventually(lambda: queue.execute("select from outlive.running").fetchall())
    queue.execute("update outlive.workers set last_seen = now() - interval '1 hour'")
    eventually(lambda: queue.execute("select state from outlive.workers").fetchone() == ("stale",))
    renewals: set[object] = set()

    def renewed() -> bool:
        renewals.update(queue.execute("select heartbeat_at from outlive.running").fetchall())
        return len(renewals) >= 3

    eventually(renewed)
    assert queue.execute("select state from outlive.workers").fetchone() == ("stale",)


def test_one_that_is_told_to_stop_is_draining_then_stopped(start, queue, tmp_path):
    worker = start()
    faults.wait_warm.enqueue(str(tmp_path / "go"))
    eventually((tmp_path / "go.started").exists)
    other = start()
    worker.send(signal.SIGTERM)
    eventually(lambda: state(queue, worker.id) == "draining", within_s=5)
    (tmp_path / "go").touch()
    assert worker.process.wait(20) == 0
    assert state(queue, worker.id) == "stopped"
    assert state(queue, other.id) == "active"
    assert "Dead worker" not in other.log()


@pytest.mark.parametrize("within_s", TOLD_WITHIN_S)
def test_a_killed_worker_is_declared_dead_within_seconds(start, queue, tmp_path, within_s):
    """The job that it had runs again elsewhere within one more: a worker killed in the middle of a long job."""
    victim = start()
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    start()
    killed = time.monotonic()
    victim.kill()
    eventually(lambda: state(queue, victim.id) == "dead", within_s=within_s)
    told_s = time.monotonic() - killed
    begun(tmp_path / "go", times=2, within_s=within_s + 1 - told_s)
    print(f"dead after {told_s:.2f} s, runs again after {time.monotonic() - killed:.2f} s")
    (tmp_path / "go").touch()
    finished(job, State.SUCCEEDED)
    assert outcomes(queue, job) == [Outcome.LOST, Outcome.SUCCEEDED]


@pytest.mark.parametrize("within_s", TOLD_WITHIN_S)
def test_the_only_worker_is_declared_dead_when_it_comes_back(start, queue, tmp_path, within_s):
    only = start()
    faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    only.kill()
    start()
    back = time.monotonic()
    eventually(lambda: state(queue, only.id) == "dead", within_s=within_s)
    begun(tmp_path / "go", times=2, within_s=within_s + 1)
    print(f"runs again {time.monotonic() - back:.2f} s after the next one has started")


# Postgres restarts


def undisturbed(server: Server, workers: list[Worker]) -> None:
    """Check that no worker was declared dead and that no job was lost."""
    assert server.ask("select state, count(*) from outlive.workers group by 1") == [("active", len(workers))]
    assert server.ask("select outcome, count(*) from outlive.attempts where outcome <> 'succeeded' group by 1") == []
    assert not any("Dead worker" in worker.log() for worker in workers)
    assert [worker.log().count(" started") for worker in workers] == [1] * len(workers)


def all_hold_their_locks(server: Server, workers: list[Worker]) -> bool:
    try:
        with server.connect() as connection:
            return all(shows_life(connection, worker.id) for worker in workers)
    except psycopg.OperationalError:
        return False


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [20, pytest.param(1000, marks=pytest.mark.long)])
def test_a_killed_backend_kills_no_worker(server, start, tmp_path, kills):
    """All sessions end at once, and the table of liveness is empty."""
    workers = [start(url=server.url, slots=2) for _ in range(2)]
    lasting = [faults.wait_for.enqueue(str(tmp_path / "go")) for _ in range(2)]
    begun(tmp_path / "go", times=2)
    faults.app.connections.close()
    for _ in range(kills):
        server.kill_a_backend()
        eventually(lambda: all_hold_their_locks(server, workers), within_s=30, what="they show again that they live")
    undisturbed(server, workers)
    short = faults.app.enqueue_many(faults.add.job(n, n) for n in range(20))
    (tmp_path / "go").touch()
    assert [job.result(timeout=30) for job in short] == [2 * n for n in range(20)]
    assert [job.result(timeout=30) for job in lasting] == ["seen", "seen"]
    undisturbed(server, workers)
    for worker in workers:
        worker.stop()


def test_a_restart_of_postgres_kills_no_worker(server, start, tmp_path):
    workers = [start(url=server.url, slots=2) for _ in range(2)]
    lasting = [faults.wait_for.enqueue(str(tmp_path / "go")) for _ in range(2)]
    begun(tmp_path / "go", times=2)
    for _ in range(3):
        faults.app.connections.close()
        server.stop()
        server.start()
        eventually(lambda: all_hold_their_locks(server, workers), within_s=30, what="they show again that they live")
    (tmp_path / "go").touch()
    assert [job.result(timeout=30) for job in lasting] == ["seen", "seen"]
    undisturbed(server, workers)
    for worker in workers:
        worker.stop()


def test_a_worker_that_loses_only_its_session_again_and_again_takes_a_new_one_at_once(start, queue):
    """The other worker sees that the lock is gone. Within half a second the worker has another, also the tenth time."""
    worker, other = start(), start()
    for _ in range(10):
        eventually(lambda: shows_life(queue, worker.id), within_s=5)
        old = queue.execute("select key from outlive.liveness where worker = %s", [worker.id]).fetchone()
        queue.execute(
            "select pg_terminate_backend(k.pid) from outlive.liveness l join pg_locks k on k.locktype = 'advisory'"
            " and k.classid::bigint << 32 | k.objid::bigint = l.key where l.worker = %s",
            [worker.id],
        )
        eventually(
            lambda: (
                queue.execute("select key from outlive.liveness where worker = %s", [worker.id]).fetchone()
                not in (None, old)  # noqa: B023
            ),
            within_s=5,
            what="it has a new key",
        )
    assert state(queue, worker.id) == "active"
    assert worker.log().count(" started") == 1
    assert "Dead worker" not in other.log()


# What becomes of jobs


def test_a_death_is_logged_and_its_jobs_follow_their_policy(start, queue, tmp_path):
    dead = start(name="crawler-1")
    again = faults.wait_for.enqueue(str(tmp_path / "go"))
    fails = faults.wait_for.using(on_worker_death="fail").enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go", times=2)
    other = start(name="crawler-2")
    dead.kill()
    finished(fails, State.FAILED)
    begun(tmp_path / "go", times=3)
    (tmp_path / "go").touch()
    finished(again, State.SUCCEEDED)
    assert outcomes(queue, again) == [Outcome.LOST, Outcome.SUCCEEDED]
    assert outcomes(queue, fails) == [Outcome.LOST]
    for job in (again, fails):
        assert attempts(queue, job)[0].error == "Worker died unexpectedly"
        assert queue.counters(job.id) == (0, 0, 1)
    (said,) = [line for line in other.log().splitlines() if "Dead worker detected" in line]
    assert " ERROR " in said
    assert f"Dead worker detected: {short_id(dead.id)} (crawler-1 on {socket.gethostname()}, pid {dead.pid})" in said
    assert "it had 2 jobs" in said


# The reaper


@pytest.fixture
def reap(database_url: str) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts `outlive reap`, and kills those that still run after the test."""
    with started() as commands:

        def make(*words: str, **settings: str) -> "subprocess.Popen[str]":
            environ = {f"OUTLIVE_{key.upper()}": value for key, value in settings.items()}
            commands.append(Cli(database_url).process("reap", *words, **environ))
            return commands[-1]

        yield make


Reap = Callable[..., "subprocess.Popen[str]"]


def test_reap_once_frees_the_jobs_of_a_dead_worker(start, reap, queue, tmp_path):
    worker = start()
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    ran = ended(reap("--once"))
    assert (ran.code, job.status()) == (0, State.RUNNING)
    assert "0 attempts of dead workers ended" in ran.out
    worker.kill()
    ran = ended(reap("--once"))
    assert (ran.code, job.status()) == (0, State.PENDING)
    assert "1 attempts of dead workers ended" in ran.out
    assert f"Dead worker detected: {short_id(worker.id)}" in ran.err
    assert outcomes(queue, job) == [Outcome.LOST]


@pytest.mark.parametrize("within_s", TOLD_WITHIN_S)
def test_reap_as_a_daemon_frees_them_within_seconds(start, reap, queue, tmp_path, within_s):
    worker = start()
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    before = sessions(queue)
    daemon = reap()
    eventually(lambda: sessions(queue, "%outlive.liveness%") - before, within_s=40, what="it looks")
    worker.kill()
    eventually(lambda: job.status() is State.PENDING, within_s=within_s)
    daemon.send_signal(signal.SIGTERM)
    ran = ended(daemon)
    assert ran.code == 0
    assert f"Dead worker detected: {short_id(worker.id)}" in ran.err


def sessions(queue: Queue, query: str = "%") -> set[int]:
    """The sessions whose last statement was like this."""
    found = queue.execute(
        "select pid from pg_stat_activity where datname = current_database() and query like %s", [query]
    ).fetchall()
    return {pid for (pid,) in found}


def leading(queue: Queue) -> list[int]:
    """The sessions that hold the lock of the sweep."""
    held = queue.execute(
        "select pid from pg_locks where locktype = 'advisory' and granted and objsubid = 1"
        " and classid::bigint << 32 | objid::bigint = hashtextextended('outlive sweep', 0)"
        " and database = (select oid from pg_database where datname = current_database())"
    ).fetchall()
    return [pid for (pid,) in held]


def freeze_in_its_sweep(queue: Queue, database_url: str, begin: Callable[[], int]) -> None:
    """Freeze a sweeper while it holds the lock of the sweep."""
    with psycopg.connect(database_url) as hindrance:
        hindrance.execute("lock table outlive.crashes in access exclusive mode")
        sweeper = begin()
        stuck = "select from pg_locks where not granted and pid = any(%s)"
        eventually(
            lambda: queue.execute(stuck, [leading(queue)]).fetchall(),
            within_s=40,
            what="it waits in the middle of its sweep",
        )
        os.kill(sweeper, signal.SIGSTOP)


@pytest.mark.parametrize("other", ["a worker", "reap --once"])
def test_a_sweeper_that_is_frozen_while_it_leads_does_not_stop_others(
    start, reap, queue, database_url, tmp_path, other
):
    """The frozen sweeper keeps its session and the lock. Others find silent workers all the same."""
    silent = start(**QUICK | {"sweep_s": "60"})
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    (first,) = begun(tmp_path / "go")
    eventually(lambda: not leading(queue), what="its first sweep is over")
    with Frozen(silent.pid):
        freeze_in_its_sweep(queue, database_url, lambda: reap(sweep_s="0.3").pid)
        if other == "a worker":
            start(**QUICK)
            begun(tmp_path / "go", times=2)
        else:
            overdue = "select from outlive.running where heartbeat_at < now() - interval '3 seconds'"
            eventually(lambda: queue.execute(overdue).fetchall(), what="it has been silent for long enough")
            assert "1 attempts" in ended(reap("--once", **QUICK)).out
        assert leading(queue), "it was not frozen as it should"
        assert state(queue, silent.id) == "dead"
        assert outcomes(queue, job) == [Outcome.LOST]
        os.kill(first, signal.SIGKILL)


# Hooks


def test_dead_workers_show_and_the_hook_is_told(start, queue, database_url, tmp_path):
    dead = start(name="crawler-1")
    faults.wait_for.enqueue(str(tmp_path / "go"))
    begun(tmp_path / "go")
    living = start(name="crawler-2", on_worker_dead=hook_into(tmp_path), metrics_listen=ANY_PORT)
    dead.kill()
    (fact,) = eventually(lambda: hook_calls(tmp_path))
    expected = {"event": "worker_dead", "id": dead.id, "name": "crawler-1", "pid": dead.pid, "running": 1}
    assert {key: fact[key] for key in expected} == expected
    assert fact["hostname"] == socket.gethostname()
    assert datetime.fromisoformat(fact["last_seen"]).utcoffset() == timedelta(0)
    assert fact["why"] == "its session is gone"
    listed = Cli(database_url)("workers", "--json").json
    assert [(row["id"], row["name"], row["state"]) for row in listed] == [
        (living.id, "crawler-2", "active"),
        (dead.id, "crawler-1", "dead"),
    ]
    shown = Cli(database_url)("workers").out
    (line,) = [line for line in shown.splitlines() if "crawler-1" in line]
    assert "dead" in line
    assert scrape(place_of(living))("outlive_workers", state="dead") == 1


def test_a_hook_that_hangs_holds_nothing_up_and_goes_with_its_worker(start, tmp_path):
    dead = start()
    worker = start(on_worker_dead=f"echo $$ > {tmp_path}/hook; exec sleep 600")
    dead.kill()
    hook = eventually(lambda: (tmp_path / "hook").exists() and int((tmp_path / "hook").read_text() or 0))
    jobs = [faults.add.enqueue(n, n) for n in range(5)]
    assert [job.result(timeout=20) for job in jobs] == [0, 2, 4, 6, 8]
    assert alive(hook)
    assert worker.stop(within_s=10) == 0
    eventually(lambda: not alive(hook), within_s=2)


def test_a_hook_that_fails_is_logged(start):
    dead = start()
    worker = start(on_worker_dead="cat > /dev/null; echo no network >&2; exit 7")
    dead.kill()
    worker.says("ended with code 7: no network")
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2


def run_hook(hook: str) -> None:
    """Run a hook as a worker does, and wait for its end."""

    async def tell() -> None:
        told = alerts.Alerts()
        told.send(hook, "worker_dead", {"id": "1"})
        await told.finish(10)

    asyncio.run(tell())


def test_a_hook_has_a_time_limit(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(alerts, "LIMIT_S", 0.5)
    run_hook(f"echo $$ > {tmp_path}/pid; exec sleep 600")
    assert "did not end within 0.5 s: it is killed" in caplog.text
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_process_left_behind_by_a_hook_is_killed_and_not_waited_for(tmp_path, caplog):
    """It holds the hook's standard error open."""
    run_hook(f"sleep 600 & echo $! > {tmp_path}/pid")
    eventually(lambda: not alive(int((tmp_path / "pid").read_text())), within_s=2)
    assert caplog.text == ""


# Leftover processes


def test_nothing_below_a_killed_supervisor_outlives_it(start, tmp_path):
    worker = start()
    faults.ignore_all.enqueue(str(tmp_path / "deaf"))
    faults.orphan_and_wait.enqueue(str(tmp_path / "grandchild"))
    eventually(lambda: (tmp_path / "deaf").exists() and (tmp_path / "grandchild.plain").exists(), within_s=20)
    tree = worker.tree()
    assert int((tmp_path / "grandchild").read_text()) in tree
    killed = time.monotonic()
    worker.kill()
    all_gone(tree, within_s=2, what="the tree is gone")
    print(f"all gone after {time.monotonic() - killed:.2f} s")


def busy_with_orphans(start: Start, folder: Path) -> Worker:
    """Start a worker with a job that has forked twice."""
    worker = start()
    faults.orphan_and_wait.enqueue(str(folder / "grandchild"))
    eventually((folder / "grandchild.plain").exists, within_s=20)
    return worker


def kill_with_zygote(worker: Worker) -> list[int]:
    """Kill a supervisor and its zygote; returns the processes that were below them."""
    tree = worker.tree()
    worker.kill_with_zygote()
    return tree


@pytest.mark.parametrize("within_s", TOLD_WITHIN_S)
def test_supervisor_and_zygote_killed_at_once_leave_nothing_where_another_worker_is(start, queue, tmp_path, within_s):
    worker = busy_with_orphans(start, tmp_path)
    other = start()
    eventually(lambda: shows_life(queue, other.id))
    tree = kill_with_zygote(worker)
    all_gone(tree, within_s=within_s, what="the tree is gone")


def test_supervisor_and_zygote_killed_at_once_leave_nothing_once_the_next_worker_has_started(start, tmp_path):
    tree = kill_with_zygote(busy_with_orphans(start, tmp_path))
    child_of_zygote = [pid for pid in tree if pid not in orphans_of(tmp_path)]
    all_gone(child_of_zygote, within_s=2, what="the children are gone")
    start()
    assert not any(alive(pid) for pid in tree)


def orphans_of(folder: Path) -> list[int]:
    """The processes that a job of `orphan_and_wait` has made."""
    return [int((folder / name).read_text()) for name in ("grandchild", "grandchild.plain")]
