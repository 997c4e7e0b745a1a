"""A source: an outside service that jobs call, with limits that all workers share."""

from dataclasses import dataclass

from outlive.policy import identifier


@dataclass(frozen=True, slots=True)
class Source:
    """A source as the app declares it. A job of a source is claimed only while the source is open."""

    name: str
    rate_limit_per_minute: float | None = None


def source_name(source: Source | str) -> str:
    """The name of a source that is given as such, or by its name."""
    return identifier("source", source.name if isinstance(source, Source) else source)
