"""The shape of a database: what it holds, without what may differ between two runs that did the same.

Ids have names, tokens and times are left out. The clock of a scene stands still.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from outlive import db
from outlive.states import State
from outlive_lab.pairs import rules
from outlive_lab.pairs.scenes import NAMES

Shape = tuple[str, ...]

TABLES = (
    *("jobs", "waiting", "running", "held", "attempts", "dedupe_keys", "keyed_jobs", "key_turns", "key_locks"),
    *("dependencies", "end_checks", "batches", "callbacks", "crashes", "expiring", "steps", "signals", "records"),
    *("progress", "sources", "requests", "queues", "schedules", "workers", "tasks", "liveness", "sleepers", "watchers"),
    *("awaited", "watched", "audit"),
)
COUNTED = (("running", "token"), ("key_turns", "id"), ("end_checks", "id"), ("signals", "number"), ("requests", "id"))
_UNTOLD = {"key_locks", "key_turns", "end_checks", "tasks", "sleepers", "watchers", "awaited", "watched", "liveness"}
"""What is left for later is done by then; the rest is not about jobs."""
_VARYING = (
    *("token", "ready_at", "since", "at", "created_at", "started_at", "ended_at", "updated_at", "heartbeat_at"),
    *("last_seen", "died_at", "done_at", "called_at", "closed_at", "cancelled_at", "opened_by", "number", "unsure"),
    *("stop_requested_at", "secret", "fingerprint", "worker_name", "hostname", "error", "details", "peak_memory_bytes"),
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_QUERY = " union all ".join(
    f"select 'row', '{name} ' || (jsonb_strip_nulls(to_jsonb(t)) - '{{{','.join(_VARYING)}}}'::text[])::text"
    f" from outlive.{name} t"
    for name in TABLES
    if name not in _UNTOLD
)
_MOMENTS = """
union all select 'row', 'done ' || id::text || ' ' || (done_at is not null) || (closed_at is not null)
  from outlive.batches
union all select 'row', 'called ' || job::text from outlive.callbacks where called_at is not null
union all select 'row', 'due ' || id::text from outlive.waiting where ready_at <= outlive.now()
"""
_LEFT = """
select 'left', '' where exists (select from outlive.end_checks) or exists (select from outlive.key_turns)
  or exists (select from outlive.queues) or exists (select from outlive.keyed_jobs where state = 'later')
"""
_LOOKS = {"shape": _QUERY + _MOMENTS, "judge": f"{rules.QUERY} union all {rules.STATES}", "left": _LEFT}


def install(connection: db.Connection) -> None:
    """Queries as functions, which keep their plans: to plan them takes longer than to run them."""
    for name, query in _LOOKS.items():
        text = f"create function pairs.{name}() returns table (kind text, said text) language plpgsql as $$"
        connection.execute(f"{text} begin return query {query}; end $$".encode())


def read(connection: db.Connection) -> Shape:
    return tuple(sorted(named(said) for _, said in connection.execute("select * from pairs.shape()").fetchall()))


@dataclass(frozen=True, slots=True)
class Judged:
    broken: list[str]
    states: dict[str, State]


def judge(connection: db.Connection) -> Judged:
    """The rules that don't hold, and the states of all jobs."""
    said = [(kind, named(text)) for kind, text in connection.execute("select * from pairs.judge()").fetchall()]
    pairs = [text.rpartition(" ") for kind, text in said if kind == "state"]
    return Judged([text for kind, text in said if kind == "broken"], {job: State(state) for job, _, state in pairs})


def left_over(connection: db.Connection) -> bool:
    """Whether something may be left for later."""
    return connection.execute("select * from pairs.left()").fetchone() is not None


def named(text: str) -> str:
    """With the names of ids; those that a statement has made up are all alike."""
    return _UUID.sub(lambda found: NAMES.get(UUID(found[0]), "an id"), text)


def difference(found: Shape, expected: Sequence[Shape]) -> list[str]:
    """What differs from the most similar of these."""
    sides = [(sorted(set(found) - set(one)), sorted(set(one) - set(found))) for one in expected]
    more, less = min(sides, key=lambda side: len(side[0]) + len(side[1]))
    return [f"+ {row}" for row in more] + [f"- {row}" for row in less]


def keep(connection: db.Connection, scene: str) -> None:
    """Keep what the database holds now, for `restore`."""
    lines = []
    for name in TABLES:
        kept, columns = f"pairs.{scene}_{name}", _columns(connection, name)
        made = f"create table {kept} as select {columns} from outlive.{name}"
        connection.execute(f"drop table if exists {kept}; {made}".encode())
        lines += [f"delete from outlive.{name};"]
        if connection.execute(f"select 1 from {kept} limit 1".encode()).fetchone():
            lines += [f"insert into outlive.{name} ({columns}) overriding system value table {kept};"]
    lines += [
        f"perform setval(pg_get_serial_sequence('outlive.{name}', '{column}'), 1000);" for name, column in COUNTED
    ]
    head = f"create or replace function pairs.restore_{scene}() returns void language plpgsql"
    connection.execute("\n".join([head, "as $$ begin", *lines, "end $$"]).encode())


def _columns(connection: db.Connection, table: str) -> str:
    """The columns of a table that can be written: Postgres computes the others from them."""
    query = "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute"
    theirs = "attrelid = %s::regclass and attnum > 0 and not attisdropped and attgenerated = ''"
    [[columns]] = connection.execute(f"{query} where {theirs}".encode(), [f"outlive.{table}"]).fetchall()
    return str(columns)


def restore(connection: db.Connection, scene: str) -> None:
    connection.execute(f"select pairs.restore_{scene}()".encode())


def clear(connection: db.Connection) -> None:
    connection.execute("; ".join(f"delete from outlive.{name}" for name in TABLES).encode())
    for name, column in COUNTED:
        connection.execute("select setval(pg_get_serial_sequence(%s, %s), 1)", [f"outlive.{name}", column])
