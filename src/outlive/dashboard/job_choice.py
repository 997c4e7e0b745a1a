"""Which jobs an address or a form means: the fields of the filter, and ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, tzinfo
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from outlive import validation
from outlive.errors import BadArguments, ConfigError
from outlive.operations import Steps
from outlive.operations.selection import TEXTS, times
from outlive.states import State
from outlive.store import JobFilter

FIELDS = (*TEXTS, "state", "batch", "since", "before", "zone")
"""`zone`: that in which the browser shows times, if the filter has any."""
MAX_IDS = 1000
MAX_VALUE = 500


class BadField(BadArguments):
    """A field of the filter has a value that it can't have."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field


def filter_of(fields: Mapping[str, str]) -> Steps[JobFilter]:
    given = {key: fields.get(key, "").replace("\0", "").strip()[:MAX_VALUE] or None for key in FIELDS}
    state, batch = given["state"], given["batch"]
    states = list(filter(None, (state or "").split(",")))
    for one in states:
        if one not in list(State):
            raise BadField("state", f"there is no state {one!r}: choose one of {', '.join(State)}")
    try:
        batch_id = None if batch is None else UUID(batch)
    except ValueError:
        raise BadField("batch", f"{batch!r} is not the id of a batch") from None
    parts: dict[str, Any] = {key: given[key] for key in TEXTS}
    timed = {key: given[key] for key in ("since", "before")}
    try:
        parts |= yield from times(timed, _zone(given["zone"], timed))
    except ConfigError as error:
        raise BadField(str(error).partition(" ")[0], str(error)) from None
    return JobFilter(states=tuple(map(State, states)), batch=batch_id, **parts)


def _zone(name: str | None, timed: Mapping[str, str | None]) -> tzinfo:
    """The zone of the browser, or UTC without its script. If this machine does not know it, each time needs its own."""
    try:
        return UTC if name is None or name == "UTC" else ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # There is none of this name, or this is no name.
        unknown = f"the time zone {name!r:.100} is not known here: add one to the time, as in 2026-11-19T14:05Z"
    for field, written in timed.items():
        try:
            validation.optional(validation.moment)(field, written)
        except ConfigError:
            raise BadField(field, unknown) from None
    return UTC


def ids_of(fields: Iterable[tuple[str, str]]) -> list[UUID]:
    """The ids that were selected one by one (`id`) or together (`ids`, with commas)."""
    texts = [value for key, value in fields if key == "id"]
    texts += [one for key, value in fields if key == "ids" for one in value.split(",") if one]
    try:
        found = list(dict.fromkeys(UUID(text) for text in texts))
    except ValueError:
        raise BadArguments("a selected job has no valid id") from None
    if len(found) > MAX_IDS:
        raise BadArguments(f"more than {MAX_IDS} jobs are selected: use a filter")
    return found
