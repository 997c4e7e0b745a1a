"""What there is: coins that come in, and what three sites offer for them. All of it is made up, and always the same."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import TypedDict

KINDS = {"auction": "sold", "shop": "ask", "dealer": "bid"}
"""The sites, and what kind of price each of them names."""

DEFAULT_SITES = "auction=127.0.0.1:8701,shop=127.0.0.1:8702,dealer=127.0.0.1:8703"
OFFERS_PER_PAGE = 4
_COINS = (
    ("Morgan", "dollar", 1881, ("S", "CC", "O", "")),
    ("Peace", "dollar", 1923, ("S", "D", "")),
    ("Walking Liberty", "half dollar", 1936, ("D", "S", "")),
    ("Standing Liberty", "quarter", 1927, ("D", "S", "")),
    ("Mercury", "dime", 1919, ("D", "S", "")),
    ("Buffalo", "nickel", 1926, ("D", "S", "")),
    ("Wheat", "cent", 1914, ("D", "S", "")),
)
_GRADES = ("VF-30", "XF-45", "AU-58", "MS-63", "MS-65")
_FIRST_DAY = date(2026, 1, 1)


class Intake(TypedDict):
    """A coin that came in."""

    id: str
    year: int
    mintmark: str
    denomination: str
    series: str
    title: str


@dataclass(frozen=True, slots=True)
class Offer:
    """One price on a page."""

    external_id: str | None
    path: str
    title: str
    cents: int
    day: str


def intakes(count: int) -> list[Intake]:
    """So many coins. Every fourth is like one that came in before: its pages are in the cache already."""
    return [_intake(n, n - 3 if n % 4 == 3 else n) for n in range(count)]


def _intake(n: int, coin: int) -> Intake:
    series, denomination, year, mints = _COINS[coin % len(_COINS)]
    year += coin // len(_COINS)
    mint = mints[coin % len(mints)]
    title = f"{year}{'-' if mint else ''}{mint} {series} {denomination}"
    return Intake(id=f"coin-{n:03}", year=year, mintmark=mint, denomination=denomination, series=series, title=title)


def pages(site: str, title: str, series: str, denomination: str) -> list[list[Offer]]:
    """What a site shows for a coin, page by page; each page names the first offer of the next one too, as lists that
    move while they are read do. The auction house is short about it there, the shop adds where you came from."""
    chance = random.Random(f"{site} {title}")
    worth_cents = random.Random(title).randrange(4_000, 90_000)
    offers = [_offer(site, title, worth_cents, chance) for _ in range(chance.randrange(3, 11))]
    shown = [offers[n : n + OFFERS_PER_PAGE] for n in range(0, len(offers), OFFERS_PER_PAGE)]
    for page, after in pairwise(shown):
        first = after[0]
        if site == "shop":
            page.append(Offer(None, f"{first.path}?from=list", first.title.upper(), first.cents, first.day))
        else:
            page.append(Offer(first.external_id, first.path, f"{series} {denomination}", first.cents, first.day))
    return shown


def _offer(site: str, title: str, worth_cents: int, chance: random.Random) -> Offer:
    number = f"{site[0]}{chance.randrange(10**8):08}"
    factor = {"auction": 1.0, "shop": 1.15, "dealer": 0.85}[site] * chance.uniform(0.9, 1.1)
    return Offer(
        external_id=None if site == "shop" else number,
        path=f"/offers/{number}",
        title=f"{title} {chance.choice(_GRADES)}",
        cents=round(worth_cents * factor),
        day=str(_FIRST_DAY + timedelta(days=chance.randrange(200))),
    )
