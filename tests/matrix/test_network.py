"""Faults of the network between a worker and its database. The number in a docstring is the fault's."""

import random
import re
import time
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

import outlive
from outlive import config
from outlive.humanize import short_id
from tests import faults
from tests.driving.jobs import begun
from tests.driving.workers import alive
from tests.matrix.asking import all_end_once, ends, outcomes
from tests.proxy import Boundary, Proxy, Side, Way
from tests.waiting import eventually

SHORT = {"lease_s": "4", "renew_s": "1", "sweep_s": "0.3"}


@pytest.mark.fault(27, 28)
@pytest.mark.parametrize(
    "ways",
    [
        pytest.param((Way.TO_CLIENT,), id="to the client"),
        pytest.param((), id="both ways", marks=pytest.mark.long),
        pytest.param((Way.TO_SERVER,), id="to the server", marks=pytest.mark.long),
    ],
)
def test_a_worker_cut_off_from_the_database_kills_its_jobs_before_its_leases_end(
    start, queue, database_url, tmp_path, ways
):
    with Proxy(database_url, tmp_path) as proxy:
        lonely = start(url=proxy.url, slots=2, **SHORT)
        held = faults.wait_for.enqueue(str(tmp_path / "held"))
        (first,) = begun(tmp_path / "held")
        other = start(slots=2, **SHORT)
        proxy.silence(*ways)
        eventually(lambda: not alive(first), within_s=20, what="the process is killed")
        ours = queue.execute("select from outlive.running where worker = %s", [lonely.id]).fetchall()
        assert ours, "another worker could have begun it before"
        assert lonely.says("its lease could not be renewed in time")
        begun(tmp_path / "held", times=2, within_s=30)
        jobs: list[outlive.Job[Any]] = [held]
        jobs += [*faults.app.enqueue_many(faults.work_a_little.job(n) for n in range(50))]
        (tmp_path / "held").touch()
        all_end_once(database_url, jobs)
        assert outcomes(database_url, held) == ["lost", "succeeded"]
        proxy.heal()
        assert other.stop() == 0
        more = [faults.add.enqueue(n, n) for n in range(10)]
        all_end_once(database_url, more)
        all_end_once(database_url, jobs)


@pytest.mark.fault(30)
@pytest.mark.parametrize("batch", [1, 5])
def test_an_enqueue_whose_answer_is_cut_off_is_repeated_and_makes_each_job_once(
    start, queue, database_url, tmp_path, batch
):
    """The server commits, and its answer does not reach the client."""
    cuts: list[tuple[object, ...] | None] = []

    def cut_once(at: Boundary) -> None:
        if at.side is Side.AFTER and "outlive.enqueue" in at.text and not cuts:
            committed = queue.execute("select count(*) from outlive.jobs").fetchone()
            if committed != (0,):  # Otherwise the statement was only prepared.
                cuts.append(committed)
                at.link.cut()

    with Proxy(database_url, tmp_path, at_boundary=cut_once) as proxy:
        faults.app.configure(config.load(flags={"database_url": proxy.url}))
        jobs = faults.app.enqueue_many(faults.leave_a_mark.job(str(tmp_path), n) for n in range(batch))
        faults.app.connections.close()
    assert cuts == [(batch,)], "they were there when the answer was cut off"
    faults.app.configure(config.load(flags={"database_url": database_url}))
    start()
    all_end_once(database_url, jobs)
    assert queue.execute("select count(*) from outlive.jobs").fetchone() == (batch,)
    assert [(tmp_path / str(n)).read_bytes() for n in range(batch)] == [b"x"] * batch


CUTS = 8


@pytest.mark.fault(30)
def test_turns_whose_answers_are_cut_off_lose_nothing_and_run_nothing_twice(start, queue, database_url, tmp_path):
    """The worker learns which ends were written, and adopts its claims at once, before any lease ends."""
    turns = 0

    def cut_often(at: Boundary) -> None:
        nonlocal turns
        if at.side is Side.AFTER and "outlive.claim_lanes(" in at.text:
            turns += 1
            if turns % 2 and turns < 2 * CUTS:
                at.link.cut()

    with Proxy(database_url, tmp_path, at_boundary=cut_often) as proxy:
        worker = start(url=proxy.url, slots=1)
        jobs: list[outlive.Job[Any]] = []
        while turns < 2 * CUTS:  # A fast machine ends hundreds of jobs in a turn.
            more = range(len(jobs), len(jobs) + 500)
            jobs += faults.app.enqueue_many(faults.leave_a_mark.job(str(tmp_path), n) for n in more)
            all_end_once(database_url, jobs)
        worker.stop()
    found = re.findall(r"reconciled: (\d+) ends were written already, (\d+) claims are recovered", worker.log())
    assert sum(int(reports) for reports, _ in found) > 0
    assert sum(int(claims) for _, claims in found) > 0
    assert {(tmp_path / str(n)).read_bytes() for n in range(len(jobs))} == {b"x"}
    assert queue.execute("select distinct outcome from outlive.attempts").fetchall() == [("succeeded",)]


@pytest.mark.fault(30)
@pytest.mark.long
@pytest.mark.timeout(600)
def test_connections_cut_at_random_moments_lose_nothing(start, queue, database_url, tmp_path):
    """Each cut may leave a statement whose end is unknown to the client."""
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Proxy(database_url, tmp_path) as proxy:
        start(url=proxy.url, **SHORT)
        jobs = faults.app.enqueue_many(faults.work_a_little.job(n) for n in range(1500))
        while sum(ends(queue, jobs).values()) < len(jobs):
            until = time.monotonic() + chance.uniform(0.02, 0.2)
            eventually(lambda: time.monotonic() > until)  # noqa: B023
            proxy.cut()
        all_end_once(database_url, jobs)


@pytest.mark.fault(27)
@pytest.mark.parametrize(
    "bound_s", [pytest.param(20.0, id="busy"), pytest.param(6.0, id="exact", marks=pytest.mark.long)]
)
def test_a_silent_cut_of_the_network_is_a_death_within_seconds(network, new_server, start, tmp_path, bound_s):
    """To others, the worker's whole machine seems to be gone."""
    server = new_server(listen_addresses=network.host)
    with (server.data / "pg_hba.conf").open("a") as file:
        file.write("host all all 198.18.0.0/15 trust\n")
    server.start()
    faults.app.configure(config.load(flags={"database_url": server.url}))
    far = start(url=make_conninfo(server.url, host=network.host), within=network.within, slots=1)
    held = faults.wait_for.enqueue(str(tmp_path / "held"))
    (first,) = begun(tmp_path / "held")
    near = start(url=server.url, slots=1)
    eventually(lambda: server.ask("select from outlive.liveness having count(*) = 2"), what="both show that they live")
    network.cut()
    cut = time.monotonic()
    eventually(
        lambda: f"Dead worker detected: {short_id(far.id)}" in near.log(), within_s=bound_s, what="it is declared dead"
    )
    print(f"declared dead after {time.monotonic() - cut:.1f} s")
    begun(tmp_path / "held", times=2, within_s=30)
    network.heal()
    far.says("was declared dead by others", within_s=30)
    (tmp_path / "held").touch()
    all_end_once(server.url, [held])
    assert outcomes(server.url, held) == ["lost", "succeeded"]
    eventually(lambda: not alive(first), what="its process is gone")


@pytest.mark.fault(29)
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bad_s", [6.0, 60.0])
def test_a_network_that_loses_a_third_and_takes_two_seconds_loses_no_job(network, start, queue, database_url, bad_s):
    """The kernel loses packets, and an answer takes two seconds. A wrong verdict costs no job."""
    with Proxy(database_url, host=network.host) as proxy:
        far = start(url=proxy.url, within=network.within, slots=2)
        start(slots=1)
        jobs = faults.app.enqueue_many(faults.work_a_little.job(n) for n in range(400))
        network.lose(30)
        proxy.latency_s = 1.0
        until = time.monotonic() + bad_s
        while time.monotonic() < until:
            jobs.append(faults.add.enqueue(len(jobs), 1))
            pause = time.monotonic() + 0.1
            eventually(lambda: time.monotonic() > pause)  # noqa: B023
        network.heal()
        proxy.latency_s = 0.0
        all_end_once(database_url, jobs, within_s=60)
        assert queue.execute("select from outlive.held").fetchall() == []
        assert far.process.poll() is None
