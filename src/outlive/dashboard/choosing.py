"""Which jobs an address or a form means: the fields of the filter, and ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from uuid import UUID

from outlive import validation
from outlive.errors import BadArguments, ConfigError
from outlive.states import State
from outlive.store import JobFilter
from outlive.wording import duration

FIELDS = ("state", "task", "queue", "source", "worker", "batch", "since", "text")
MAX_IDS = 1000
MAX_VALUE = 500
LABELS = {
    "states": "State",
    "task": "Task",
    "queue": "Queue",
    "source": "Source",
    "worker": "Worker",
    "batch": "Batch",
    "since_s": "Since",
    "older_s": "Older than",
    "text": "With the text",
    "ids": "Jobs",
    "name": "Name",
}
"""What the parts of a filter are called on the pages."""
_DIGITS = re.compile(r"[0-9a-f]{4,32}")


class BadField(BadArguments):
    """A field of the filter has a value that it can't have."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field


def filter_of(fields: Mapping[str, str]) -> JobFilter:
    given = {key: fields.get(key, "").replace("\0", "").strip()[:MAX_VALUE] or None for key in FIELDS}
    state, batch = given["state"], given["batch"]
    if state is not None and state not in list(State):
        raise BadField("state", f"there is no state {state!r}: choose one of {', '.join(State)}")
    try:
        batch_id = None if batch is None else UUID(batch)
    except ValueError:
        raise BadField("batch", f"{batch!r} is not the id of a batch") from None
    try:
        since_s = validation.optional(validation.seconds)("since", given["since"])
    except ConfigError as error:
        raise BadField("since", str(error)) from None
    return JobFilter(
        states=() if state is None else (State(state),),
        task=given["task"],
        queue=given["queue"],
        source=given["source"],
        worker=given["worker"],
        batch=batch_id,
        since_s=since_s,
        text=given["text"],
    )


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


def told(key: str, value: object) -> tuple[str, str]:
    """A part of a filter in words: what it is called, and its value."""
    label = LABELS.get(key, key.replace("_", " "))
    if key in ("since_s", "older_s") and isinstance(value, int | float):
        return label, f"{duration(value)}{' ago' if key == 'since_s' else ''}"
    return label, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def prefix(text: str | None) -> str | None:
    """The digits of an id, if that is what was searched for."""
    digits = (text or "").replace("-", "").lower()
    return digits if _DIGITS.fullmatch(digits) else None
