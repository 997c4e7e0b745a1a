"""What a worker and a reaper tell from outside: probes, metrics, and notices to systemd."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outlive import State, config, db
from outlive.humanize import short_id
from outlive.metrics import catalogue
from outlive.metrics.endpoint import MOST, Endpoint, Response
from outlive.model import Ended
from outlive.states import Outcome
from outlive.worker.attempts.leases import Leases
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.reporting.alerts import Alerts, Announcements
from outlive.worker.reporting.monitoring import TURN_S, ReaperVitals, Systemd
from outlive.worker.session import Session
from tests import faults
from tests.driving.commands import Cli, ended, started
from tests.driving.databases import login
from tests.driving.making import TASK, lane
from tests.driving.scraping import ANY_PORT, get, place_in, place_of, scrape, send
from tests.waiting import aeventually, eventually

EVERY = {*catalogue.OF_WORKER, *catalogue.OF_PROCESS, *catalogue.OF_DATABASE}


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket like the one on which systemd listens, for every process that the test starts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        yield listener


def heard(systemd: socket.socket, word: str) -> list[str]:
    """Wait for a notice with this line; returns its other lines."""
    while word not in (lines := systemd.recv(4096).decode().split("\n")):
        pass
    return [line for line in lines if line != word]


def test_a_worker_answers_probes_and_prometheus_until_it_has_stopped(start, database_url, systemd, tmp_path):
    worker = start(slots=4, metrics_listen=ANY_PORT)
    place = place_of(worker)
    assert get(place, "/healthz") == get(place, "/readyz") == (200, "ok\n")
    assert heard(systemd, "READY=1")[-1] == "STATUS=0 of 4 slots are busy"
    assert faults.variables_of_systemd.enqueue().result(timeout=20) == []

    jobs = faults.app.enqueue_many([faults.add.job(n, n) for n in range(5)])
    killer = faults.segfault.using(max_crashes=1).enqueue()
    assert [job.result(timeout=20) for job in jobs] == [0, 2, 4, 6, 8]
    eventually(lambda: killer.status() is State.QUARANTINED)
    worker.says(f"Job {short_id(killer.id)} is quarantined")
    seen = scrape(place)
    assert seen("outlive_jobs_ended_total", task=faults.add.name, queue="default", outcome="succeeded") == 5
    assert seen("outlive_jobs_ended_total", task=faults.segfault.name, queue="default", outcome="crashed") == 1
    assert seen("outlive_crashes_total", task=faults.segfault.name, signal="SIGSEGV") == 1
    assert seen("outlive_quarantined_total", task=faults.segfault.name) == 1
    for name in ("outlive_job_run_seconds", "outlive_job_wait_seconds"):
        assert (
            seen(f"{name}_count", task=faults.add.name) == seen(f"{name}_bucket", task=faults.add.name, le="+Inf") == 5
        )
        assert 0 < (seen(f"{name}_sum", task=faults.add.name) or 0) < 60
    assert (seen("outlive_slots"), seen("outlive_database_up")) == (4, 1)
    assert (seen("outlive_database_round_trips_total", statement="end_and_claim") or 0) > 1
    assert seen("outlive_workers", state="active") == 1
    assert seen("outlive_jobs", state="quarantined") == 1
    assert [labels["id"] for labels in seen.labels_of("outlive_worker_info")] == [worker.id]
    assert seen.families["process_resident_memory_bytes"]
    assert seen.databases == {db.named(database_url)}
    for metric in EVERY:
        family = seen.families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert all(set(sample.labels) - {"le"} == set(metric.labels) for sample in family.samples)

    job = faults.fresh_until.enqueue(str(tmp_path / "go"))
    eventually((tmp_path / "go.begun").exists, within_s=20, what="the job has begun")
    eventually(lambda: heard(systemd, "WATCHDOG=1") == ["STATUS=1 of 4 slots are busy"])
    worker.send(signal.SIGTERM)
    assert heard(systemd, "STOPPING=1")[-1] == "STATUS=this worker stops; 1 of 4 slots are busy"
    assert get(place, "/readyz") == (503, "this worker stops\n")
    assert get(place, "/healthz") == (200, "ok\n")
    (tmp_path / "go").touch()
    assert worker.process.wait(20) == 0
    assert job.status() is State.SUCCEEDED


def test_systemd_hears_of_a_stop_although_its_queue_was_full(start, systemd, tmp_path):
    worker = start(slots=1)
    faults.fresh_until.enqueue(str(tmp_path / "go"))
    eventually((tmp_path / "go.begun").exists, within_s=20, what="the job has begun")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
        other.setblocking(False)
        while True:
            other.sendto(b"STATUS=of another", str(tmp_path / "notify"))
    worker.send(signal.SIGTERM)
    worker.says(" stops: ")
    assert heard(systemd, "STOPPING=1")[-1] == "STATUS=this worker stops; 1 of 1 slot is busy"
    (tmp_path / "go").touch()
    assert worker.process.wait(20) == 0


def test_no_client_keeps_probes_from_being_answered(start):
    place = place_of(start(slots=1, metrics_listen=ANY_PORT))
    silent = [socket.create_connection(place, timeout=10) for _ in range(40)]
    assert get(place, "/healthz") == (200, "ok\n")
    for client in silent:
        client.close()
    assert send(place, b"POST /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert send(place, b"GET /secret HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 ")
    assert send(place, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert send(place, b"GET / HTTP/1.1\r\nCookie: ".ljust(8192, b"x")).startswith(b"HTTP/1.1 431 ")
    assert get(place, "/healthz?probe=1", "HEAD") == (200, "")


def closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize("sent", [b"", b"GET "], ids=["silent", "slow"])
def test_one_client_too_many_closes_the_oldest(sent, monkeypatch):
    monkeypatch.setattr("outlive.metrics.endpoint.READ_S", 600.0)
    monkeypatch.setattr("outlive.metrics.endpoint.LIVES_S", 600.0)

    async def connect_too_often() -> None:
        endpoint = Endpoint(ANY_PORT, {})
        place = urlsplit(endpoint.address)
        clients = []
        for _ in range(MOST + 1):
            clients.append(client := socket.create_connection((place.hostname or "", place.port or 0)))
            client.sendall(sent)
            await endpoint.run_once()
        await aeventually(lambda: closed(clients[0]), within_s=10)
        assert not closed(clients[1])
        await endpoint.close()
        for client in clients:
            client.close()

    asyncio.run(connect_too_often())


def test_a_probe_is_answered_in_its_turn_behind_any_silent_connections():
    async def ask_behind_them() -> None:
        endpoint = Endpoint(ANY_PORT, {"/healthz": well})
        place = urlsplit(endpoint.address)
        address = (place.hostname or "", place.port or 0)
        silent = [socket.create_connection(address, timeout=1) for _ in range(40)]
        with socket.create_connection(address, timeout=1) as probe:
            probe.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            serving = asyncio.create_task(forever(endpoint))
            await aeventually(lambda: readable(probe), within_s=10)
            serving.cancel()
            assert probe.recv(100).startswith(b"HTTP/1.1 200 ")
        assert not any(closed(client) for client in silent)
        await endpoint.close()
        assert all(closed(client) for client in silent)
        for client in silent:
            client.close()

    asyncio.run(ask_behind_them())


async def forever(endpoint: Endpoint) -> None:
    while True:
        await endpoint.run_once()


async def well() -> Response:
    return Response(HTTPStatus.OK, b"ok\n")


def readable(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


def test_a_worker_is_not_ready_while_it_imports_its_app(start, tmp_path):
    go = tmp_path / "go"
    lines = ["import os, time", f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"]
    (tmp_path / "slow.py").write_text("\n".join([*lines, "import outlive", "app = outlive.App()"]))
    worker = start(wait=False, target="slow:app", folder=tmp_path, metrics_listen=ANY_PORT)
    place = place_of(worker)
    assert get(place, "/readyz") == (503, "the app is being imported\n")
    assert get(place, "/healthz") == (200, "ok\n")
    assert scrape(place)("outlive_database_up") == 0
    go.touch()
    worker.started()
    assert get(place, "/readyz") == (200, "ok\n")


def test_a_reaper_answers_too(database_url, systemd):
    with started() as commands:
        reaper = Cli(database_url).process("reap", OUTLIVE_METRICS_LISTEN=ANY_PORT)
        commands.append(reaper)
        assert reaper.stderr
        place = place_in(reaper.stderr.readline())
        heard(systemd, "READY=1")
        eventually(lambda: get(place, "/readyz") == (200, "ok\n"))
        eventually(lambda: heard(systemd, "WATCHDOG=1") == ["STATUS=0 attempts were ended"])
        seen = scrape(place)
        assert (seen("outlive_attempts_reaped_total"), seen("outlive_workers", state="dead")) == (0, 0)
        assert {metric.name.removesuffix("_total") for metric in EVERY - {*catalogue.OF_WORKER}} <= seen.families.keys()
        reaper.send_signal(signal.SIGTERM)
        heard(systemd, "STOPPING=1")
        assert ended(reaper).code == 0


def test_a_worker_whose_role_loses_its_rights_says_which(start, admin, database_url):
    with login(admin, "outlive_worker") as role:
        worker = start(url=make_conninfo(database_url, user=role), metrics_listen=ANY_PORT)
        place = place_of(worker)
        admin.execute(sql.SQL("revoke outlive_worker from {}").format(sql.Identifier(role)))
        refused = "the database refused: permission denied for schema outlive"
        lacks = f"{refused}; run this as a member of outlive_worker (to enqueue, outlive_enqueue is enough)"
        eventually(lambda: get(place, "/readyz") == (503, f"{lacks}\n"), within_s=30)
        assert scrape(place)("outlive_database_up") == 0
        worker.says(f"/metrics lacks the figures of the database: {lacks}")
        admin.execute(sql.SQL("grant outlive_worker to {}").format(sql.Identifier(role)))
        eventually(lambda: get(place, "/readyz") == (200, "ok\n"), within_s=30)
        worker.stop()


def test_a_loop_that_hangs_is_told_and_the_watchdog_is_left_alone(database_url, systemd):
    reaper = Reaper(Session(database_url), config.load(environ={}), Alerts())
    vitals = ReaperVitals(reaper, Session(database_url))
    assert vitals.dead() is None
    assert vitals.unready() == "the database does not answer"
    reaper.checked_at -= TURN_S + 1
    assert vitals.dead() == "the reap loop has begun no turn for 121 s"
    with contextlib.suppress(TimeoutError):
        asyncio.run(asyncio.wait_for(Systemd(vitals).run_once(), 0.1))
    assert systemd.recv(4096) == b"STATUS=the reap loop has begun no turn for 121 s"


def test_a_task_that_keeps_crashing_is_told_also_while_each_tick_has_another_alert(database_url, queue, caplog):
    queue.register_task(max_crashes=100)
    queue.make_many(5, TASK)
    queue.end(*(Ended(one.token, Outcome.CRASHED, after_s=0.0) for one in queue.claim([lane(TASK)])))

    async def announce() -> None:
        session = Session(database_url)
        announcements = Announcements(session, config.load(flags={"on_quarantine": "true"}), Alerts())
        announcements.untold.set()
        await announcements.run_once()
        await session.close()

    asyncio.run(announce())
    assert f"task {TASK} keeps crashing" in caplog.text


def test_metrics_without_prometheus_client_are_refused_with_what_to_install(database_url):
    hide = "import sys; sys.modules['prometheus_client'] = None; from outlive.cli import main; main()"
    environ = {**os.environ, "OUTLIVE_DATABASE_URL": database_url, "OUTLIVE_METRICS_LISTEN": ANY_PORT}
    ran = subprocess.run([sys.executable, "-c", hide, "reap"], env=environ, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "pip install 'outlive[metrics]'" in ran.stderr


def test_an_address_that_is_taken_is_refused(database_url):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = ended(Cli(database_url).process("reap", OUTLIVE_METRICS_LISTEN=address))
    assert ran.code == 2
    assert f"metrics_listen is {address}, and this process can't listen there: Address already in use" in ran.err


def test_renewed_leases_and_fenced_ends_are_counted():
    leases = Leases(lease_s=300, renew_s=20)
    leases.hold([1, 2], since=0.0)
    leases.renew([1, 3], since=1.0)
    leases.note_refused_end(Ended(2, Outcome.SUCCEEDED))
    assert (leases.renewals, leases.fenced) == (1, 1)
