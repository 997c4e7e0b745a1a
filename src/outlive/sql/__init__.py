"""The SQL of outlive, as static text: the schema, and every statement under its name.

A statement is written with named parameters (`:tokens::bigint[]`), which are compiled once, at their first use, to the
numbered ones of Postgres. Nothing builds a query at run time.
"""

import re
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
_NAMED = re.compile(r":(?<![:\w]:)([a-z]\w*)::(double precision|\w+)(\[\])?")  # A first literal is found fast.


class Text(msgspec.Struct, frozen=True):
    """A statement with numbered parameters: their names in the order of the numbers, and the element type of arrays."""

    text: str
    parameters: dict[str, str | None]


def read(path: str) -> str:
    """A file of this folder, e.g. schema/tables.sql."""
    return (HERE / path).read_text(encoding="utf-8")


def compiled(text: str) -> Text:
    """Turn `:name::type` into `$1::type`, and drop comments, so that the server does not read them each time."""
    parameters: dict[str, str | None] = {}

    def number(match: re.Match[str]) -> str:
        name, kind, array = match.groups()
        parameters.setdefault(name, kind if array else None)
        return f"${list(parameters).index(name) + 1}::{kind}{array or ''}"

    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return Text(_NAMED.sub(number, bare.strip().rstrip(";")), parameters)


def load(path: str) -> dict[str, str]:
    """The statements of a file. Each begins with a line `-- name: …`."""
    parts = re.split(r"^-- name: (\w+)$", read(path), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def texts() -> dict[str, str]:
    """Every statement of statements/*.sql by its name, as it is written."""
    found: dict[str, str] = {}
    for path in sorted(entry.name for entry in (HERE / "statements").iterdir()):
        for name, text in load(f"statements/{path}").items():
            if name in found:
                raise ValueError(f"two statements are named {name}")
            found[name] = text
    return found
