"""Faults of the database itself. The number is the matrix's."""

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from outlive import config, embedded, linux
from outlive.humanize import short_id
from outlive_lab.bench.stock import Stock
from tests import faults
from tests.driving.commands import Cli
from tests.driving.folders import open_folder
from tests.driving.jobs import begun, waiting_for
from tests.driving.making import Queue
from tests.embedded.actors import end_everything_at, postmaster_of
from tests.guarantees.throughput import ROUNDS, kept, seconds
from tests.matrix.asking import all_end_once, dead_workers, outcomes
from tests.matrix.loading import Load
from tests.matrix.servers import Server
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("apps")
SHORT = {"lease_s": "4", "renew_s": "1", "sweep_s": "0.5", "max_losses": "none"}


# Servers that die


@pytest.fixture
def home() -> Iterator[Path]:
    """The directory of an embedded server that no other test uses."""
    with open_folder() as folder:
        yield folder / "home"
        embedded.release(folder / "home", wait_s=10)
        end_everything_at(folder)


@pytest.mark.fault(33)
def test_a_worker_brings_its_embedded_server_back(home, start, tmp_path):
    """No other process does it. The job that runs needs no database until it ends."""
    worker = start(url="", home=str(home), slots=2)
    faults.app.configure(config.load(flags={"home": str(home)}))
    held = faults.wait_for.enqueue(str(tmp_path / "held"))
    begun(tmp_path / "held")
    faults.app.connections.close()
    assert not embedded.release(home), "the worker uses it still"
    os.kill(postmaster_of(home), signal.SIGKILL)
    killed = time.monotonic()
    (tmp_path / "held").touch()
    url = embedded.places.Places(home).url

    def ended() -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            return outcomes(url, held) == ["succeeded"]
        return False

    eventually(ended, within_s=15, what="the job's end is written")
    print(f"the end was written {time.monotonic() - killed:.1f} s after the kill")
    assert worker.process.poll() is None


@pytest.mark.fault(34)
@pytest.mark.parametrize("times", [3, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_immediate_stops_of_the_server_under_load_lose_nothing(server, start, times):
    workers = [start(slots=2, **SHORT) for _ in range(2)]
    with Load(most=400 * times) as load:
        for _ in range(times):
            before = len(load.acknowledged)
            eventually(lambda: len(load.acknowledged) > before + 50, within_s=30, what="there is load")  # noqa: B023
            server.stop(signal.SIGQUIT)
            server.start()
    all_end_once(server.url, load.acknowledged)
    assert dead_workers(server.url) == 0
    assert all(worker.process.poll() is None for worker in workers)


@pytest.mark.fault(35)
def test_a_server_killed_again_while_it_recovers_loses_nothing(server, start):
    start(slots=2, **SHORT)
    with Load() as load:
        eventually(lambda: len(load.acknowledged) > 100, within_s=30, what="there is load")
        server.ask("create table bulk as select repeat(md5(n::text), 20) as words from generate_series(1, 100000) n")
        server.stop(signal.SIGQUIT)
        for _ in range(3):
            redone = server.log().count("redo starts")
            server.begin()
            eventually(lambda: server.log().count("redo starts") > redone, within_s=20, what="redo")  # noqa: B023
            server.stop(signal.SIGKILL)
        assert server.log().count("redo done") < server.log().count("redo starts"), "none was hit while it recovered"
        server.start()
    all_end_once(server.url, load.acknowledged)


@pytest.mark.parametrize("crashes_on", [False, True])
def test_a_worker_that_dies_with_the_server_is_noticed_soon_after_its_return(server, start, tmp_path, crashes_on):
    """It takes up to 15 s, also while the server crashes every four seconds; no living worker is declared dead."""
    victim = start(name="victim")
    faults.wait_for.enqueue(str(tmp_path / "held"))
    begun(tmp_path / "held")
    start(name="witness")
    faults.app.connections.close()
    victim.process.kill()
    server.stop(signal.SIGQUIT)
    victim.process.wait()
    server.start()
    crashed = back = time.monotonic()

    def begins_again() -> bool:
        nonlocal crashed
        if crashes_on and time.monotonic() - crashed > 4:
            with psycopg.connect(server.url) as backend:
                os.kill(backend.info.backend_pid, signal.SIGKILL)
            crashed = time.monotonic()
        return len(waiting_for(tmp_path / "held")) == 2

    eventually(begins_again, within_s=35 if crashes_on else 15, what="the witness runs the victim's job")
    print(f"the job began again {time.monotonic() - back:.1f} s after the server was back")
    server.await_ready()
    rows = server.ask("select name, state from outlive.workers order by started_at")
    assert rows == [("victim", "dead"), ("witness", "active")]
    (tmp_path / "held").touch()


def test_a_worker_that_is_told_to_stop_while_the_server_is_away_reports_when_it_is_back(server, start, tmp_path):
    worker = start(name="leaving")
    job = faults.wait_for.enqueue(str(tmp_path / "held"))
    begun(tmp_path / "held")
    faults.app.connections.close()
    server.stop(signal.SIGQUIT)
    worker.send(signal.SIGTERM)
    (tmp_path / "held").touch()
    worker.says(f"Job {short_id(job.id)} completed successfully", within_s=20)
    server.start()
    assert worker.process.wait(timeout=30) == 0
    server.await_ready()
    assert server.ask("select state from outlive.workers") == [("stopped",)]
    assert server.ask("select outcome from outlive.attempts") == [("succeeded",)]


# Servers that are full, or held back


@pytest.fixture
def small_disk(base: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="small-", dir=base))
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        path.rmdir()
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)
    path.rmdir()


@pytest.mark.fault(36)
def test_a_full_disk_gives_clean_errors_and_loses_nothing(small_disk, programs, pattern, start):
    server = Server(programs, small_disk, settings={"max_wal_size": "48MB", "min_wal_size": "32MB"})
    server.copy_from(pattern)
    server.start()
    try:
        faults.app.configure(config.load(flags={"database_url": server.url}))
        worker = start(url=server.url, slots=2, **SHORT)
        with Load(bytes_each=20_000) as load:
            eventually(lambda: len(load.acknowledged) > 20, within_s=30, what="there is load")
            fill(small_disk / "filler")
            eventually(lambda: load.refused, within_s=60, what="the disk is full")
        assert "No space left" in str(load.refused[0]) or "can't be reached" in str(load.refused[0])
        assert worker.process.poll() is None
        (small_disk / "filler").unlink()
        assert server.process is not None
        if server.process.poll() is not None:  # It may have given up, for want of space for its log.
            server.start()
        all_end_once(server.url, load.acknowledged)
        assert worker.stop() == 0
    finally:
        faults.app.connections.close()
        server.stop()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 65536)


@pytest.mark.long
@pytest.mark.fault(40)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("jobs", "dead", "hold_s", "least"),
    [pytest.param(100, 300_000, 2.0, 0.3, id="busy"), pytest.param(300, 0, 600.0, 0.6, id="exact")],
)
def test_a_worker_keeps_its_throughput_while_vacuum_is_held_back(start, jobs, dead, hold_s, least):
    """In front of its jobs are dead rows: of ten minutes of its own jobs, or of many made at once.

    Jobs are claimed a few at a time, so each claim has to pass the dead rows.
    """
    url = str(faults.app.config.database_url)
    task = faults.add.using(queue="bench")
    start()
    with Queue.at(url) as connection, psycopg.connect(url) as old:
        free = [seconds(connection, [task.job(n) for n in range(jobs)]) for _ in range(ROUNDS)]
        old.execute("set transaction isolation level repeatable read")
        old.execute("select from outlive.jobs")
        with connection.transaction():
            Stock(count=dead, task=task.name).put(connection)
            connection.execute("delete from outlive.waiting")
        held: list[float] = []
        began = time.monotonic()
        while time.monotonic() - began < hold_s or len(held) < ROUNDS:
            held.append(seconds(connection, [task.job(n) for n in range(jobs)]))
        assert kept(free, held[-ROUNDS:]) >= least


@pytest.mark.fault(37)
def test_a_server_without_a_free_connection_is_waited_for(new_server, start):
    """Other clients have all connections, also those for superusers. A worker that has lost its own gets none."""
    server = new_server(max_connections="15")
    server.start()
    faults.app.configure(config.load(flags={"database_url": server.url}))
    worker = start(url=server.url)
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2
    faults.app.connections.close()
    strangers: list[psycopg.Connection[tuple[object, ...]]] = []
    with psycopg.connect(server.url, autocommit=True) as admin:

        def exhausted() -> bool:
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'outlive'")
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    strangers.append(psycopg.connect(server.url, connect_timeout=5))
            ours = admin.execute("select from pg_stat_activity where application_name = 'outlive'").fetchall()
            return not ours

        worker.process.send_signal(signal.SIGSTOP)  # It must not connect again before strangers have every connection.
        eventually(exhausted, within_s=30, what="strangers have every connection")
        worker.process.send_signal(signal.SIGCONT)
        assert worker.says("too many clients already")
        job = faults.add.using(connection=admin).enqueue(2, 2)
        assert worker.process.poll() is None
        for stranger in strangers:
            stranger.close()
    assert job.result(timeout=20) == 4
    worker.stop()


@pytest.mark.fault(40)
def test_the_doctor_names_a_transaction_that_holds_back_vacuum(clock, server):
    """Two minutes pass at once."""
    with psycopg.connect(server.url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select from outlive.jobs")
        clock.jump("+120")
        doctor = Cli(server.url)("doctor", "--json")
        assert doctor.out, doctor.err
        said = json.loads(doctor.out)
        (found,) = [one for one in said if "has kept vacuum from" in one["what"]]
        assert f"backend {old.info.backend_pid} " in found["what"]
        assert (found["level"], found["next"]) == (
            "advice",
            f"end the transaction, or: select pg_terminate_backend({old.info.backend_pid})",
        )


@pytest.mark.fault(39)
def test_batches_in_opposite_order_never_show_a_deadlock_to_their_users(queue):
    """Four threads enqueue, replace and cancel the same keys at once; tests/store has each pair by itself."""
    seed = random.randrange(10_000)
    print(f"seed {seed}")

    def work(n: int) -> None:
        chance = random.Random(seed + n)
        for _ in range(15):
            keys = chance.sample(range(30), 20)
            how: Literal["skip", "replace"] = chance.choice(("skip", "replace"))
            jobs = faults.app.enqueue_many(
                faults.add.using(dedupe_key=str(key), on_conflict=how).job(key, n) for key in keys
            )
            for job in chance.sample(jobs, 3):
                job.cancel()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert queue.execute("select from outlive.dedupe_keys").rowcount <= 30


# Any two at once


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_any_two_faults_at_once_lose_nothing(server, start, rounds):
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    workers = [start(slots=2, **SHORT) for _ in range(2)]

    def kill_supervisor() -> None:
        victim = workers.pop(0)
        victim.kill()
        workers.append(start(slots=2, wait=False, **SHORT))

    def kill_zygote() -> None:
        for pid in linux.children_of(workers[-1].pid)[:1]:
            os.kill(pid, signal.SIGKILL)

    def freeze_worker() -> None:
        os.kill(workers[0].pid, signal.SIGSTOP)
        since = time.monotonic()
        eventually(lambda: time.monotonic() > since + 5)
        os.kill(workers[0].pid, signal.SIGCONT)

    def kill_backend() -> None:
        backends = linux.children_of(server.pid)
        os.kill(chance.choice(backends), signal.SIGKILL)

    def restart_server() -> None:
        server.stop(signal.SIGQUIT)
        server.start()

    with Load(most=1000 * rounds) as load, ThreadPoolExecutor(2) as threads:
        for _ in range(rounds):
            before = len(load.acknowledged)
            eventually(lambda: len(load.acknowledged) > before + 50, within_s=60, what="there is load")  # noqa: B023
            pair = chance.sample([kill_supervisor, kill_zygote, freeze_worker, restart_server], 2)
            if restart_server not in pair:
                pair[1] = chance.choice([pair[1], kill_backend])
            print(" and ".join(fault.__name__ for fault in pair))
            for done in [threads.submit(fault) for fault in pair]:
                done.result()
    all_end_once(server.url, load.acknowledged)
