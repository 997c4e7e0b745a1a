"""What operators change about a schedule: its options as texts, and what becomes of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from outlive.client.scheduling import columns


def texts_of(row: Mapping[str, Any]) -> dict[str, str]:
    """A schedule as an operator would write it, by option. An option that is not set is empty."""
    return {
        "cron": row["cron"] or "",
        "every": _duration(row["every_s"]),
        "timezone": row["timezone"],
        "missed": row["missed"],
        "overlap": row["overlap"],
        "jitter": _duration(row["jitter_s"]),
        "start": _time(row["starts_at"]),
        "end": _time(row["ends_at"]),
        "queue": row["queue"] or "",
        "priority": "" if row["priority"] is None else str(row["priority"]),
    }


def values_of(texts: Mapping[str, str], prefix: str = "") -> dict[str, object]:
    """The columns that these options set. An empty text unsets one. Errors name an option with the prefix."""
    readers = {"start": _moment, "end": _moment, "priority": _whole}
    given = {name: readers.get(name, str)(text) if text else None for name, text in texts.items()}
    return columns(given, prefix)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    units = (("d", 86_400), ("h", 3600), ("m", 60))
    unit, length_s = next((one for one in units if seconds >= one[1] and seconds % one[1] == 0), ("s", 1))
    return f"{seconds / length_s:.12g}{unit}"


def _time(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _moment(text: str) -> object:
    """The time that a text names, or the text itself, which the check refuses."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _whole(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        return text
