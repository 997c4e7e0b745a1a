"""A pooler between workers and the database. The number is the matrix's."""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import outlive
from outlive import config, store
from outlive.statement import Statement
from outlive.states import State
from outlive.worker import session
from outlive.worker.session import Session, Silence
from tests import faults
from tests.driving.commands import Cli
from tests.driving.folders import open_folder
from tests.driving.hand import Hand
from tests.driving.jobs import begun
from tests.driving.workers import Worker
from tests.matrix.asking import all_end_once, outcomes
from tests.matrix.servers import Programs
from tests.waiting import eventually

SHORT = {"lease_s": "4", "renew_s": "1", "sweep_s": "0.5", "max_losses": "none"}
Pooled = Callable[[str], str]


@pytest.fixture
def pooled(database_url: str, programs: Programs) -> Iterator[Pooled]:
    """The test's database behind PgBouncer, in the mode that is asked for."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed: apt install pgbouncer")
    parts = conninfo_to_dict(database_url)

    def start(mode: str) -> str:
        folder = stack.enter_context(open_folder())
        programs.give(folder)
        lines = [
            "[databases]",
            f"* = host={parts['host']} port={parts.get('port', 5432)} user=postgres",
            "[pgbouncer]",
            "listen_addr =",
            f"unix_socket_dir = {folder}",
            "auth_type = any",
            f"pool_mode = {mode}",
            "default_pool_size = 20",
            f"logfile = {folder}/log",
        ]
        (folder / "pool.ini").write_text("\n".join(lines))
        pooler = programs.start(program, folder / "pool.ini", log=folder / "said")
        stack.callback(pooler.wait, 20)
        stack.callback(pooler.send_signal, signal.SIGINT)
        eventually(partial(_listens, str(folder / ".s.PGSQL.6432")), what="PgBouncer listens")
        return make_conninfo(database_url, host=str(folder), port=6432)

    with ExitStack() as stack:
        yield start


def _listens(place: str) -> bool:
    """Its socket is there before it takes connections."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(place) == 0


def dies_and_another_continues(tmp_path: Path, worker: Worker, start: Callable[[], Worker]) -> None:
    """A worker dies with a job, which another one has soon: its session shows that."""
    held = faults.wait_for.enqueue(str(tmp_path / "held"))
    begun(tmp_path / "held")
    other = start()
    worker.kill()
    other.says("its session is gone")
    begun(tmp_path / "held", times=2)
    (tmp_path / "held").touch()
    eventually(lambda: held.status() is State.SUCCEEDED, within_s=20)


@pytest.mark.fault(42)
def test_behind_a_pooler_in_session_mode_workers_show_their_life(pooled, start, tmp_path):
    url = pooled("session")
    worker = start(url=url, slots=1)
    assert "a pooler in session mode is between here and the server" in Cli(url)("doctor").out
    dies_and_another_continues(tmp_path, worker, lambda: start(url=url, slots=1))
    assert "behind a pooler" not in worker.log()


@pytest.mark.fault(42)
def test_behind_a_pooler_in_transaction_mode_workers_show_their_life_at_another_address(
    pooled, start, database_url, tmp_path, monkeypatch
):
    url = pooled("transaction")
    worker = start(url=url, slots=1, session_url=database_url)
    monkeypatch.setenv("OUTLIVE_SESSION_URL", database_url)
    assert "transaction mode is between here and the server, and session_url bypasses it" in Cli(url)("doctor").out
    dies_and_another_continues(tmp_path, worker, lambda: start(url=url, slots=1, session_url=database_url))
    assert "behind a pooler" not in worker.log()


def test_behind_a_pooler_in_session_mode_a_worker_stays_with_a_server_that_is_slow(pooled, monkeypatch):
    """The pooler tells clients numbers of sessions that the server does not know."""
    monkeypatch.setattr(session, "SILENT_S", 0.3)
    monkeypatch.setattr(session, "CHECK_S", 0.05)
    sleep = Statement("sleep", b"select pg_sleep(1)", (), lambda rows: len(rows))

    async def ask() -> int:
        session = Session(pooled("session"))
        await session.open()
        asked = asyncio.create_task(session.run(sleep))
        try:
            while not asked.done():
                await Silence([session]).run_once()
            return await asked
        finally:
            await session.close()

    assert asyncio.run(ask()) == 1


def test_a_session_url_of_another_database_is_refused(start, database_url, server_url):
    worker = start(session_url=server_url, wait=False)
    worker.says("reaches another database than database_url")
    assert worker.process.wait(20) == 2


@pytest.mark.fault(42)
def test_behind_a_pooler_in_transaction_mode_all_works_but_the_fast_notice(
    pooled, start, queue, database_url, tmp_path
):
    pooled_url = pooled("transaction")
    faults.app.configure(config.load(flags={"database_url": pooled_url}))
    worker = start(url=pooled_url, slots=2, **SHORT)
    worker.says("the database is behind a pooler in transaction mode")
    assert "! a pooler in transaction mode is between here and the server" in Cli(pooled_url)("doctor").out
    jobs = faults.app.enqueue_many(faults.work_a_little.job(n) for n in range(200))
    killer, endless = faults.die_by.enqueue("SIGSEGV"), faults.clean_up.enqueue(str(tmp_path / "out"))
    eventually((tmp_path / "out.started").exists, within_s=20)
    assert endless.cancel()
    eventually(lambda: endless.status() is State.CANCELLED, what="it is cancelled")
    eventually(lambda: killer.status() is State.QUARANTINED, within_s=20, what="the killer is caught")
    all_end_once(database_url, jobs)
    assert queue.execute("select from outlive.liveness").fetchall() == []
    assert outlive.gather([faults.add.enqueue(n, n) for n in range(3)], timeout=20) == [0, 2, 4]
    assert queue.execute("select from outlive.awaited").fetchall() == []
    held = faults.wait_for.enqueue(str(tmp_path / "held"))
    begun(tmp_path / "held")
    worker.kill()
    start(url=pooled_url, slots=2, **SHORT)
    begun(tmp_path / "held", times=2)
    (tmp_path / "held").touch()
    all_end_once(database_url, [held])
    assert outcomes(database_url, held) == ["lost", "succeeded"]


def test_behind_a_pooler_in_transaction_mode_a_busy_worker_makes_room_for_a_suspect(
    pooled, start, queue, connect, tmp_path
):
    suspect, hand = faults.add.enqueue(1), Hand(connect())
    for _ in range(2):
        hand.claim()
        queue.execute("update outlive.running set lease_until = '2000-01-01Z'")
        queue.run(store.expire())
    queue.run(store.pause_queue("default"))
    worker = start(url=pooled("transaction"), slots=2, queues="busy,default")
    faults.wait_for.using(queue="busy").enqueue(str(tmp_path / "busy"))
    begun(tmp_path / "busy")
    queue.execute("update outlive.held set since = since - interval '61 seconds'")
    queue.run(store.resume_queue("default"))
    worker.says("makes room", within_s=20)
    (tmp_path / "busy").touch()
    assert suspect.result(timeout=20) == 1
