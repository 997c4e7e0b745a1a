"""A source: an outside service that jobs call, with limits that all workers share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A source as the app declares it. A job of a source is claimed only while the source is open."""

    name: str
    rate_limit_per_minute: float | None = None
