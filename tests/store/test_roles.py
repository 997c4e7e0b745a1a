"""Roles: each can do its work, and is refused everything else."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from outlive import App, db, migrate, store
from outlive.db import Statement
from outlive.model import Ended, Schedule, SourceLimits
from outlive.protocol import Progress
from outlive.sql import functions, texts
from outlive.states import Outcome, State
from tests.driving.databases import login, new_database, session
from tests.driving.making import (
    WORKER,
    claim,
    enqueue,
    follow,
    lane,
    limits,
    make,
    new_worker,
    register_worker,
    request,
    state_of,
    value,
    values,
)

ROLES = ("outlive_worker", "outlive_enqueue", "outlive_viewer", "outlive_job", "outlive_protocol")
VIEWS = (
    "job_states",
    "recent_jobs",
    "stuck_jobs",
    "killers",
    "worker_states",
    "queue_states",
    "source_health",
    "schedule_states",
    "batch_states",
    "metrics",
)
VIEWS_OF_STATEMENTS = ("ended_attempts", "open_queues", "missing_locks")
TABLES = {
    "schema_version": "version",
    "jobs": "id",
    "waiting": "id",
    "running": "id",
    "held": "id",
    "attempts": "job_id",
    "crashes": "token",
    "dedupe_keys": "id",
    "workers": "id",
    "liveness": "worker",
    "sleepers": "worker",
    "awaited": "job_id",
    "watched": "job_id",
    "tasks": "name",
    "queues": "name",
    "sources": "name",
    "requests": "source",
    "records": "scope",
    "progress": "job_id",
    "schedules": "name",
    "dependencies": "needs",
    "batches": "id",
    "callbacks": "batch",
    "keyed_jobs": "job_id",
    "key_turns": "keys",
    "key_locks": "bucket",
    "end_checks": "needed",
    "audit": "who",
    "dashboard_tokens": "hash",
}
"""Each with one of its columns."""
WRITES = (
    "insert into outlive.TABLE default values",
    "update outlive.TABLE set COLUMN = COLUMN where false",
    "delete from outlive.TABLE where false",
)
NO_ID = "00000000-0000-4000-8000-000000000000"

STATEMENTS = re.findall(r"function outlive\.statement_(\w+)", functions())
"""The statements that are functions too, for the protocol."""
PROTOCOL = {"register", "claim", "renew", "inputs_of", "succeed", "fail", "goodbye"}

# Every function of the schema, called so that an allowed call does nothing or little.
CALLS = {
    "now": "select outlive.now()",
    "policy_of": f"select outlive.policy_of('{NO_ID}', 'work')",
    "verdict": "select outlive.verdict(null, 'succeeded', false, false, null, 0)",
    "times": "select outlive.times(1)",
    "charge": "select outlive.charge(3, 0, 3)",
    "charged": "select outlive.charged(r) from outlive.running r where false",
    "alone_s": f"select outlive.alone_s('{NO_ID}')",
    "lost_so_far": "select outlive.lost_so_far(null)",
    "loss_charge": "select outlive.loss_charge(1, 0, 0, 3)",
    "suspicion": "select outlive.suspicion(2, 3)",
    "end_attempts": f"select outlive.end_attempts('{NO_ID}', '{{1}}')",
    "claim_lanes": f"select outlive.claim_lanes('{NO_ID}', '{{}}', '{{}}', '{{}}', '{{}}', null, null, 1, 1, true)",
    "settle": "select outlive.settle(r, 'succeeded') from outlive.running r where false",
    "watch": f"select outlive.watch('{NO_ID}')",
    "silent_workers": "select outlive.silent_workers()",
    "tell_waiters": "select outlive.tell_waiters('{}', '{}')",
    "expiry": "select outlive.expiry('work')",
    "follow_up": "select outlive.follow_up('{}', '{}')",
    "follow_through": "select outlive.follow_through('{}', '{}')",
    "sees_all": "select outlive.sees_all()",
    "open_batch": "select outlive.open_batch('import')",
    "close_batch": f"select outlive.close_batch('{NO_ID}')",
    "cancel_batch": f"select outlive.cancel_batch('{NO_ID}')",
    "add_to_batch": f"select outlive.add_to_batch('{NO_ID}', 1)",
    "is_done": "select outlive.is_done(null)",
    "call_back": "select outlive.call_back(b) from outlive.batches b where false",
    "batches_of": "select outlive.batches_of('{}')",
    "count_in_batches": "select outlive.count_in_batches('{}', '{}')",
    "uncount_in_batches": "select outlive.uncount_in_batches('{}', 'failed')",
    "forget_in_batches": "select outlive.forget_in_batches('{}')",
    "spawn": "select outlive.spawn('[]')",
    "park_keyed": "select outlive.park_keyed('{}')",
    "follow_keys": "select outlive.follow_keys('{}', '{}', true)",
    "requeue_keyed": "select outlive.requeue_keyed('{}')",
    "key_bucket": "select outlive.key_bucket('customer-7')",
    "lock_keys": "select outlive.lock_keys('{}')",
    "admit": "select outlive.admit('{}')",
    "queue_keyed": "select outlive.queue_keyed('{}')",
    "pause_queue": "select outlive.pause_queue('default')",
    "resume_queue": "select outlive.resume_queue('default')",
    "requeue_queue": "select outlive.requeue_queue('default')",
    "leave_ends": "select outlive.leave_ends('{}')",
    "leave_turns": "select outlive.leave_turns('{}')",
    "take_slot": f"select outlive.take_slot('{NO_ID}')",
    "admit_due": "select outlive.admit_due(1)",
    "take_unclaimed": f"select outlive.take_unclaimed('{NO_ID}')",
    "caught": "select outlive.caught(w) from outlive.waiting w where false",
    "fingerprint": "select outlive.fingerprint('work', '{}')",
    "uuid7": "select outlive.uuid7()",
    "wake": "select outlive.wake()",
    "end_lost": "select outlive.end_lost('{}')",
    "end_lost_together": "select outlive.end_lost_together('{}')",
    "finished": "select from outlive.finished()",
    "finish_unclaimed": "select outlive.finish_unclaimed('{}', '{}', '{}', '{}', '{}')",
    "held_state": "select outlive.held_state('dependent', false)",
    "check_links": "select outlive.check_links('{}')",
    "depend": "select outlive.depend('{}', '{}')",
    "many_dependents": "select outlive.many_dependents()",
    "take_along": "select outlive.take_along('{}', '{}', '{}')",
    "span": "select outlive.span('{}')",
    "unmet_because": f"select outlive.unmet_because('{NO_ID}', 'failed')",
    "release_dependents": "select outlive.release_dependents('{}', '{}')",
    "heed_ends": "select outlive.heed_ends('{}', '{}', '{}')",
    "lock_dependents": "select outlive.lock_dependents('{}', '{}')",
    "find_ended": "select outlive.find_ended('{}')",
    "check_late_ends": "select outlive.check_late_ends(1)",
    "follow_late_ends": "select outlive.follow_late_ends(1)",
    "note_trouble": "select outlive.note_trouble('{}', '55P03', '')",
    "inputs": "select outlive.inputs(1, 0, 0)",
    "state_of": f"select outlive.state_of('{NO_ID}')",
    "cancel": f"select outlive.cancel('{{{NO_ID}}}')",
    "retry": f"select outlive.retry('{{{NO_ID}}}')",
    "release": f"select outlive.release('{{{NO_ID}}}')",
    "block": f"select outlive.block('{{{NO_ID}}}', 'why')",
    "take_back": f"select outlive.take_back('{NO_ID}')",
    "take_back_losses": "select outlive.take_back_losses('{1}')",
    "prune": f"select outlive.prune('{{{NO_ID}}}')",
    "find_jobs": "select outlive.find_jobs('jobs', now(), null, 1, 1, true, " + ", ".join(["null"] * 9) + ")",
    "act": f"select outlive.act('retry', '{{{NO_ID}}}', 'anna', '{{}}', '{NO_ID}')",
    "write_audit": f"select outlive.write_audit('{NO_ID}', 'anna', 'retry', '{{}}', 1)",
    "enqueue": "select outlive.enqueue('work', dedupe_key => 'key', on_conflict => 'replace')",
    "enqueue_plain": f"select outlive.enqueue_plain('work', '{{}}', null, 'shop', null, '{NO_ID}')",
    "replace": f"select outlive.replace('{NO_ID}', '{NO_ID}')",
    "complete_with_records": f"select outlive.complete_with_records(0, '{NO_ID}')",
    "attempt_secret": f"select outlive.attempt_secret('{NO_ID}', 1)",
    "complete": "select outlive.complete(0, 'secret')",
    "keep_records": "select outlive.keep_records(r, '[]') from outlive.running r where false",
    "know_sources": "select outlive.know_sources('{shop}', '{work}')",
    "set_limits": "select outlive.set_limits('[]')",
    "take_keys": "select outlive.take_keys(null, null, null, null)",
    "carried": "select outlive.carried('[]')",
    "admits": "select outlive.admits(s, null, false) from outlive.sources s where false",
    "admits_one": "select outlive.admits_one('shop')",
    "full_by": "select outlive.full_by(60, 1)",
    "spend": "select outlive.spend(s, 1, null) from outlive.sources s where false",
    "claim_sourced": f"select outlive.claim_sourced('{NO_ID}', '{{}}', '{{}}', '{{}}', '{{}}', 1, 1)",
    "ask_source": "select outlive.ask_source('shop', null)",
    "count_lanes": "select outlive.count_lanes()",
    "count_jobs": "select outlive.count_jobs()",
    "count_finished": "select outlive.count_finished()",
    "end_rates": "select outlive.end_rates()",
    "count_outcomes": "select outlive.count_outcomes('{shop}', '{1}', '{true}')",
    "schedule_changed": "select outlive.schedule_changed()",
    "changed": "select outlive.changed(null)",
    "kept": "select outlive.kept(1, 2, 3)",
    "declare_schedules": "select outlive.declare_schedules('[]', 'shop:app')",
    "declared_by_living": "select outlive.declared_by_living(s) from outlive.schedules s where false",
    "check_schedules": "select outlive.check_schedules()",
    "tick_hash": "select outlive.tick_hash('report', now())",
    "tick_id": "select outlive.tick_id('report', now())",
    "fire": "select outlive.fire('report', null, now(), '{}', null)",
    "the_schedule": "select outlive.the_schedule('report')",
    "pause_schedule": "select outlive.pause_schedule('report')",
    "resume_schedule": "select outlive.resume_schedule('report')",
    "run_schedule": "select outlive.run_schedule('report')",
    "reset_schedule": "select outlive.reset_schedule('report')",
    "remove_schedule": "select outlive.remove_schedule('report')",
    "refuse_stale": "select outlive.refuse_stale(1)",
    "refuse_unless": "select outlive.refuse_unless(true, 'why')",
    "refuse_unreadable": "select outlive.refuse_unreadable('it', '1')",
    "beat": f"select outlive.beat('{NO_ID}', false)",
    "holds_lock": "select outlive.holds_lock(null)",
    "makes_room": "select outlive.makes_room(null)",
    "claim_from": "select outlive.claim_from(k, 1, 300, true) from outlive.workers k where false",
    "register": "select outlive.register('node', '{work}')",
    "claim": f"select outlive.claim('{NO_ID}')",
    "renew": f"select outlive.renew('{NO_ID}')",
    "inputs_of": f"select outlive.inputs_of('{NO_ID}', 1)",
    "succeed": f"select outlive.succeed('{NO_ID}', 1)",
    "fail": f"select outlive.fail('{NO_ID}', 1)",
    "goodbye": f"select outlive.goodbye('{NO_ID}')",
    **{f"statement_{name}": f"select outlive.statement_{name}()" for name in STATEMENTS},
}
VIEWING = {
    *("now", "fingerprint", "held_state", "count_lanes", "count_jobs", "count_finished", "end_rates", "changed"),
    *("watch", "silent_workers"),
}
ENQUEUING = {"enqueue", "enqueue_plain", "open_batch", "close_batch"}
OWN = {
    "outlive_enqueue": ENQUEUING,
    "outlive_viewer": VIEWING,
    "outlive_job": {"complete"},
    "outlive_protocol": PROTOCOL,
}
"""The functions that a role may call. A viewer calls them through the views."""
CHANGES = (
    "create table outlive.mine (id int)",
    "create function outlive.mine() returns int language sql return 1",
    "create or replace function outlive.wake() returns void language sql return null",
    "alter table outlive.jobs add column mine int",
    "alter function outlive.now() owner to current_user",
    "drop table outlive.progress",
    "drop view outlive.killers",
    "truncate outlive.jobs",
    "truncate outlive.attempts",
    "create index on outlive.jobs (created_at)",
    "create trigger mine before update on outlive.jobs execute function suppress_redundant_updates_trigger()",
    "select nextval('outlive.running_token_seq'), setval('outlive.running_token_seq', 1)",
    "drop schema outlive cascade",
)


def expectations() -> Iterator[tuple[str, str, bool]]:
    """(role, SQL, allowed?) for every table, view and function, and for changes of the schema itself."""
    for role in ROLES:
        worker = role == "outlive_worker"
        for table, column in TABLES.items():
            seen = table == "schema_version" or (table, role) == ("audit", "outlive_viewer")
            yield role, f"table outlive.{table}", worker or seen
            for write in WRITES:
                write = write.replace("TABLE", table).replace("COLUMN", column)
                yield role, write, worker and table != "schema_version"
        for view in VIEWS:
            yield role, f"table outlive.{view}", role in ("outlive_worker", "outlive_viewer")
        for view in VIEWS_OF_STATEMENTS:
            yield role, f"table outlive.{view}", worker
        for name, call in CALLS.items():
            yield role, call, worker or name in OWN.get(role, ())
        for change in CHANGES:
            yield role, change, False


@pytest.fixture(scope="module")
def shared(server_url: str) -> Iterator[db.Connection]:
    """A database for all the questions. Everything that a role does here is rolled back."""
    with new_database(server_url) as url, db.connect(url) as connection:
        yield connection


@contextmanager
def acting_as(connection: psycopg.Connection[Any], role: str) -> Iterator[None]:
    connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    yield
    connection.execute("reset role")


def is_allowed(connection: db.Connection, role: str, statement: str) -> bool:
    with connection.transaction(force_rollback=True), acting_as(connection, role):
        try:
            with connection.transaction():
                connection.execute(statement.encode())
        except errors.InsufficientPrivilege:
            return False
        except (errors.NotNullViolation, errors.UniqueViolation, errors.InternalError_, errors.FeatureNotSupported):
            return True  # It was let in; that what it wanted makes no sense is another matter.
        except psycopg.Error as error:
            if error.sqlstate not in ("OL002", "OL003", "OL006"):
                raise
    return True


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_allowed_what_it_needs_and_refused_the_rest(shared: db.Connection, role: str) -> None:
    mistakes = [
        f"{statement}: {'refused' if allowed else 'allowed'}"
        for who, statement, allowed in expectations()
        if who == role and is_allowed(shared, who, statement) != allowed
    ]
    assert mistakes == []


def test_every_table_view_and_function_is_asked_about(shared: db.Connection) -> None:
    relations = "select relname from pg_class where relnamespace = 'outlive'::regnamespace and relkind = "
    assert set(values(shared, relations + "'r'")) == TABLES.keys()
    assert set(values(shared, relations + "'v'")) == {*VIEWS, *VIEWS_OF_STATEMENTS}
    names = "select proname from pg_proc where pronamespace = 'outlive'::regnamespace"
    assert set(values(shared, names)) == CALLS.keys()


def test_an_unrelated_role_may_do_nothing(shared: db.Connection) -> None:
    asked = [statement for role, statement, _ in expectations() if role == "outlive_worker"]
    with shared.transaction(force_rollback=True):
        shared.execute("create role unrelated nologin")
        assert [one for one in asked if is_allowed(shared, "unrelated", one)] == []


def test_no_role_can_log_in_or_more_than_that(shared: db.Connection) -> None:
    ours = "select rolname from pg_roles where rolname like 'outlive%'"
    powers = " and (rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)"
    assert values(shared, ours + powers) == []
    assert set(values(shared, ours)) == {"outlive_owner", *ROLES}


def test_everything_belongs_to_the_owner(shared: db.Connection) -> None:
    owners = (
        "select relowner::regrole::text from pg_class where relnamespace = 'outlive'::regnamespace"
        " union select proowner::regrole::text from pg_proc where pronamespace = 'outlive'::regnamespace"
        " union select nspowner::regrole::text from pg_namespace where nspname = 'outlive'"
    )
    assert values(shared, owners) == ["outlive_owner"]


def test_the_owner_can_change_the_schema_and_migrate(shared: db.Connection) -> None:
    migrate.migrate(shared, roles=True)  # A database's own rights are not cloned with it.
    with shared.transaction(force_rollback=True), acting_as(shared, "outlive_owner"):
        shared.execute("alter table outlive.jobs add column mine int")
        shared.execute("drop schema outlive cascade")
        assert migrate.migrate(shared) == (0, migrate.VERSION)
        assert migrate.migrate(shared, roles=True) == (migrate.VERSION, migrate.VERSION)


def test_the_functions_that_lend_their_owners_rights_look_in_no_other_schema(shared: db.Connection) -> None:
    lent = "select proname, proconfig from pg_proc where pronamespace = 'outlive'::regnamespace and prosecdef"
    found = {(name, settings[0]) for name, settings in shared.execute(lent.encode()).fetchall()}
    lenders = (
        *("enqueue", "enqueue_plain", "open_batch", "close_batch", "complete"),
        *("count_lanes", "count_jobs", "count_finished", "end_rates", "watch", "silent_workers"),
        *PROTOCOL,
    )
    assert found == {(name, "search_path=pg_catalog, pg_temp") for name in lenders}


def call_a_source(run: Callable[[Statement[Any]], Any]) -> None:
    """Use a source as a worker does, from its declaration to the records of its job."""
    other = new_worker()
    run(store.register_sources([SourceLimits("shop", rate_limit_per_minute=60, burst=5, max_concurrency=5)]))
    (
        run(store.spread_limits(["work"])),
        run(store.set_source("shop", {"burst": 3})),
        run(store.pause_source("shop")),
        run(store.resume_source("shop")),
    )
    run(store.enqueue([request(source="shop")], max_args_bytes=100))
    ((claimed,), _) = msgspec.structs.astuple(run(store.claim_sourced(other, [lane(source="shop")], limit=1)))
    assert run(store.ask_source("shop", claimed.token)).granted
    (
        run(store.count_outcomes([("shop", claimed.token, False)])),
        run(store.breakers()),
        run(store.list_sources(limit=10)),
    )
    found = b'[{"scope": "s", "key": "k", "data": 1, "strength": 1}]'
    asked = msgspec.json.encode([{"id": new_worker(), "task": "next", "args": {}, "source": "bank"}])
    run(store.complete_with_records(other, Ended(claimed.token, Outcome.SUCCEEDED, records=found, spawns=asked)))
    assert len(run(store.list_records(limit=10))) == 1


def fire_a_schedule(run: Callable[[Statement[Any]], Any]) -> None:
    """Use schedules as workers and operators do."""
    run(store.declare_schedules([Schedule(name="report", task="work", args=b"{}", every_s=60.0)], "shop:app"))
    run(store.check_schedules()), run(store.orphaned_schedules(WORKER)), run(store.prune_schedules(keep_s=0))
    (due,) = run(store.due_schedules()).due
    run(store.note_trouble(due, "why"))
    assert run(store.fire(due, [due.changed_at], None)).jobs == 1
    run(store.add_schedule("by hand", {"task": "work", "every_s": 60}))
    run(store.set_schedule("by hand", {"every_s": 30}))
    (
        run(store.pause_schedule("report")),
        run(store.resume_schedule("report")),
        run(store.run_schedule("report")),
        run(store.reset_schedule("report")),
        run(store.remove_schedule("report")),
    )
    assert [row["name"] for row in run(store.list_schedules())] == ["by hand"]


def fill_a_batch(run: Callable[[Statement[Any]], Any]) -> None:
    """Use a batch as clients, workers and operators do."""
    batch = run(store.open_batch(new_worker(), "import", on_done=request()))
    links = msgspec.json.encode({"batch": batch})
    run(store.enqueue([request("import", links=links) for _ in range(3)], max_args_bytes=100))
    (first, second) = run(store.end_and_claim(WORKER, [], [lane("import")], limit=2)).claimed
    assert run(store.batch_of(first.token)) == [batch]
    assert run(store.end_and_claim(WORKER, [Ended(first.token)])).stale == []
    run(store.close_batch(batch, cancelling=True)), run(store.cancel_batch(batch))
    assert (run(store.batch_counts(batch)).left, run(store.batch_done(batch))) == (1, False)
    assert run(store.end_and_claim(WORKER, [Ended(second.token)])).stale == []
    assert run(store.batch(batch)) == run(store.list_batches())
    run(store.prune_batches(keep_s=0))


def test_a_worker_can_run_every_statement_of_the_store(connection: db.Connection, database_url: str) -> None:
    done = set[str]()
    with session(connection, database_url, "outlive_worker") as worker:

        def run(statement: Statement[Any]) -> Any:
            done.add(statement.name)
            return db.run(worker, statement)

        run(store.register_tasks([limits(max_crashes=1)]))
        batch = [request(dedupe_key=f"key {n}") for n in range(8)]
        run(store.enqueue(batch, max_args_bytes=100))
        run(store.enqueue([request(dedupe_key="key 7", on_conflict="replace")], max_args_bytes=100, notify=True))
        run(store.enqueue([request(queue="plain")], max_args_bytes=100))
        run(store.sleep(WORKER)), run(store.unsourced_lanes(["work"])), run(store.wake(WORKER))
        (
            run(store.sourced_lanes(["work"])),
            run(store.locked_ends(WORKER, [1])),
            run(store.tokens_of(WORKER)),
            run(store.arguments(1, 0)),
        )
        tokens = [one.token for one in run(store.end_and_claim(WORKER, [], [lane()], limit=6)).claimed]
        fill_a_batch(run)
        run(store.renew(WORKER, tokens)), run(store.held_attempts(WORKER)), run(store.cancels(WORKER))
        assert run(store.inputs(tokens[0], 0, 0)) == []
        run(store.write_progress(WORKER, [Progress(tokens[0], 1.0, 2.0, "half", b"[1]")]))
        run(store.checkpoints([one.id for one in batch]))
        said: dict[str, Any] = {"name": "n", "hostname": "h", "pid": 1, "version": "v", "queues": None, "slots": 1}
        run(store.register_worker(WORKER, **said)), run(store.show_life(WORKER, 7)), run(store.absent(WORKER))
        run(store.note_missed([WORKER], for_s=10))
        run(store.heartbeat(WORKER, "active")), run(store.give_up_silent()), run(store.slowest(30.0))
        run(store.untold_deaths(within_s=60, batch=9))
        (
            run(store.try_lock("sweep")),
            run(store.unlock("sweep")),
            run(store.clock()),
            run(store.uptime()),
            run(store.list_workers()),
        )
        run(store.convict(WORKER, tokens)), run(store.suspects_wait(["work"], None, after_s=60))
        ways = [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CRASHED, Outcome.CANCELLED, Outcome.RELEASED]
        ends = [Ended(token, way, final=way is Outcome.FAILED) for token, way in zip(tokens, ways, strict=False)]
        run(store.mark_begun(WORKER, tokens))
        assert run(store.end_and_claim(WORKER, ends)).stale == []
        run(store.add_evidence(WORKER, ends[0]))
        (
            run(store.ended(tokens)),
            run(store.next_tries(tokens)),
            run(store.lost_runs(tokens)),
            run(store.expire()),
            run(store.quarantine_killers()),
            run(store.admit_due()),
            run(store.check_late_ends()),
            run(store.let_others_in(WORKER, 1)),
        )
        run(store.claim_suspect(WORKER, tasks=["work"])), run(store.crashing_tasks(jobs=1, within_s=600))
        worker.execute("select pg_advisory_unlock_all()")
        assert len(run(store.declare_dead({WORKER: 7}))) == 1
        assert len(run(store.reap())) == 1
        run(store.register_worker(new_worker(), **said, formerly=WORKER)), run(store.stop_worker(WORKER))
        call_a_source(run)
        fire_a_schedule(run)
        ids = [one.id for one in batch]
        run(store.retry(ids)), run(store.release(ids)), run(store.block(ids, "why")), run(store.cancel(ids))
        run(store.pause_queue("default")), run(store.resume_queue("default"))
        (
            run(store.statuses(ids)),
            run(store.outcomes(ids)),
            run(store.unserved_tasks(ids)),
            run(store.job(ids[0])),
            run(store.list_attempts(ids[0])),
        )
        found = run(store.find_jobs(store.JobFilter(), limit=10))
        run(store.list_jobs(found.ids)), run(store.list_killers()), run(store.untold_killers()), run(store.list_stuck())
        (
            run(store.list_queues()),
            run(store.list_lanes(limit=10)),
            run(store.stats()),
            run(store.rates()),
            run(store.latencies()),
        )
        (
            run(store.group_killers()),
            run(store.list_running()),
            run(store.ends_by_minute(minutes=2)),
            run(store.times_by_minute(minutes=2)),
        )
        (
            run(store.health()),
            run(store.metrics()),
            run(store.with_prefix("jobs", "0")),
            run(store.with_prefix("batches", "0")),
        )
        run(store.follow_late_ends()), run(store.requeue_missed()), run(store.take_back(WORKER, [1]))
        run(store.act("retry", ids, who="anna", entry=new_worker())), run(store.list_audit())
        run(store.write_audit(new_worker(), who="anna", action="pause queue", what={"queue": "slow"}))
        run(store.add_dashboard_token("anna", role="viewer", hash=b"hash")), run(store.dashboard_people())
        run(store.list_dashboard_tokens()), run(store.remove_dashboard_token("anna"))
        run(store.prune_audit(keep_s=0)), run(store.drain_workers("n")), run(store.tell_tasks(WORKER, ["work"]))
        run(store.prune_finished(State.SUCCEEDED, keep_s=0)), run(store.prune_workers(keep_s=0))
        run(store.prune_jobs(ids)), run(store.prune_crashes(keep_s=0))
        (
            run(store.watch(ids[0])),
            run(store.watched(WORKER)),
            run(store.write_output(WORKER, [])),
            run(store.prune_watched()),
        )
        run(store.await_jobs(ids)), run(store.awaited_ends(ids)), run(store.prune_awaited()), run(store.prune_expired())
        migrate.check(worker)
    assert done == texts().keys()


def job_of_the_client() -> None: ...


@pytest.mark.parametrize("role", ["outlive_enqueue", "outlive_worker"])
def test_a_client_needs_no_more_than_the_right_to_enqueue(
    connection: db.Connection, database_url: str, role: str
) -> None:
    with login(connection, role) as name:
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
    assert [state_of(connection, job.id) for job in (first, second, *many)] == [State.CANCELLED] + [State.PENDING] * 6
    assert state_of(connection, dependent.id) is State.BLOCKED
    follow(connection)
    assert value(connection, "select count(*) from outlive.keyed_jobs where state = 'admitted'") == 1


def test_an_enqueuer_can_enqueue_in_its_own_transaction_and_look_at_nothing(
    connection: db.Connection, database_url: str
) -> None:
    with session(connection, database_url, "outlive_enqueue") as client:
        with client.transaction():
            enqueue(client, [request(), request(dedupe_key="key")], notify=True)
        with pytest.raises(errors.InsufficientPrivilege):
            db.run(client, store.stats())
    assert value(connection, "select count(*) from outlive.waiting") == 2


def test_a_viewer_reads_views_over_tables_that_it_may_not_touch(connection: db.Connection, database_url: str) -> None:
    job = make(connection)
    claim(connection)
    with session(connection, database_url, "outlive_viewer") as viewer:
        seen = viewer.execute("select id, status from outlive.job_states").fetchall()
        with pytest.raises(errors.InsufficientPrivilege):
            viewer.execute("update outlive.worker_states set name = 'dead'")
    assert seen == [(job, "running")]


def test_a_job_can_complete_its_own_attempt_and_nothing_else(connection: db.Connection, database_url: str) -> None:
    register_worker(connection)
    job = make(connection, dedupe_key="key")
    neighbour = make(connection)
    (claimed, other) = sorted(claim(connection), key=lambda one: one.id != job)
    derived = "select outlive.attempt_secret(secret, %s) from outlive.workers"
    secret = value(connection, derived, claimed.token)
    with session(connection, database_url, "outlive_job") as child:
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
    assert (state_of(connection, job), state_of(connection, neighbour)) == (State.SUCCEEDED, State.RUNNING)
    assert value(connection, "select count(*) from outlive.dedupe_keys") == 0


def test_without_roles_the_schema_belongs_to_the_role_that_migrates(
    connection: db.Connection, empty_database_url: str
) -> None:
    """The role that migrates can't give the schema away, even where the roles exist for another database."""
    with login(connection, "pg_monitor") as name:
        database = psycopg.conninfo.conninfo_to_dict(empty_database_url)["dbname"]
        connection.execute(sql.SQL("alter database {} owner to {}").format(*map(sql.Identifier, (str(database), name))))
        with db.connect(make_conninfo(empty_database_url, user=name)) as theirs:
            assert migrate.migrate(theirs) == (0, migrate.VERSION)
            assert migrate.migrate(theirs) == (migrate.VERSION, migrate.VERSION)
            job = make(theirs)
            assert state_of(theirs, job) is State.PENDING
        with psycopg.connect(empty_database_url) as admin:
            admin.execute(sql.SQL("reassign owned by {} to current_user").format(sql.Identifier(name)))


def test_a_schema_made_again_by_a_migration_is_open_to_the_same_roles(connection: db.Connection) -> None:
    def rights() -> list[str]:
        relations = "select format('%s %s %s', oid::regclass, relowner::regrole, relacl) from pg_class"
        functions = "select format('%s %s %s', oid::regprocedure, proowner::regrole, proacl) from pg_proc"
        ours = " where {}namespace = 'outlive'::regnamespace and {}name !~ '_(pkey|key|seq)$'"
        return sorted(
            values(connection, relations + ours.replace("{}", "rel"))
            + values(connection, functions + ours.replace("{}", "pro"))
        )

    before = rights()
    connection.execute("drop schema outlive cascade")
    assert migrate.migrate(connection, roles=True) == (0, migrate.VERSION)
    assert rights() == before
