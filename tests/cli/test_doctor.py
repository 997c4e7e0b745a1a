"""The command doctor: its findings in a real database, and its verdict on a bad one."""

import json
import re
import resource
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outlive import program, store
from outlive.cli import doctor
from outlive.errors import JobFailed
from outlive.humanize import RESTART, brief
from outlive.model import Ended, Schedule, SourceLimits
from outlive.operations.findings import (
    Finding,
    judge_clock,
    judge_disk,
    judge_fleet,
    judge_jobs,
    judge_locks,
    judge_server,
    judge_vacuum,
)
from outlive.operations.selection import Count
from outlive.states import Outcome, State
from tests.driving.commands import Cli
from tests.driving.databases import new_database, session
from tests.driving.making import WORKER
from tests.store.test_dependencies import waiting_for
from tests.store.test_liveness import live
from tests.waiting import eventually

HEALTHY = {"fsync": "on", "synchronous_commit": "on", "autovacuum": "on", "autovacuum_naptime_s": 10.0}


def findings(cli: Cli) -> dict[str, dict[str, Any]]:
    ran = cli("doctor", "--json")
    assert ran.code == 1  # The tests' own server has fsync off, which is a problem.
    return {finding["what"]: finding for finding in json.loads(ran.out)}


def test_the_doctor_looks_at_the_server_and_the_jobs(cli, queue):
    queue.claim_job(queue.make("shop.stuck"), lease_s=0)
    queue.make_quarantined()
    queue.make_finished(Outcome.FAILED)
    queue.make()
    found = findings(cli)
    levels = {what: finding["level"] for what, finding in found.items()}
    assert levels["fsync is off: a crash of the machine can lose or damage all data"] == "problem"
    assert levels["1 job is stuck: no reaper has freed the jobs of a silent worker"] == "problem"
    assert levels["1 job is in quarantine"] == "advice"
    assert levels["1 job failed for good in the last day"] == "advice"
    assert levels["1 job is ready and no worker is active"] == "problem"
    assert all(finding["next"] for finding in found.values() if finding["level"] in ("advice", "problem"))
    text = cli("doctor").out
    assert "✗ fsync is off" in text
    assert "→ alter system set fsync = on" in text


def test_jobs_that_can_not_begin_because_of_one_that_failed_are_found(cli, queue):
    failed, under_way = queue.make_many(2)
    blocked, waits = waiting_for(failed), waiting_for(under_way)
    queue.enqueue([blocked, waits])
    assert not any("blocked by jobs" in what for what in findings(cli))
    queue.run_job(failed, Outcome.FAILED, final=True)
    found = findings(cli)["1 job is blocked by jobs that ended without success, and can't begin"]
    assert "jobs --state blocked" in found["next"]
    queue.run(store.retry([failed]))
    assert not any("blocked by jobs" in what for what in findings(cli))


def test_workers_that_died_lately_and_open_breakers_are_named(cli, queue):
    queue.register_worker(state="dead")
    queue.run(store.register_sources([SourceLimits("shop", rate_limit_per_minute=60)]))
    assert not any("breaker" in one for one in findings(cli))
    queue.run(store.count_outcomes([("shop", None, False)] * 5))
    found = findings(cli)
    life = cli("show", queue.make(source="shop")).out
    assert re.search(
        r"the breaker of its source shop is open until \d{4}-\d\d-\d\d [\d:]{8} \S+; then one job tries it", life
    )
    assert "paused" not in life
    assert found["1 worker died in the last day: crawler-1"]["level"] == "advice"
    open_now = found["the breaker of the source shop is open after 5 failures in a row"]
    assert open_now["next"].startswith("outlive sources resume shop")
    queue.execute("update outlive.workers set last_seen = last_seen - interval '25 hours'")
    assert not any("died" in one for one in findings(cli))


def test_a_connected_worker_whose_heartbeat_is_late_is_named_and_so_is_a_stale_one(cli, queue):
    queue.register_worker()
    for age_s, silent in ((31, None), (42, r"4\d(\.\d)? s"), (75, r"7\d(\.\d)? s")):
        queue.execute("update outlive.workers set last_seen = outlive.now() - %s * interval '1 s'", [age_s])
        late = "".join(one for one in findings(cli) if "heartbeat" in one)
        assert re.fullmatch(f"worker crawler-1 has sent no heartbeat for {silent}, and .* 30 s" if silent else "", late)


def test_ready_jobs_of_a_paused_queue_or_source_are_named(cli, queue):
    jobs = {"queue default": queue.make(), "source shop": queue.make(queue="slow", source="shop")}
    cli("queues", "pause", "default"), cli("sources", "pause", "shop")
    found, paused_at = findings(cli), queue.value("select paused_at from outlive.queues")
    for thing, job in jobs.items():
        kind, name = thing.split()
        resume = f"outlive {kind}s resume {name}"
        since = f" since {brief(paused_at)}" if kind == "queue" else ""
        assert found[f"1 job is ready, but the {thing} is paused{since}"]["next"] == resume
        assert f"paused{since}" in cli(f"{kind}s").out
        assert f"its {thing} is paused; {resume}\n" in cli("show", job).out
        assert cli(*resume.split()[1:]).code == 0
        assert "paused" not in cli("show", job).out


def test_jobs_that_are_ready_while_all_slots_are_busy_for_minutes_are_named(cli, queue):
    queue.register_worker()
    queue.execute("update outlive.workers set slots = 2")
    long = [queue.claim_job(queue.make()) for _ in range(2)]
    job, busy = queue.make(), "all slots of {} are busy (2 of 2)"
    assert busy.format("the workers that serve it") in cli("show", job).out
    assert not any("none has begun" in one for one in findings(cli))
    queue.execute("update outlive.running set started_at = now() - interval '430 s'")
    queue.execute("update outlive.waiting set ready_at = now() - interval '1 hour'")
    told = f"1 job is ready in the queue default, and none has begun for 7 m: {busy.format('its workers')}"
    assert findings(cli)[told]["level"] == "advice"
    queue.end(Ended(long[0].token))
    assert "busy" not in cli("show", job).out
    assert not any("none has begun" in one for one in findings(cli))


def test_the_doctor_names_the_file_of_settings_that_is_in_force(cli, tmp_path, monkeypatch):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert "no outlive.toml is in use" in findings(cli)
    (tmp_path / "outlive.toml").write_text("slots = 2\n")
    assert f"settings are read from {tmp_path}/outlive.toml" in findings(cli)


def test_a_database_without_schema_is_a_problem(empty_database_url):
    ran = Cli(empty_database_url)("doctor")
    assert ran.code == 1
    assert "✗ the database has no outlive schema yet\n    → run `outlive migrate --database-url " in ran.out


@pytest.mark.fault(54)
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_another_encoding_is_refused_and_named(server_url, encoding):
    with new_database(server_url, template="template0", options=f"encoding '{encoding}' locale 'C'") as url:
        cli = Cli(url)
        refused = cli("migrate")
        assert (refused.code, encoding in refused.err) == (5, True)
        doctor = cli("doctor")
        assert doctor.code == 1
        assert f"✗ the database has the encoding {encoding}" in doctor.out


def test_a_long_transaction_is_named_by_its_backend_program_and_user(queue, connect, server_url):
    """One of another database is older, but holds up no vacuum here."""
    other = connect()
    other.execute("set application_name = 'report'")
    with psycopg.connect(server_url, autocommit=True) as stranger:
        for one in (stranger, other):
            one.execute("begin isolation level repeatable read")
            one.execute("select 1 from pg_class")
        [health] = queue.run(store.health())
    [advice] = [f for f in judge_vacuum(health | {"oldest_snapshot_s": 300.0}) if "removing rows for" in f.what]
    assert advice.level == "advice"
    pid = other.info.backend_pid
    assert f"the transaction of backend {pid} (report of user {other.info.user})" in advice.what
    assert f"pg_terminate_backend({pid})" in (advice.next or "")


def test_a_session_that_locks_a_table_is_named_and_the_doctor_does_not_wait_for_it(cli, queue, connect):
    other = connect()
    other.execute("begin")
    other.execute("lock table outlive.jobs in access exclusive mode")
    found = findings(cli)
    [lock] = [what for what in found if what.startswith(f"backend {other.info.backend_pid} (outlive of user ")]
    assert "holds a lock on outlive.jobs, in a transaction that is open for" in lock
    assert found[lock]["level"] == "problem"
    assert f"pg_terminate_backend({other.info.backend_pid})" in found[lock]["next"]
    unseen = [one for what, one in found.items() if what.endswith("another transaction holds a lock")]
    assert {one["level"] for one in unseen} == {"unknown"}
    assert "this machine and the database agree on the time" in found, "what is not locked is looked at"


def test_a_reader_behind_whom_a_lock_waits_is_named_and_a_lock_of_a_moment_is_not(queue, connect):
    reader, waiter = connect(), connect()
    reader.execute("begin")
    reader.execute("select from outlive.waiting")
    assert queue.run(store.lock_holders()) == []
    waiter.pgconn.send_query(b"begin; lock table outlive.waiting in access exclusive mode")
    [holder] = eventually(lambda: queue.run(store.lock_holders()))
    assert holder["pid"] == reader.info.backend_pid
    assert list(judge_locks([holder | {"for_s": 0.5}])) == []
    [unseen] = judge_locks([holder | {"for_s": None}])
    assert "holds a lock on outlive.waiting: workers and clients wait for it" in unseen.what


@pytest.mark.parametrize(
    ("sick", "level", "said"),
    [
        ({}, "fine", "Postgres"),
        ({"standby": True}, "problem", "this server is a standby: no job can be enqueued or run here"),
        ({"server_version": 130011}, "problem", "Postgres 13 is too old"),
        ({"synchronous_commit": "off"}, "problem", "synchronous_commit is off"),
        ({"autovacuum": "off"}, "problem", "autovacuum is off"),
        ({"autovacuum_naptime_s": 60.0}, "advice", "autovacuum runs only every 60 s"),
        ({"connections": 85, "max_connections": 100}, "advice", "85 of 100 connections"),
        ({"connections": 98, "max_connections": 100}, "problem", "98 of 100 connections"),
    ],
)
def test_each_ill_of_the_server_has_its_weight(queue, sick, level, said):
    [health] = queue.run(store.health())
    worst = _worst(list(judge_server(health | HEALTHY | {"oldest_snapshot_s": 0.0} | sick)))
    assert worst.level == level
    assert said in worst.what
    assert worst.next or level == "fine"


def test_the_connections_of_the_fleet_are_added_up_and_compared_with_every_limit(queue):
    queue.register_worker(connections="50")
    [health], [worker] = queue.run(store.health()), queue.run(store.list_workers())
    now = health | {"connections": 9, "allowed_connections": 97}
    [fine] = judge_fleet(now, [worker])
    assert fine == Finding("fine", "1 worker may use 50 connections and 7 others are used now: 97 are allowed")
    [advice] = judge_fleet(now, [worker, worker])
    assert advice.level == "advice"
    assert advice.what == "2 workers may use 100 connections and 5 others are used now, but only 97 are allowed"
    assert list(judge_fleet(health, [worker | {"state": "dead"}])) == []
    queue.execute(f"alter database {queue.info.dbname} connection limit 40".encode())
    assert queue.run(store.health())[0]["allowed_connections"] == 40


def test_the_role_of_the_workers_is_judged_by_its_own_limit(cli, queue, database_url, connect):
    with session(queue, database_url, "outlive_worker") as theirs:
        role, limit = theirs.info.user, "alter role {} connection limit {}"
        live(queue, theirs)
        queue.execute("update outlive.workers set connections = 8")
        assert queue.run(store.limited_roles()) == []
        queue.execute(limit.format(role, 8).encode())
        fleet = f"1 worker of the role {role} may use 8 connections and 0 others of it are used now"
        assert findings(cli)[f"{fleet}: 8 are allowed"]["level"] == "fine"
        queue.execute(limit.format(role, 7).encode())
        short = findings(cli)[f"{fleet}, but only 7 are allowed"]
        assert short["level"] == "advice"
        assert short["next"].startswith(f'alter role "{role}" connection limit 8, or lower')
        queue.execute(limit.format(role, 1).encode())
        assert findings(cli)[f"{fleet}, but only 1 are allowed: all of them are used"]["level"] == "problem"
        refused = Cli(make_conninfo(database_url, user=role))("doctor")
    assert refused.code == 4
    assert f'too many connections for role "{role}"; raise the limit of connections' in refused.err


def test_idle_workers_and_idle_queues_are_no_problem(queue):
    [health] = queue.run(store.job_health())
    assert _worst(list(judge_jobs(health, Count(0)))).level == "advice"
    assert _worst(list(judge_jobs(health | {"active_workers": 2}, Count(5)))).level == "fine"


def test_a_role_that_does_not_see_other_sessions_is_not_told_that_vacuum_keeps_up(queue, database_url, connect):
    assert "vacuum keeps up" in findings(Cli(database_url))
    other = connect()
    other.execute("begin isolation level repeatable read")
    other.execute("select 1 from outlive.jobs")
    found = findings(Cli(make_conninfo(database_url, options="-c role=outlive_worker")))
    assert "vacuum keeps up" not in found
    what = "could not look whether a transaction keeps vacuum from removing rows: this role does not see others"
    assert found[what] == {"level": "unknown", "what": what, "next": 'grant pg_monitor to "outlive_worker"'}
    assert "no job is stuck" in found


def test_a_role_of_few_rights_hears_of_all_that_it_may_see_and_of_what_it_may_not(queue, database_url):
    queue.make_finished(Outcome.FAILED)
    viewer = findings(Cli(make_conninfo(database_url, options="-c role=outlive_viewer")))
    assert "no job is stuck" in viewer
    refused = [
        one for what, one in viewer.items() if what.startswith("could not look at the jobs that failed: permission")
    ]
    assert [one["level"] for one in refused] == ["unknown"]
    assert refused[0]["next"] == "run this as a member of outlive_worker", "a web server is to keep its few rights"
    web = findings(Cli(make_conninfo(database_url, options="-c role=outlive_enqueue")))
    assert not any(what.startswith(("no job", "no worker", "every job")) for what in web)
    for thing in ("stuck jobs", "the queues", "the workers", "the lanes", "the sources", "the schedules"):
        assert any(what.startswith(f"could not look at {thing}") for what in web)
    assert any("a process may open" in what for what in web)


def test_a_check_that_could_not_be_made_is_no_success(cli, queue, database_url, connect):
    fine, advice, problem = Finding("fine", "a"), Finding("advice", "b", "c"), Finding("problem", "d", "e")
    unseen, never_seen = Finding("unknown", "f", "grant it"), Finding("unknown", "could not look at the disk")
    for found, code in (([fine, advice, never_seen], 0), ([fine, problem], 1), ([fine, unseen], 1)):
        assert doctor.exit_code(found) == code
    assert "could not be made" not in cli("doctor").err
    viewer = Cli(make_conninfo(database_url, options="-c role=outlive_viewer"))
    unseen_there = [one for one in findings(viewer).values() if one["level"] == "unknown" and one["next"]]
    assert len(unseen_there) > 1
    said = viewer("doctor")
    assert f"{len(unseen_there)} checks could not be made: see the question marks" in said.err
    assert all(f"? {one['what']}" in said.out for one in unseen_there)
    connect().execute("begin; lock table outlive.schedules in access exclusive mode")
    assert "1 check could not be made" in cli("doctor").err


def test_a_disk_that_is_full_or_nearly_so_is_found_and_one_that_is_not_seen_is_not_fine(cli, queue):
    [health] = queue.run(store.health())
    gigabyte = 1024**3
    assert judge_disk(health, (50 * gigabyte, 100 * gigabyte)).level == "fine"
    assert judge_disk(health, (20 * gigabyte, 1000 * gigabyte)).level == "fine"
    assert "a full one stops all work" in judge_disk(health, (gigabyte, 100 * gigabyte)).what
    assert judge_disk(health, None).level == "unknown"
    queue.execute(
        "create function no_space() returns event_trigger language plpgsql as $$ begin"
        " raise disk_full using message = 'could not extend file: No space left on device'; end $$"
    )
    queue.execute("create event trigger full_disk on ddl_command_start execute function no_space()")
    what = "the server's disk is full: could not extend file: No space left on device"
    assert findings(cli)[what]["level"] == "problem"


def test_dead_rows_that_pile_up_are_found(queue, monkeypatch):
    monkeypatch.setattr("outlive.operations.findings.DEAD_ROWS", 1000)
    queue.make_many(1500)
    queue.execute("delete from outlive.waiting")
    queue.execute("select pg_stat_force_next_flush()")

    def found() -> list[str]:
        [health] = queue.run(store.health())
        return [one.what for one in judge_vacuum(health) if one.next == "vacuum outlive.waiting"]

    eventually(lambda: bool(found()), within_s=10, what="the statistics know of it")
    # About as many: earlier tests may have left room on its pages.
    assert re.match(r"outlive\.waiting has 1,[45]\d\d dead rows and 0 live ones \(never vacuumed\)", found()[0])


def test_a_replication_slot_without_a_reader_is_found(queue):
    name = f"test_{uuid4().hex}"
    queue.execute("select pg_create_physical_replication_slot(%s, true)", [name])
    try:
        [health] = queue.run(store.health())
    finally:
        queue.execute("select pg_drop_replication_slot(%s)", [name])
    [finding] = [one for one in judge_vacuum(health) if name in one.what]
    assert "has no reader" in finding.what
    assert finding.next == f"start its reader, or: select pg_drop_replication_slot('{name}')"


def test_a_prepared_transaction_is_found(queue):
    [health] = queue.run(store.health())
    old = b'[{"gid": "sale-7", "database": "shop", "since": "2026-01-01 12:00", "for_s": 7200}]'
    [finding] = [one for one in judge_vacuum(health | {"prepared": old, "slots": None}) if "prepared" in one.what]
    assert finding.next == "rollback prepared 'sale-7', or commit it, in database shop"


def test_a_job_whose_task_no_worker_has_is_found(cli, queue):
    queue.register_worker()
    queue.run(store.tell_tasks(WORKER, ["work"]))
    queue.make()
    assert "every job that is ready has a worker with its task" in findings(cli)
    queue.make("shop.gone")
    said = "no active worker has the task shop.gone and serves the queue default: 1 job is ready"
    assert findings(cli)[said]["level"] == "problem"
    assert RESTART in findings(cli)[said]["next"]
    job = queue.make(queue="slow")
    queue.execute("update outlive.workers set queues = '{default}'")
    assert "no active worker has the task work and serves the queue slow: 1 job is ready" in findings(cli)
    shown = " ".join(cli("show", job).out.split())
    assert "no active worker has the task work and serves the queue slow" in shown
    assert "if all have --queues, let one serve slow" in shown
    assert "no active worker has the task or serves the queue of: shop.gone, work; " + RESTART in cli("jobs").out


def test_a_job_that_no_worker_can_run_is_found_behind_more_lanes_than_are_listed(cli, queue):
    queue.register_worker()
    queue.execute("update outlive.workers set queues = '{default}'")
    queue.make(queue="slow")
    queue.execute("""
        insert into outlive.waiting (queue, source, task, priority, ready_at, id)
        select 'default', '', 'task ' || n, 5, now() - interval '1 hour', gen_random_uuid()
        from generate_series(1, 10000) n""")
    said = "no active worker has the task work and serves the queue slow: jobs wait"
    assert findings(cli)[said]["level"] == "problem"
    queue.execute("delete from outlive.waiting where queue = 'slow'")
    assert "every job that is ready has a worker with its task" in findings(cli)


def test_clocks_that_differ_are_found(database_url):
    assert "this machine and the database agree on the time" in findings(Cli(database_url))
    other = Cli(make_conninfo(database_url, options="-c outlive.now=2100-01-01T12:00:00Z"))
    [what] = [what for what in findings(other) if "clock is" in what]
    assert "ahead of this machine's" in what
    assert judge_clock(-5.0, doubt_s=1.0).what.startswith("the database's clock is 5 s behind")
    assert judge_clock(5.0, doubt_s=4.0).level == "fine"


def test_below_manage_py_the_hints_name_its_commands(cli, queue, monkeypatch):
    job = queue.make(queue="report", source="report")
    declared = Schedule(name="report", task="work", args=b"{}", every_s=60)
    queue.run(store.declare_schedules([declared], "shop:app"))
    monkeypatch.setenv(program.VARIABLE, "mail:archive")
    assert "→ manage.py outlive_worker --backend mail\n" in cli("doctor").out
    assert "`manage.py outlive --backend mail show " in str(JobFailed(uuid4(), State.FAILED, None))
    for group in ("queues", "sources", "schedules"):
        assert (
            f"; `manage.py outlive --backend mail {group} resume report` resumes it"
            in cli(group, "pause", "report").out
        )
    assert "its queue report is paused; manage.py outlive --backend mail queues resume " in cli("show", job).out
    queue.execute("update outlive.schema_version set version = 0")
    assert "→ run `manage.py migrate --database archive`\n" in cli("doctor").out


def test_few_open_files_are_found(cli):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        [what] = [what for what, one in findings(cli).items() if "may open only 256 files" in what and one["next"]]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "runs out" in what


def test_the_tightest_limit_of_the_cgroups_above_is_found(tmp_path):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limits in (
        (inner, {"memory.max": "max", "pids.max": "100", "pids.current": "40"}),
        (inner.parent, {"memory.max": "1000000000", "memory.current": "950000000", "pids.max": "max"}),
    ):
        for name, text in limits.items():
            (folder / name).write_text(f"{text}\n")
    memory, pids = doctor.judge_cgroup(inner)
    assert (memory.level, memory.what) == ("advice", "the cgroup of this process uses 950 MB of 1 GB memory")
    assert (pids.level, pids.what) == ("advice", "the cgroup of this process has 40 of 100 processes")


def _worst(findings: list[Finding]) -> Finding:
    return max(findings, key=lambda finding: ["fine", "unknown", "advice", "problem"].index(finding.level))
