"""docs/reference/schema.md: the tables, and the views and functions that people may use, read from the SQL files.

What people may use is what the roles of grants.sql may, except the worker's, which may do everything. A test compares
the columns that are read here with those that a database has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from outlive import migrate, sql

COMMENT = r"((?:^--[^\n]*\n)*)"
TABLE = re.compile(
    COMMENT + r"^create (?:unlogged )?table if not exists outlive\.(\w+) \(\n(.*?)^\)", re.MULTILINE | re.DOTALL
)
VIEW = re.compile(COMMENT + r"^create view outlive\.(\w+) as\n(.*?);$", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"^create (?:or replace )?function outlive\.(\w+)\(", re.MULTILINE)
RETURNS = re.compile(r"\s*returns (.+?)\s+(?:language|security|stable|immutable)\b", re.DOTALL)
ROLES = ("outlive_enqueue", "outlive_viewer", "outlive_job", "outlive_protocol")
NEEDED_BY_VIEWS = {"held_state", "changed"}
"""Functions that a viewer may execute only because views call them."""
HEAD = """\
# Schema

Made from the SQL in `src/outlive/sql/schema`, version {version}; `./run docs --generate` writes this page. The views
and functions here are for people and programs, and the [roles](../how-to/secure.md) may use them. The tables are for
reading when a view does not answer a question. They change between versions; never write to them.

"""


class Thing(NamedTuple):
    """A table, a view or a function."""

    name: str
    says: str
    body: str


def as_markdown() -> str:
    """The page."""
    lines = ["## Views", ""]
    for view in views():
        if view.name in granted("select"):
            lines += [f"### {view.name}", "", view.says, "", *_wrapped(columns_of_view(view)), ""]
    lines += ["## Functions", ""]
    for function in functions():
        lines += [f"### {function.name}", "", "```sql", function.body, "```", "", function.says, ""]
    lines += ["## Tables", ""]
    for table in tables():
        lines += [f"### {table.name}", "", table.says, "", "| column | type | |", "|---|---|---|"]
        lines += [f"| `{name}` | {kind} | {why} |" for name, kind, why in columns_of_table(table)]
        lines.append("")
    return HEAD.format(version=migrate.VERSION) + "\n".join(lines).rstrip() + "\n"


def silent() -> list[str]:
    """What this page has to name and the schema does not explain."""
    named = [view for view in views() if view.name in granted("select")]
    return [thing.name for thing in (*named, *functions(), *tables()) if not thing.says]


def tables() -> list[Thing]:
    return [Thing(name, _prose(says), body) for says, name, body in TABLE.findall(sql.read("schema/tables.sql"))]


def views() -> list[Thing]:
    return [Thing(name, _prose(says), body) for says, name, body in VIEW.findall(sql.read("schema/views.sql"))]


def functions() -> list[Thing]:
    """The functions that a role may execute, each with its signature as its body."""
    found = []
    files = sorted(path.name for path in (sql.HERE / "schema" / "functions").glob("*.sql"))
    for path in ("schema/tables.sql", *(f"schema/functions/{file}" for file in files)):
        text = sql.read(path)
        for start in FUNCTION.finditer(text):
            if start[1] in granted("execute") - NEEDED_BY_VIEWS:
                parameters = _until_closed(text[start.end() :])
                rest = text[start.end() + len(parameters) + 1 :]
                returns = RETURNS.match(rest)
                assert returns
                inside = "".join(f"\n  {one.strip()}," for one in _split(parameters)).rstrip(",")
                says = _comment_before(text[: start.start()]) or _first_comment(rest)
                found.append(Thing(start[1], says, f"outlive.{start[1]}({inside}) returns {returns[1]}"))
    return found


def granted(right: str) -> set[str]:
    """What `grants.sql` grants to the roles of people and programs: `select` on views, `execute` on functions."""
    text = re.sub(r"--.*", "", sql.read("schema/grants.sql"))
    found = re.findall(rf"^grant {right} on\b(.*?)\s+to ([^;]*);", text, re.MULTILINE | re.DOTALL)
    things = " ".join(things for things, roles in found if any(role in roles for role in ROLES))
    return set(re.findall(r"outlive\.(\w+)", things))


def columns_of_table(table: Thing) -> Iterator[tuple[str, str, str]]:
    """Name, type and comment of each column."""
    for line in table.body.splitlines():
        column, _, why = line.strip().partition("--")
        if found := re.match(r"(\w+) ([a-z]+[0-9]*(?: precision)?(?:\[\])?)", column):
            name, kind = found.groups()
            if name not in ("primary", "constraint", "unique", "check", "foreign") and line.startswith("  "):
                if re.match(r"   ", line):  # The rest of a column that needs two lines.
                    continue
                yield name, kind, why.strip()


def columns_of_view(view: Thing) -> list[str]:
    """The names of a view's columns; `view.*` stands for all columns of another view."""
    text = re.sub(r"--.*", "", view.body)
    if text.startswith("with"):
        text = text[text.index("\nselect") + 1 :]
    selected = _until_from(text.removeprefix("select").replace("\n", " "))
    return ["*" if one.strip().endswith("*") else re.findall(r"(\w+)\s*$", one)[0] for one in _split(selected)]


def _until_closed(text: str) -> str:
    """The text up to the parenthesis that closes the one before it."""
    depth = 1
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return text[:at]
    raise ValueError("a parenthesis is not closed")


def _comment_before(text: str) -> str:
    found = re.search(r"((?:^--.*\n)*)\Z", text, re.MULTILINE)
    return _prose(found[1]) if found else ""


def _first_comment(text: str) -> str:
    """The comment that opens the body of a function."""
    found = re.match(r"(?:(?!--|declare|begin|create ).*\n)*((?:--.*\n)*)", text)
    return _prose(found[1]) if found else ""


def _until_from(text: str) -> str:
    depth = 0
    for found in re.finditer(r"[()]|\bfrom\b", text):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if found[0] == "from" and depth == 0:
            return text[: found.start()]
    return text


def _split(text: str) -> list[str]:
    """The parts between the commas that are not in parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def _prose(comment: str) -> str:
    return " ".join(line.removeprefix("--").strip() for line in comment.splitlines()).strip()


def _wrapped(columns: list[str]) -> list[str]:
    if columns == ["*"]:
        return ["The columns are those of [job_states](#job_states)."]
    return [", ".join(f"`{name}`" for name in columns)]
