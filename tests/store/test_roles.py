"""Roles: each can do its work, and is refused everything else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from outlive import App, migrate, store
from outlive.db import Statement
from outlive.model import Ended, Schedule, SourceLimits
from outlive.protocol import KeptStep, Progress, Wait
from outlive.sql import texts
from outlive.states import Outcome, State
from tests.driving.databases import login, new_database, session
from tests.driving.making import WORKER, Queue, lane, limits, new_worker, request

ROLES = ("outlive_worker", "outlive_enqueue", "outlive_viewer", "outlive_job", "outlive_protocol")
VIEWS = {
    *(
        "job_states",
        "recent_jobs",
        "stuck_jobs",
        "unmet_jobs",
        "killers",
        "worker_states",
        "queue_states",
        "source_health",
    ),
    *("schedule_states", "batch_states", "metrics", "scaling"),
}
PROTOCOL = {
    "register",
    "claim",
    "renew",
    "inputs_of",
    "succeed",
    "fail",
    "goodbye",
    "kept_steps",
    "keep_step",
    "wait_in",
}
ENQUEUING = {"enqueue", "enqueue_plain", "open_batch", "close_batch", "send"}
FUNCTIONS = {
    "outlive_enqueue": ENQUEUING,
    "outlive_viewer": {
        *("now", "fingerprint", "held_state", "count_lanes", "count_jobs", "count_finished", "end_rates", "changes"),
        *("count_held", "count_waits", "queue_rates", "watch", "silent_workers", "waits_for", "lacking", "count_ready"),
    },
    "outlive_job": {"complete", "once"},
    "outlive_protocol": PROTOCOL,
}
"""What a role may call; a viewer does so through the views. A worker may call everything."""
OF_OUTLIVE = "from pg_class c where relnamespace = 'outlive'::regnamespace and relkind = any(%s)"


@pytest.fixture(scope="module")
def shared(server_url: str) -> Iterator[Queue]:
    """A database for all the questions. Everything that a role does here is rolled back."""
    with new_database(server_url) as url, Queue.at(url) as connection:
        yield connection


@contextmanager
def acting_as(connection: psycopg.Connection[Any], role: str) -> Iterator[None]:
    connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    yield
    connection.execute("reset role")


def relations(queue: Queue, kinds: str) -> set[str]:
    return set(queue.values(f"select relname {OF_OUTLIVE}", list(kinds)))


def open_to(queue: Queue, role: str, *rights: str) -> set[str]:
    """The tables and views that a role may use in one of these ways, if only one of their columns."""
    asked = f"select relname {OF_OUTLIVE} and has_any_column_privilege(%s, c.oid, %s)"
    return set(queue.values(asked, ["r", "v"], role, ", ".join(rights)))


def callable_by(queue: Queue, role: str) -> set[str]:
    ours = "select proname from pg_proc p where pronamespace = 'outlive'::regnamespace"
    return set(queue.values(f"{ours} and has_function_privilege(%s, p.oid, 'execute')", role))


def refused_changes(queue: Queue, role: str) -> bool:
    """Whether a role can change neither the schema nor what is in it, nor empty a table, nor set a sequence."""
    asked = f"""
      select not pg_has_role(%s, 'outlive_owner', 'member') and not has_schema_privilege(%s, 'outlive', 'create')
        and not exists (select {OF_OUTLIVE} and has_table_privilege(%s, c.oid, 'truncate, trigger, references'))
        and not exists (select {OF_OUTLIVE} and has_sequence_privilege(%s, c.oid, 'update'))"""
    return bool(queue.value(asked, role, role, ["r", "v"], role, ["S"], role))


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_allowed_what_it_needs_and_refused_the_rest(shared, role):
    everything = callable_by(shared, "outlive_owner")
    tables, views = relations(shared, "r"), relations(shared, "v")
    worker, viewer = role == "outlive_worker", role == "outlive_viewer"
    assert views > VIEWS
    assert callable_by(shared, role) == (everything if worker else FUNCTIONS[role])
    seen = tables | views if worker else VIEWS | {"schema_version", "audit"} if viewer else {"schema_version"}
    assert open_to(shared, role, "select") == seen
    written = tables - {"schema_version"} if worker else set()
    assert open_to(shared, role, "insert", "update") & tables == written
    deleted = f"select relname {OF_OUTLIVE} and has_table_privilege(%s, c.oid, 'delete')"
    assert set(shared.values(deleted, ["r"], role)) == written
    assert refused_changes(shared, role)


@pytest.mark.parametrize("role", ["outlive_worker", "outlive_viewer"])
def test_a_role_that_may_see_a_view_may_call_what_the_view_calls(shared, role):
    with shared.transaction(force_rollback=True), acting_as(shared, role):
        for view in VIEWS:
            shared.execute(sql.SQL("table {}").format(sql.Identifier("outlive", view)))


def test_an_unrelated_role_may_do_nothing(shared):
    with shared.transaction(force_rollback=True):
        shared.execute("create role unrelated nologin")
        assert callable_by(shared, "unrelated") == open_to(shared, "unrelated", "select", "insert", "update") == set()
        assert shared.value("select has_schema_privilege('unrelated', 'outlive', 'usage')") is False


def test_no_role_can_log_in_or_more_than_that(shared):
    ours = "select rolname from pg_roles where rolname like 'outlive%'"
    powers = " and (rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)"
    assert shared.values(ours + powers) == []
    assert set(shared.values(ours)) == {"outlive_owner", *ROLES}


def test_everything_belongs_to_the_owner(shared):
    owners = (
        "select relowner::regrole::text from pg_class where relnamespace = 'outlive'::regnamespace"
        " union select proowner::regrole::text from pg_proc where pronamespace = 'outlive'::regnamespace"
        " union select nspowner::regrole::text from pg_namespace where nspname = 'outlive'"
    )
    assert shared.values(owners) == ["outlive_owner"]


def test_the_owner_can_change_the_schema_and_migrate(shared):
    migrate.migrate(shared, roles=True)  # A database's own rights are not cloned with it.
    with shared.transaction(force_rollback=True), acting_as(shared, "outlive_owner"):
        shared.execute("alter table outlive.jobs add column mine int")
        shared.execute("drop schema outlive cascade")
        assert migrate.migrate(shared) == (0, migrate.VERSION)
        assert migrate.migrate(shared, roles=True) == (migrate.VERSION, migrate.VERSION)


def test_the_functions_that_lend_their_owners_rights_look_in_no_other_schema(shared):
    lent = "select proname, proconfig from pg_proc where pronamespace = 'outlive'::regnamespace and prosecdef"
    found = {(name, settings[0]) for name, settings in shared.execute(lent.encode()).fetchall()}
    lenders = (
        *("enqueue", "enqueue_plain", "open_batch", "close_batch", "complete", "once", "send"),
        *("count_lanes", "count_held", "count_waits", "count_jobs", "count_finished", "end_rates", "queue_rates"),
        *("watch", "silent_workers", "lacking", "count_ready"),
        *PROTOCOL,
    )
    assert found == {(name, "search_path=pg_catalog, pg_temp") for name in lenders}


def call_a_source(run: Callable[..., Any]) -> None:
    """Use a source as a worker does, from its declaration to the records of its job."""
    other = new_worker()
    run(store.register_sources([SourceLimits("shop", rate_limit_per_minute=60, burst=5, max_concurrency=5)]))
    run(store.spread_limits(["work"]), store.set_source("shop", {"burst": 3}), store.pause_source("shop"))
    run(store.resume_source("shop"), store.enqueue([request(source="shop")], max_args_bytes=100))
    ((claimed,), *_) = msgspec.structs.astuple(
        run(store.end_and_claim(other, (), [lane(source="shop", asks=True)], limit=1))
    )
    assert run(store.ask_source("shop", claimed.token)).granted
    run(store.count_outcomes([("shop", claimed.token, False)]), store.breakers(), store.list_sources(limit=10))
    found = b'[{"scope": "s", "key": "k", "data": 1, "strength": 1}]'
    asked = msgspec.json.encode([{"id": new_worker(), "task": "next", "args": {}, "source": "bank"}])
    run(store.write_end(other, Ended(claimed.token, Outcome.SUCCEEDED, records=found, spawns=asked)))
    assert len(run(store.list_records(limit=10))) == 1
    [claimed] = run(store.end_and_claim(other, [], [lane("next", source="bank")], limit=1)).claimed
    run(store.write_end(other, Ended(claimed.token, Outcome.RELEASED, restart=b"{}")))


def fire_a_schedule(run: Callable[..., Any]) -> None:
    """Use schedules as workers and operators do."""
    run(store.declare_schedules([Schedule(name="report", task="work", args=b"{}", every_s=60.0)], "shop:app"))
    run(store.check_schedules(), store.orphaned_schedules(WORKER), store.prune_schedules(keep_s=0))
    (due,) = run(store.due_schedules()).due
    run(store.note_trouble(due, "why"))
    assert run(store.fire(due, [due.changed_at], None)).jobs == 1
    run(store.add_schedule("by hand", {"task": "work", "every_s": 60}))
    run(store.set_schedule("by hand", {"every_s": 30}), store.pause_schedule("report"))
    run(store.resume_schedule("report"), store.run_schedule("report"), store.reset_schedule("report"))
    run(store.remove_schedule("report"), store.schedule_infos(["by hand"]))
    assert [row["name"] for row in run(store.list_schedules())] == ["by hand"]


def fill_a_batch(run: Callable[..., Any]) -> None:
    """Use a batch as clients, workers and operators do."""
    batch = run(store.open_batch(new_worker(), "import", on_done=request()))
    links = msgspec.json.encode({"batch": batch})
    run(store.enqueue([request("import", links=links) for _ in range(3)], max_args_bytes=100))
    (first, second) = run(store.end_and_claim(WORKER, [], [lane("import")], limit=2)).claimed
    assert run(store.batch_of(first.token)) == [batch]
    assert run(store.end_and_claim(WORKER, [Ended(first.token)])).refused == []
    run(store.close_batch(batch, cancelling=True), store.cancel_batch(batch))
    assert (run(store.batch_counts(batch)).left, run(store.batch_done(batch))) == (1, False)
    assert run(store.end_and_claim(WORKER, [Ended(second.token)])).refused == []
    assert run(store.batch(batch)) == run(store.list_batches())
    run(store.prune_batches(keep_s=0))


def wait_and_go_on(run: Callable[..., Any]) -> None:
    """Let a job wait, as workers and clients do."""
    run(store.enqueue([request("waits")], max_args_bytes=100))
    [claimed] = run(store.end_and_claim(WORKER, [], [lane("waits")], limit=1)).claimed
    assert run(store.suspend(WORKER, Wait(claimed.token, "receive:go", signal="go"))).parked
    run(store.send(claimed.id, "go", b"1"), store.end_due())
    [(job, *_)] = run(store.resume(WORKER, limit=1, lease_s=60.0))
    run(store.unpark(WORKER, [job.id]), store.end_and_claim(WORKER, [Ended(job.token)]))


def test_a_worker_can_run_every_statement_of_the_store(queue, database_url):
    done = set[str]()
    with session(queue, database_url, "outlive_worker") as worker:

        def run(*statements: Statement[Any]) -> Any:
            done.update(statement.name for statement in statements)
            return [worker.run(statement) for statement in statements][-1]

        run(store.register_tasks([limits(max_crashes=1)]))
        batch = [request(dedupe_key=f"key {n}") for n in range(8)]
        run(store.enqueue(batch, max_args_bytes=100))
        run(store.enqueue([request(dedupe_key="key 7", on_conflict="replace")], max_args_bytes=100, notify=True))
        run(store.enqueue([request(queue="plain")], max_args_bytes=100), store.sleep(WORKER))
        run(store.unsourced_lanes(["work"]), store.wake(WORKER), store.sourced_lanes(["work"]))
        run(store.locked_ends(WORKER, [1]), store.tokens_of(WORKER), store.arguments(1, 0))
        tokens = [one.token for one in run(store.end_and_claim(WORKER, [], [lane()], limit=6)).claimed]
        fill_a_batch(run)
        run(store.renew(WORKER, tokens), store.held_attempts(WORKER), store.cancels(WORKER))
        assert run(store.inputs(tokens[0], 0, 0)) == []
        run(store.write_progress(WORKER, [Progress(tokens[0], 1.0, 2.0, "half")]))
        run(store.kept_by_jobs([one.id for one in batch]), store.steps_of(batch[0].id), store.kept_steps(tokens[0], ""))
        run(store.blocks_itself(tokens[0]))
        wait_and_go_on(run)
        run(store.keep_steps(WORKER, tokens[:1], [KeptStep("charge", b"1", None, 0.1)]))
        said: dict[str, Any] = {"name": "n", "hostname": "h", "pid": 1, "version": "v", "queues": None, "slots": 1}
        run(store.register_worker(WORKER, **said), store.hold_liveness_lock(WORKER, 7), store.absent())
        run(store.tick(WORKER, ["work"], None, watching=False, alerts=True))
        run(
            store.take_seat(WORKER, term_s=3, anyway=True), store.keep_seat(WORKER, term_s=3), store.leave_crowd(WORKER)
        )
        run(store.note_missed([WORKER], for_s=10), store.heartbeat(WORKER, "active"), store.give_up_silent())
        run(store.slowest(30.0), store.untold_deaths(within_s=60, batch=9), store.try_lock("sweep"), store.place())
        run(store.unlock("sweep"), store.clock(), store.list_workers(), store.convict(WORKER, tokens))
        run(store.suspects_wait(["work"], None, after_s=60))
        ways = [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CRASHED, Outcome.CANCELLED, Outcome.RELEASED]
        ends = [Ended(token, way, final=way is Outcome.FAILED) for token, way in zip(tokens, ways, strict=False)]
        run(store.mark_begun(WORKER, tokens))
        assert run(store.end_and_claim(WORKER, ends)).refused == []
        run(store.add_evidence(WORKER, ends[0]), store.ended(tokens), store.next_tries(tokens))
        run(store.lost_runs(tokens), store.expire(), store.quarantine_killers(), store.admit_due())
        run(store.check_late_ends(), store.end_time_alone(WORKER, 1), store.claim_suspect(WORKER, tasks=["work"]))
        run(store.make_room(WORKER, for_s=60), store.end_room(WORKER))
        run(store.crashing_tasks(jobs=1, within_s=600))
        worker.execute("select pg_advisory_unlock_all()")
        assert len(run(store.declare_dead({WORKER: 7}))) == 1
        assert len(run(store.reap())) == 1
        run(store.register_worker(new_worker(), **said, formerly=WORKER), store.stop_worker(WORKER))
        call_a_source(run)
        fire_a_schedule(run)
        ids = [one.id for one in batch]
        (ended,) = worker.values("select job_id from outlive.attempts where outcome = 'crashed'")
        run(store.supply(ended, "label", b"1", "anna", replacing=True), store.rerun(ended, "label"))
        run(store.retry(ids), store.repeat(ids), store.release(ids), store.block(ids, "why"), store.cancel(ids))
        run(store.pause_queue("default"), store.resume_queue("default"), store.statuses(ids), store.outcomes(ids))
        run(store.job_progress(ids[0]), store.job_infos(ids))
        run(store.unfinished(ids), store.job(ids[0]), store.list_attempts(ids[0]))
        found = run(store.find_jobs(store.JobFilter(), limit=10))
        run(store.list_jobs(found.ids), store.list_killers(), store.untold_killers(), store.list_stuck())
        run(store.list_queues(), store.queues_with_rates(), store.source_limits("shop"))
        run(
            store.list_lanes(limit=10),
            store.list_tasks(),
            store.task("work"),
            store.signature("work"),
            store.queue_info("mail"),
            store.count_jobs(),
            store.rates(),
            store.latencies(),
        )
        run(
            store.count_stuck(),
            store.count_unmet(),
            store.list_steps(UUID(int=7), limit=10),
            store.step(UUID(int=7), "charge"),
        )
        run(
            store.linked_jobs(UUID(int=7), limit=10), store.longest_jobs(ids, limit=1), store.group_errors(ids, limit=1)
        )
        run(store.group_killers(), store.list_running(), store.ends_by_step(steps=2, step_s=60))
        run(store.times_by_step(steps=2, step_s=60), store.health(), store.job_health(), store.metrics())
        run(
            store.write_some(),
            store.schema_version(1),
            store.with_prefix("jobs", "0"),
            store.with_prefix("batches", "0"),
        )
        run(store.verify_jobs(UUID(int=0), batch=10), store.verify_keys(), store.verify_batches())
        run(store.follow_late_ends(), store.requeue_missed())
        run(store.take_back(WORKER, [1]), store.act("retry", ids, who="anna", entry=new_worker()), store.list_audit())
        run(store.write_audit(new_worker(), who="anna", action="pause queue", what={"queue": "slow"}))
        run(store.add_dashboard_token("anna", role="viewer", hash=b"hash"), store.dashboard_people())
        run(store.list_dashboard_tokens(), store.remove_dashboard_token("anna"), store.prune_audit(keep_s=0))
        run(
            store.drain_workers("n"),
            store.set_worker("n", {"slots": 2, "queues": ["a"]}),
            store.reload_workers("n"),
            store.tell_tasks(WORKER, ["work"]),
            store.rival_tasks("shop:app", ["work"], ["shop.work()"]),
            store.rival_sources("shop:app", [SourceLimits("shop")]),
            store.taken_over_tasks("shop:app", ["work"], ["shop.work()"]),
            store.unserved_lanes(),
            store.limited_roles(),
        )
        run(store.prune_finished(State.SUCCEEDED, keep_s=0), store.prune_workers(keep_s=0), store.prune_jobs(ids))
        run(store.prune_crashes(keep_s=0), store.watch(ids[0]), store.watched(WORKER), store.write_output(WORKER, []))
        run(store.prune_watched(), store.await_jobs(ids), store.awaited_ends(ids), store.prune_awaited())
        run(store.prune_expired(), store.cancel_expired(), store.prune_unused(keep_s=0), store.remove_source("none"))
        run(store.job_health(), store.write_some(), store.lock_holders())
        migrate.check(worker)
    assert done == texts().keys()


def job_of_the_client() -> None: ...


@pytest.mark.parametrize("role", ["outlive_enqueue", "outlive_worker"])
def test_a_client_needs_no_more_than_the_right_to_enqueue(queue, database_url, role):
    with login(queue, role) as name:
        app = App(make_conninfo(database_url, user=name))
        task = app.task(job_of_the_client)
        try:
            first = task.using(dedupe_key="key").enqueue()
            second = task.using(dedupe_key="key", on_conflict="replace").enqueue()
            with app.batch("import", on_done=task.job()) as batch:
                many = app.enqueue_many([task.using(batch=batch, source=f"shop-{n}").job() for n in range(3)])
            many += [task.using(concurrency_key="customer-7").enqueue() for _ in range(2)]
            dependent = task.using(after=[first, *many], on_failure="proceed").enqueue()
        finally:
            app.connections.close()
    assert [queue.state_of(job.id) for job in (first, second, *many)] == [State.CANCELLED] + [State.PENDING] * 6
    assert queue.state_of(dependent.id) is State.BLOCKED
    queue.follow()
    assert queue.value("select count(*) from outlive.keyed_jobs where state = 'admitted'") == 1


def test_a_job_can_complete_its_own_attempt_and_nothing_else(queue, database_url):
    queue.register_worker()
    job = queue.make(dedupe_key="key")
    neighbour = queue.make()
    (claimed, other) = sorted(queue.claim(), key=lambda one: one.id != job)
    derived = "select outlive.attempt_secret(secret, %s) from outlive.workers"
    secret = queue.value(derived, claimed.token)
    with session(queue, database_url, "outlive_job") as child:
        for token, said in ((other.token, secret), (claimed.token, str(WORKER)), (claimed.token, "")):
            with pytest.raises(psycopg.Error, match="is not this job's"):
                child.execute("select outlive.complete(%s, %s)", [token, said])
        for query in (
            "select outlive.cancel(array[%s]::uuid[])",
            f"select outlive.complete_with_records({other.token}, %s)",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                child.execute(query.encode(), [WORKER])
        child.execute("select outlive.complete(%s, %s, '3')", [claimed.token, secret])
    assert (queue.state_of(job), queue.state_of(neighbour)) == (State.SUCCEEDED, State.RUNNING)
    assert queue.value("select count(*) from outlive.dedupe_keys") == 0


def test_without_roles_the_schema_belongs_to_the_role_that_migrates(queue, empty_database_url):
    """The role that migrates can't give the schema away, even where the roles exist for another database."""
    with login(queue, "pg_monitor") as name:
        database = psycopg.conninfo.conninfo_to_dict(empty_database_url)["dbname"]
        queue.execute(sql.SQL("alter database {} owner to {}").format(*map(sql.Identifier, (str(database), name))))
        with Queue.at(make_conninfo(empty_database_url, user=name)) as theirs:
            assert migrate.migrate(theirs) == (0, migrate.VERSION)
            assert migrate.migrate(theirs) == (migrate.VERSION, migrate.VERSION)
            job = theirs.make()
            assert theirs.state_of(job) is State.PENDING
        with psycopg.connect(empty_database_url) as admin:
            admin.execute(sql.SQL("reassign owned by {} to current_user").format(sql.Identifier(name)))


def test_a_schema_made_again_by_a_migration_is_open_to_the_same_roles(queue):
    def rights() -> list[str]:
        relations = "select format('%s %s %s', oid::regclass, relowner::regrole, relacl) from pg_class"
        functions = "select format('%s %s %s', oid::regprocedure, proowner::regrole, proacl) from pg_proc"
        ours = " where {}namespace = 'outlive'::regnamespace and {}name !~ '_(pkey|key|seq)$'"
        return sorted(
            queue.values(relations + ours.replace("{}", "rel")) + queue.values(functions + ours.replace("{}", "pro"))
        )

    before = rights()
    queue.execute("drop schema outlive cascade")
    assert migrate.migrate(queue, roles=True) == (0, migrate.VERSION)
    assert rights() == before
