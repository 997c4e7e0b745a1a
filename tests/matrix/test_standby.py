"""A standby takes over while jobs run: each job that was replicated ends once, and lost ones are counted.

With asynchronous replication, Postgres' default, a promotion loses what the old server acknowledged at the very end:
jobs that were enqueued (they are gone), ends that were reported (the job runs again, and ends once) and claims (the job
waits again, while its first attempt may still run until its worker hears of it). With a synchronous standby nothing
that was acknowledged is lost. Tokens that were lost with the old server are given out again by the new one, so a worker
must forget what it holds and the new server does not know, before it claims anything there.
"""

import json
import signal
from collections.abc import Callable
from uuid import UUID

import pytest
from psycopg.conninfo import make_conninfo

from outlive import config, linux
from outlive.states import Outcome, State
from tests import faults
from tests.dashboard.asking import Dashboard
from tests.driving.commands import Cli
from tests.driving.jobs import begun
from tests.driving.making import Queue
from tests.driving.workers import freeze
from tests.matrix.asking import all_end_once
from tests.matrix.loading import Load
from tests.matrix.servers import PORT, Programs, Server
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("apps")
SHORT = {"lease_s": "6", "renew_s": "1", "sweep_s": "0.5"}


@pytest.fixture
def standby(server: Server, new_server: Callable[..., Server], programs: Programs) -> Server:
    """A standby that follows the test's server."""
    standby = new_server(empty=True)
    words = ("-D", standby.data, "-R", "-X", "stream", "-c", "fast", "--no-sync", "-h", server.folder, "-p", PORT)
    programs.run("pg_basebackup", *words, "-U", "postgres", log=standby.folder / "log")
    standby.start()
    eventually(lambda: server.ask("select from pg_stat_replication where state = 'streaming'"), what="it follows")
    return standby


def address_of_primary(*servers: Server) -> str:
    """An address of all these servers; the driver takes the one that can be written to."""
    hosts, ports = ",".join(str(server.folder) for server in servers), ",".join([str(PORT)] * len(servers))
    return make_conninfo(servers[0].url, host=hosts, port=ports, target_session_attrs="read-write")


def use(url: str) -> None:
    faults.app.configure(config.load(flags={"database_url": url}))


@pytest.mark.long
@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
def test_a_standby_promoted_under_load_finishes_each_of_its_jobs_once(server, standby, start, synchronous):
    if synchronous:
        server.ask("alter system set synchronous_standby_names = '*'")
        server.ask("select pg_reload_conf()")
        eventually(lambda: server.ask("select from pg_stat_replication where sync_state = 'sync'"), what="it is so")
    url = address_of_primary(server, standby)
    use(url)
    workers = [start(url=url, slots=2, **SHORT) for _ in range(2)]
    with Load(most=2000) as load:
        eventually(lambda: len(load.acknowledged) > 200, within_s=60, what="there is load")
        server.stop(signal.SIGKILL)
        before = len(load.acknowledged)
        standby.ask("select pg_promote()")
        eventually(lambda: len(load.acknowledged) > before + 100, within_s=60, what="the standby takes jobs")
    ids = [job.id for job in load.acknowledged]
    known = {row[0] for row in standby.ask("select id from outlive.jobs where id = any(%s)", ids)}
    lost = [n for n, job in enumerate(load.acknowledged) if job.id not in known]
    print(f"{len(lost)} of {len(ids)} acknowledged jobs were lost by replication")
    assert not lost or (not synchronous and max(lost) <= before + 5)
    all_end_once(standby.url, [job for job in load.acknowledged if job.id in known])
    assert standby.ask("select from outlive.held") == []
    assert all(worker.process.poll() is None for worker in workers)


def test_jobs_whose_end_a_lagging_standby_did_not_receive_run_again_and_end_once(server, standby, start, tmp_path):
    url = address_of_primary(server, standby)
    use(url)
    start(url=url, slots=2)
    gates = [tmp_path / "one", tmp_path / "two"]
    jobs = [faults.wait_for.enqueue(str(gate)) for gate in gates]
    for gate in gates:
        begun(gate)
    eventually(lambda: len(standby.ask("select from outlive.running")) == 2, what="it has both claims")
    standby.stop(signal.SIGINT)  # Whatever the primary does from now on is lost.
    lost = faults.add.enqueue(1, 1)
    for gate in gates:
        gate.touch()
    all_end_once(server.url, [*jobs, lost])
    server.stop(signal.SIGKILL)
    standby.start()
    standby.ask("select pg_promote()")
    use(standby.url)
    for gate in gates:
        begun(gate, times=2, within_s=30)
    all_end_once(standby.url, jobs)
    ends = "select attempt, outcome, losses, crashes, failures from outlive.attempts"
    assert standby.ask(ends) == [(1, "succeeded", 0, 0, 0)] * 2
    assert standby.ask("select from outlive.jobs where id = %s", lost.id) == []


@pytest.mark.long
def test_workers_leave_a_primary_that_is_frozen_and_begin_jobs_on_the_next_one(server, standby, start):
    url = address_of_primary(server, standby)
    use(url)
    workers = [start(url=url, slots=2) for _ in range(2)]
    all_end_once(server.url, [faults.add.enqueue(1, 1)])
    frozen = server.tree()
    try:
        freeze(frozen)
        standby.ask("select pg_promote()")
        use(standby.url)
        all_end_once(standby.url, faults.app.enqueue_many(faults.add.job(n, n) for n in range(20)))
    finally:
        for pid in frozen:
            linux.kill(pid, signal.SIGCONT)
    assert standby.ask("select distinct state from outlive.workers") == [("active",)]
    assert all(worker.says("all connections are made again") for worker in workers)


def test_the_doctor_of_a_standby_says_so_and_looks_at_the_rest(standby):
    ran = Cli(standby.url)("doctor", "--json")
    levels = {finding["what"]: finding["level"] for finding in json.loads(ran.out)}
    assert ran.code == 1
    assert levels["this server is a standby: no job can be enqueued or run here"] == "problem"
    assert levels["no job is stuck"] == levels["no job has failed in the last day"] == "fine"
    assert not any("could not look at" in what for what in levels)


@pytest.mark.long
def test_the_dashboard_of_a_standby_shows_every_page_and_says_why_it_changes_nothing(server, standby):
    use(server.url)
    job = faults.add.enqueue(1, 2)
    with Queue.at(server.url) as queue:
        queue.make_quarantined()
        queue.make_finished(Outcome.FAILED)
    eventually(lambda: standby.ask("select from outlive.jobs where id = %s", job.id), what="the standby has the job")
    paths = ["killers", "workers", "queues", "tasks", "sources", "schedules", "batches", "audit", "metrics", "readyz"]
    with Dashboard(standby.url) as dashboard:
        for path in ("", "jobs", f"jobs/{job.id}", *paths):
            answer = dashboard.get(f"/{path}")
            assert answer.status_code == 200, (path, answer.text)
        assert str(job.id) in dashboard.get("/jobs").text
        browser = dashboard.operator
        refused = browser.post("/act", action="cancel", ids=str(job.id), back="/jobs", proof=browser.proof())
    assert refused.status_code == 503
    assert "the database is read-only now; nothing was written" in refused.text


@pytest.mark.long
def test_a_token_given_out_again_by_a_standby_ends_only_its_own_job(server, standby, start, tmp_path):
    use(server.url)
    url = address_of_primary(server, standby)
    worker = start(url=url, slots=2)
    eventually(lambda: standby.ask("select from outlive.workers where tasks is not null"), what="it knows the worker")
    standby.stop(signal.SIGINT)  # Whatever the primary does from now on is lost.
    all_end_once(server.url, faults.app.enqueue_many(faults.warm.job(n) for n in range(100)))
    old = faults.wait_for.enqueue(str(tmp_path / "old"))
    begun(tmp_path / "old")
    ((token,),) = server.ask("select token from outlive.running where id = %s", old.id)
    ticked = "query like 'update outlive.watchers%' and state_change < now() - interval '0.5 seconds'"
    claims_sleep = f"select from pg_stat_activity where {ticked}"
    eventually(lambda: server.ask(claims_sleep), within_s=20, what="only its tick will notice that the server is gone")
    server.stop(signal.SIGKILL)
    standby.start()
    standby.ask("select pg_promote()")
    use(standby.url)
    assert isinstance(token, int)

    def next_token() -> int:
        ((last,),) = standby.ask("select last_value from pg_sequences where sequencename = 'running_token_seq'")
        assert last is None or isinstance(last, int)
        return (last or 0) + 1

    all_end_once(standby.url, faults.app.enqueue_many(faults.warm.job(n) for n in range(token - next_token())))
    assert next_token() == token
    new = faults.wait_warm.enqueue(str(tmp_path / "new"))
    eventually((tmp_path / "new.started").exists, within_s=20)
    assert standby.ask("select token from outlive.running where id = %s", new.id) == [(token,)]
    (tmp_path / "old").touch()
    later = faults.add.enqueue(1, 1)
    all_end_once(standby.url, [later])
    assert new.status() is State.RUNNING
    (tmp_path / "new").touch()
    assert isinstance(new.result(timeout=20), int), "the answer of another job"
    assert standby.ask("select from outlive.jobs where id = %s", UUID(str(old.id))) == []
    assert worker.log().count(" started") == 1, "it was not declared dead"
