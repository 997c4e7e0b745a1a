"""The SQL of outlive, as static text: the schema, and every statement under its name.

A statement is written with named parameters (`:tokens::bigint[]`), which are compiled once, at their first use, to the
numbered ones of Postgres. Nothing builds a query at run time. A line `-- call: …` stands for the statement that calls a
function of the schema, where it is explained. A statement whose comment ends with what it `returns` is
also installed as a function, for workers in other languages (schema/functions/protocol.sql).
"""

import re
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
_NAMED = re.compile(r":(?<![:\w]:)([a-z]\w*)::((?:double precision|\w+)(?:\[\])?)")  # A first literal is found fast.
_CALL = re.compile(r"^-- call: ((\w+)\(.*(?:\n--   .*)*)$", re.MULTILINE)
_RETURNS = re.compile(r"^-- returns (.*(?:\n--   .*)*)$", re.MULTILINE)


class Text(msgspec.Struct, frozen=True):
    """A statement with numbered parameters: their names in the order of the numbers, each with its type."""

    text: str
    parameters: dict[str, str]


def read(path: str) -> str:
    """A file of this folder, e.g. schema/tables.sql."""
    return (HERE / path).read_text(encoding="utf-8")


def compiled(text: str) -> Text:
    """Turn `:name::type` into `$1::type`, and drop comments, so that the server does not read them each time."""
    parameters: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        name, kind = match.groups()
        parameters.setdefault(name, kind)
        return f"${list(parameters).index(name) + 1}::{kind}"

    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return Text(_NAMED.sub(number, bare.strip().rstrip(";")), parameters)


def load(path: str) -> dict[str, str]:
    """The statements of a file: calls of functions in its head, and others, each below a line `-- name: …`."""
    head, *parts = re.split(r"^-- name: (\w+)$", read(path), flags=re.MULTILINE)
    texts = ((name, call.replace("--", "")) for call, name in _CALL.findall(head))
    calls = {name: f"select * from outlive.{call}" for name, call in texts}  # noqa: S608  # It is static too.
    return calls | dict(zip(parts[::2], parts[1::2], strict=True))


def texts() -> dict[str, str]:
    """Every statement of statements/*.sql by its name, as it is written."""
    found: dict[str, str] = {}
    for path in sorted(entry.name for entry in (HERE / "statements").iterdir()):
        for name, text in load(f"statements/{path}").items():
            if name in found:
                raise ValueError(f"two statements are named {name}")
            found[name] = text
    return found


def functions() -> str:
    """The statements that workers in other languages need, as functions: `renew` is outlive.statement_renew."""
    found = [(name, text, returns[1]) for name, text in texts().items() if (returns := _RETURNS.search(text))]
    return "\n\n".join(_function(name, text, returns.replace("\n--", "\n")) for name, text, returns in found)


def _function(name: str, text: str, returns: str) -> str:
    """Parameters are quoted, because some are called like words of SQL, and the statement knows them by number."""
    one = compiled(text)
    parameters = ", ".join(f'"{parameter}" {kind} default null' for parameter, kind in one.parameters.items())
    return (
        f"create or replace function outlive.statement_{name}({parameters})\n"
        f"returns {returns} language sql as $statement$\n{one.text};\n$statement$;"
    )
