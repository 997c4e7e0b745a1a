"""Turns what a page has found into HTML. Everything that jobs and clients have written is escaped, without control
characters, and cut to a length that a person reads.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import outlive
from outlive import humanize, program
from outlive.states import State

HERE = Path(__file__).parent
STATIC = HERE / "static"
LONGEST_LINE = 240
LONGEST_TEXT = 20_000
LIVE = "live_"
"""The blocks of a template whose names start with this are sent again when they change."""


def when(moment: datetime | None, form: str = "ago") -> Markup:
    """A time, in UTC. The script of the page turns it into the time that has passed, or into local time."""
    if moment is None:
        return Markup("")
    at = moment.astimezone(UTC)
    kind = "ago" if form == "ago" else "local"
    iso, shown = at.isoformat(timespec="milliseconds"), at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup(f'<time datetime="{iso}" data-{kind}>{shown}</time>')


def line(text: object, most: int = LONGEST_LINE) -> Markup:
    """Text of a job on one line, or a time."""
    if isinstance(text, datetime):
        return when(text, "local")
    whole = "" if text is None else str(text)
    words = humanize.plain(humanize.one_line(whole[: most * 4]))
    shown = words if len(words) <= most and len(whole) <= most * 4 else words[:most] + "…"
    return Markup(f"<bdi>{escape(shown)}</bdi>")


def text(value: object, most: int = LONGEST_TEXT) -> Markup:
    """Text of a job with its line breaks; of a long one, the end."""
    whole = "" if value is None else str(value)
    return escape(humanize.plain(whole[-most:]).strip("\n"))


@functools.lru_cache(256)
def state(word: object) -> Markup:
    """A state or an outcome, in its colour."""
    name = str(word or "")
    return Markup('<span class="state c-{}">{}</span>').format(name, name.replace("_", " "))


def seconds(value: float | None) -> str:
    return "" if value is None else humanize.duration(max(0.0, value))


def size(value: int | None) -> str:
    return "" if value is None else humanize.size(value)


def _stamp() -> str:
    """Changes when a static file changes, so that browsers may keep these files for ever."""
    files = sorted(path for path in STATIC.iterdir() if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


class Links:
    """The addresses of the dashboard's pages, below the path at which it is mounted."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def __call__(self, *path: object, **query: object) -> str:
        """`at("jobs", id, state="failed")`: a path and its query, without its empty values."""
        where = self.root + "/" + "/".join([quote(str(part), safe="") for part in path])
        if not query:
            return where
        pairs = [(key, str(value)) for key, value in query.items() if value not in (None, "")]
        return f"{where}?{urlencode(pairs)}" if pairs else where


class Templates:
    def __init__(self) -> None:
        made = self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        made.filters |= {one.__name__: one for one in (when, line, text, state, seconds, size)}
        made.filters |= {name: getattr(humanize, name) for name in ("number", "rate", "figure", "short_id", "tail")}
        made.globals.update(version=outlive.__version__, stamp=_stamp(), states=list(State), command=program.command)
        # Blocks are also rendered alone, so they can't import the macros themselves.
        made.globals["m"] = made.get_template("macros.html").module

    def page(self, name: str, found: Mapping[str, Any]) -> str:
        return self._environment.get_template(name).render(found)

    def fragments(self, name: str, found: Mapping[str, Any]) -> dict[str, str]:
        """The parts of a page that change while it is open."""
        template = self._environment.get_template(name)
        context = template.new_context(dict(found))
        return {block: "".join(render(context)) for block, render in template.blocks.items() if block.startswith(LIVE)}
