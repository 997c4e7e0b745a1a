"""Cuts: in a scratch database the functions of outlive call `pairs.cut` before each statement that names a table.

A session that is told a number stops at the cut of that number, until the watching session lets it go on. The product
has no such calls: they are written into the functions of the scratch database, as these are installed there. Each
statement inside a function sees what was committed before it, so what happens at a cut is what happens between two of
its statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from outlive import db, sql

LOCKS = 7_700_000
"""The advisory lock at which session n stops has this key plus n."""

_SETUP = """
create schema pairs;
create sequence pairs.passed_1;
create sequence pairs.passed_2;
create function pairs.cut(place text) returns boolean language plpgsql set lock_timeout = 0 as $$
declare
  me int := current_setting('pairs.me', true);
  stop_at int := coalesce(current_setting('pairs.stop_at', true), '0');
begin
  if stop_at = 0 then
    return false;
  elsif stop_at < 0 then
    raise notice 'cut %', place;
  elsif nextval('pairs.passed_' || me) = stop_at then
    raise notice 'stopped %', place;
    perform pg_advisory_lock_shared(7700000 + me), pg_advisory_unlock_shared(7700000 + me);
  end if;
  return false;
end $$;
-- One moment for all: what a statement writes does not depend on when it ran.
create or replace function outlive.now() returns timestamptz language sql stable parallel safe
return coalesce(nullif(current_setting('outlive.now', true), '')::timestamptz, statement_timestamp());
"""
_FUNCTIONS = """
select p.proname, p.prosrc, pg_get_functiondef(p.oid) from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'outlive'::regnamespace and l.lanname = 'plpgsql' and p.provolatile = 'v'
  and p.prorettype <> 'trigger'::regtype
order by p.proname, p.oid
"""
_TABLES = "|".join(
    re.findall(r"create (?:unlogged )?table if not exists outlive\.(\w+)", sql.read("schema/tables.sql"))
)
_TOUCHES = re.compile(rf"\b(?:from|join|into|update|using) outlive\.({_TABLES})\b|\boutlive\.(state_of)\(")
_QUOTED = re.compile(r"'(?:[^']|'')*'")
_COMMENT = re.compile("--.*")
_JOINTS = ("end", "else", "elsif", "when", "exception", "begin", "loop")
"""Nothing can be put before these: they belong to what stands above them."""


def install(connection: db.Connection) -> None:
    """Give each function of outlive its cuts."""
    connection.execute(_SETUP.encode())
    for name, source, whole in connection.execute(_FUNCTIONS).fetchall():
        connection.execute(whole.replace(source, cut_up(name, source)).encode())


def cut_up(name: str, source: str) -> str:
    """The body of a function with a call of `pairs.cut` before each statement that names a table."""
    head, begin, body = source.partition("\nbegin\n")
    lines = [head, "begin"]
    for statement in _statements(body):
        found = _TOUCHES.search(" ".join(statement.split()))
        if found and _COMMENT.sub("", statement).split()[0] not in _JOINTS:
            place = f"{name} {len(lines)} {found[1] or found[2]}"
            lines.append(f"if pairs.cut('{place}') then end if;")  # Unlike perform, this leaves `found` as it is.
        lines.append(statement)
    return "\n".join(lines) if begin else source


def _statements(body: str) -> Iterator[str]:
    """The statements of a body. A condition or the head of a loop counts as one, without what it governs."""
    lines: list[str] = []
    words: list[str] = []
    depth = 0
    for line in body.splitlines():
        bare = _QUOTED.sub("''", line).partition("--")[0].strip()
        lines.append(line)
        words += bare.split()
        depth += bare.count("(") - bare.count(")")
        if not words or depth:
            continue
        governs = words[0] in ("if", "elsif", "for", "foreach", "while", "when", "exception")
        if words[-1] in ("then", "loop") if governs else bare.endswith(";") or bare in _JOINTS:
            yield "\n".join(lines)
            lines, words = [], []
    yield "\n".join(lines)
