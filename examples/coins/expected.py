"""What must be recorded when all coins are valued, whatever was killed: the sites offer the same each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import outlive
from coins import catalog, site, tasks
from coins.catalog import Intake
from coins.site import Site
from outlive import State

Key = tuple[str, str, str]
"""The scope, source and key of a record."""


def jobs(intakes: Sequence[Intake]) -> Counter[State]:
    """Each coin is collected once, searched for on three sites, and valued after each search that succeeds."""
    searches = len(intakes) * len(catalog.KINDS)
    poisoned = sum(site.is_poison(name, one["title"]) for name in catalog.KINDS for one in intakes)
    succeeded = len(intakes) + 2 * (searches - poisoned)
    return Counter({State.SUCCEEDED: succeeded, State.QUARANTINED: poisoned})


def points(intakes: Sequence[Intake], sites: Mapping[str, Site]) -> Iterator[tuple[Key, tuple[float, int]]]:
    """Every price that can be read, with how well it matches and its cents. Some are offered several times."""
    for intake in intakes:
        for name, kind in catalog.KINDS.items():
            if site.is_poison(name, intake["title"]):
                continue
            pages = catalog.pages(name, intake["title"], intake["series"], intake["denomination"])
            for offer in chain.from_iterable(pages):
                url = f"http://{sites[name].place}{offer.path}"
                facts: dict[str, Any] = {"title": offer.title, "price_cents": offer.cents, "day": offer.day}
                own = outlive.dedupe_key(offer.external_id, url=url, kind=kind, **facts)
                match = tasks.match_strength(intake, offer.title)
                yield (tasks.prices_of(intake["id"]), name, own), (match, offer.cents)


def best_points(intakes: Sequence[Intake], sites: Mapping[str, Site]) -> dict[Key, tuple[float, int]]:
    """Each price once, with its best match."""
    best: dict[Key, tuple[float, int]] = {}
    for key, one in points(intakes, sites):
        best[key] = max(best.get(key, (0.0, 0)), one)
    return best


def duplicates(intakes: Sequence[Intake], sites: Mapping[str, Site]) -> int:
    """How many offers are of prices that others have."""
    return sum(1 for _ in points(intakes, sites)) - len(best_points(intakes, sites))


def wrong_records(
    intakes: Sequence[Intake], sites: Mapping[str, Site], records: Sequence[outlive.Record]
) -> Iterator[str]:
    """How the records differ from what they must be."""

    def data(scope: str) -> dict[str, object]:
        return {one.dedupe_key: one.data for one in records if one.scope == scope}

    if data(tasks.INTAKES) != {one["id"]: one for one in intakes}:
        yield "the recorded coins differ from those that came in"
    prices = [one for one in records if one.scope.startswith(tasks.PRICES)]
    found = {
        (one.scope, one.source, one.dedupe_key): (one.strength, cast("dict[str, Any]", one.data)["cents"])
        for one in prices
    }
    expected = best_points(intakes, sites)
    if found != expected:
        missing, more = len(expected.keys() - found.keys()), len(found.keys() - expected.keys())
        yield f"of {len(expected)} price points {missing} are missing, {more} are unexpected, or some differ"
    ids = [one["id"] for one in intakes]
    valued = {id: tasks.valued([one for one in prices if one.scope == tasks.prices_of(id)]) for id in ids}
    if data(tasks.VALUATIONS) != valued:
        yield "the valuations do not follow from the price points, one for each coin"
