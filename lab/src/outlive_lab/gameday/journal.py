"""The history of a game: every row that a transaction has changed, in the order in which the transactions followed
each other, and what the game did. `replay.py` checks it.

Triggers of the game's own write the rows down in the transaction that changes them, so what is rolled back or lost in a
crash leaves no trace. They go with the schema of the game.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outlive import db
from outlive_lab.gameday.history import TAKEN_OVER, ZYGOTE_KILLS, History

_MAKE = """
create table outlive_gameday.journal (
  n bigint generated always as identity, transaction xid8 not null default pg_current_xact_id(),
  began timestamptz not null default statement_timestamp(), at timestamptz not null default clock_timestamp(),
  what text not null, row jsonb not null);
create function outlive_gameday.note() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into outlive_gameday.journal (what, row)
  select tg_table_name || ' ' || lower(tg_op), (
    select jsonb_object_agg(e.key, e.value) from jsonb_each(to_jsonb(r)) e where e.key = any(tg_argv))
  from changed r;
  return null;
end $$;
"""
_TRIGGER = """
create trigger gameday_{event} after {event} on outlive.{table} referencing {which} table as changed
for each statement execute function outlive_gameday.note({columns});
"""
COUNTS = "attempt failures crashes losses"
COLUMNS = {
    "waiting": f"id queue ready_at {COUNTS}",
    "running": f"id token worker lease_until alone begun queue ready_at {COUNTS}",
    "held": f"id why queue ready_at step parked_by unmet {COUNTS}",
    "attempts": f"job_id token worker outcome state loss {COUNTS}",
    "workers": "id name state watched stop_requested_at slots app trouble room_until",
    "steps": "job_id name value",
    "signals": "job_id number value",
    "dependencies": "job_id needs on_failure",
    "queues": "name paused_at",
}
"""The tables that are watched, and the columns that the rules read."""
_READ = """
select n, transaction::text::bigint, extract(epoch from began)::float8, extract(epoch from {committed})::float8,
  what, row
from outlive_gameday.journal order by n
"""
_JOBS = "select id::text, task, concurrency_key, concurrency from outlive.jobs"

Line = dict[str, Any]


def make(connection: db.Connection) -> None:
    connection.execute(_MAKE)
    for table, names in COLUMNS.items():
        columns = ", ".join(f"'{name}'" for name in names.split())
        for event, which in (("insert", "new"), ("update", "new"), ("delete", "old")):
            text = _TRIGGER.format(event=event, table=table, which=which, columns=columns)
            connection.execute(text.encode())


def read(connection: db.Connection, history: History, killers: Iterable[object], names: str) -> list[Line]:
    """`killers`: the jobs that kill their own process. `names`: the prefix of the names of the game's workers."""
    guilty = {str(id) for id in killers}
    recorded = connection.execute("show track_commit_timestamp").fetchone() == ("on",)
    committed = "pg_xact_commit_timestamp(xmin)" if recorded else "at"
    lines: list[Line] = [
        {"is": "job", "id": id, "task": task, "key": key, "limit": limit, "kills": id in guilty}
        for id, task, key, limit in connection.execute(_JOBS)
    ]
    lines += [
        {
            "is": "fault",
            "kind": str(one.kind),
            "worker": one.worker,
            "at_s": one.at_s,
            "of": "worker" if one.kind in TAKEN_OVER else "zygote" if one.kind in ZYGOTE_KILLS else "",
        }
        for one in history.faults
    ]
    lines += [
        {"is": "fault", "kind": "ended by itself", "worker": one.worker, "at_s": one.at_s, "of": "worker"}
        for one in history.exits
    ]
    known = {line["id"] for line in lines if line["is"] == "job"}
    for n, transaction, began_s, at_s, what, row in connection.execute(_READ.format(committed=committed).encode()):
        table, change = what.split()
        if table == "workers":
            if not row["name"].startswith(names):
                continue
        elif table != "queues" and row.get("job_id", row.get("id")) not in known:
            continue
        lines.append(
            {"is": "step", "n": n, "transaction": transaction, "began_s": began_s, "at_s": at_s}
            | {"table": table, "change": change, "row": row}
        )
    return lines


def write(lines: Iterable[Mapping[str, Any]], path: Path) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
