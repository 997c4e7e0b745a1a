"""The app: a coin comes in, three sites are searched for its prices, and each time one has answered the coin is valued.

    collect(coin) ──┬─ search(coin, auction) ── value(coin)
                    ├─ search(coin, shop) ───── value(coin)
                    └─ search(coin, dealer) ─── value(coin)

What a job finds and what it asks for next is written in the transaction that ends it: a job that dies leaves
neither, and is run again. So whatever is killed, the prices are the same at the end.
"""

from __future__ import annotations

import os
from itertools import accumulate
from typing import TypedDict
from urllib.parse import urlencode

import outlive
from coins.catalog import DEFAULT_SITES, KINDS, Intake, Offer
from coins.fetching import get
from coins.parsing import Page, parse
from outlive import Record

SITES = dict(place.split("=") for place in os.environ.get("COINS_SITES", DEFAULT_SITES).split(","))
"""Where the sites are: on this machine, where no link and no redirect but to just these places could lead us."""

MAX_PAGES = 20
PRICES = "prices/"
INTAKES, VALUATIONS = "intakes", "valuations"
"""The scopes of the coins that came in and of their valuations: one record, which is one row, for each coin."""
STEP = 2.0**-20
"""By how much a valuation counts more than the last one from the same prices; far less than any price adds."""

app = outlive.App()

# Each site has its own limits, whatever the number of workers: how often it is called, and by how many at once, so that
# a search that goes on to its next page need not wait behind all that want to begin. The pauses are short, to be seen.
SOURCES = {
    "auction": app.source("auction", rate_limit_per_minute=180, burst=4, max_concurrency=4, breaker_pause="3s"),
    "shop": app.source("shop", rate_limit_per_minute=150, burst=2, max_concurrency=3, breaker_pause="3s"),
    "dealer": app.source(
        "dealer", rate_limit_per_minute=120, max_concurrency=3, breaker_failures=3, breaker_pause="3s"
    ),
}


class Valuation(TypedDict):
    """What a coin is worth, from how many prices, and between which of them."""

    cents: int
    prices: int
    low_cents: int
    high_cents: int


# A worker that vanishes says nothing about the jobs it had: machines come and go here, so losses are not counted
# (max_losses). What kills its own process is another matter, and goes into quarantine after three times.


@app.task(max_losses=None, backoff=[0.5, 1, 2])
def collect(intake: Intake) -> None:
    """Write down a coin that came in, and search all sites for it."""
    ctx = outlive.current()
    ctx.record(INTAKES, intake["id"], intake)
    for site, source in SOURCES.items():
        ctx.spawn(search.using(source=source).job(intake, site))


@app.task(max_attempts=12, max_losses=None, backoff=[0.5, 1, 2], timeout="8s", memory="256MB")
def search(intake: Intake, site: str) -> dict[str, int]:
    """Every price that one site has for a coin, page by page."""
    ctx = outlive.current()
    found = number = 0
    last = 1
    while number < min(last, MAX_PAGES):
        number += 1
        url = f"http://{SITES[site]}/search?{urlencode(_asked(intake, number))}"
        page = _page(intake, site, number, url)
        for offer in page.offers:
            _record(ctx, intake, site, offer)
        found, last = found + len(page.offers), page.last
        ctx.progress(number, last, f"{intake['title']}: {found} prices of the {site}")
    ctx.spawn(value.job(intake["id"]))
    return {"found": found, "pages": number}


def _page(intake: Intake, site: str, number: int, url: str) -> Page:
    """One page: from the cache if anybody on this machine had it lately, else from the site, when that admits us."""
    source = SOURCES[site]

    def fetch() -> str:
        with source.request():
            return get(url, allowed=SITES.values())

    return parse(source.cached(_asked(intake, number), fetch), url=url)


def _asked(intake: Intake, number: int) -> dict[str, str | int]:
    """What a site is asked, and what its answer is kept under: not the intake's id, two coins may be alike."""
    return {
        "year": intake["year"],
        "mintmark": intake["mintmark"],
        "denomination": intake["denomination"],
        "series": intake["series"],
        "title": intake["title"],
        "page": number,
    }


def _record(ctx: outlive.Context, intake: Intake, site: str, offer: Offer) -> None:
    """One price point, under a key that is the same however often it is found. The better match is kept."""
    kind = KINDS[site]
    key = outlive.dedupe_key(
        offer.external_id, url=offer.path, title=offer.title, price_cents=offer.cents, day=offer.day, kind=kind
    )
    data = {"kind": kind, "title": offer.title, "cents": offer.cents, "day": offer.day, "url": offer.path}
    ctx.record(prices_of(intake["id"]), key, data, strength=match_strength(intake, offer.title))


def prices_of(intake: str) -> str:
    """The scope of a coin's price points."""
    return f"{PRICES}{intake}"


def match_strength(intake: Intake, title: str) -> int:
    """How surely an offer is of this coin: 1, and one more for each fact that its title names."""
    facts = (str(intake["year"]), f"-{intake['mintmark']} ", intake["series"], intake["denomination"])
    return 1 + sum(fact.lower() in title.lower() for fact in facts)


@app.task(max_losses=None, backoff=[0.5, 1, 2])
def value(intake: str) -> Valuation | None:
    """Value a coin anew from all prices that there are now, and replace its last valuation.

    Prices are only added, or replaced by stronger ones. So their strengths together say which of two valuations has
    seen more, and one that comes late with less replaces nothing. The last valuation is read before the prices: these
    are then at least those that it has seen.
    """
    last = next((one.strength for one in app.records(VALUATIONS) if one.dedupe_key == intake), 0.0)
    points = app.records(prices_of(intake))
    if not points:
        return None
    valuation = valued(points)
    seen = sum(point.strength for point in points)
    outlive.current().record(VALUATIONS, intake, valuation, strength=last + STEP if seen == int(last) else seen)
    return valuation


def valued(points: list[Record]) -> Valuation:
    """The weighted median. What was paid counts most: who asks hopes for more, and who bids for less."""
    worth = {"sold": 1.0, "ask": 0.9, "bid": 1.1}
    weight = {"sold": 3.0, "ask": 1.0, "bid": 1.0}
    prices = sorted(
        (round(point.data["cents"] * worth[point.data["kind"]]), point.strength * weight[point.data["kind"]])
        for point in points
    )
    below = list(accumulate(share for _, share in prices))
    middle = next(cents for (cents, _), share in zip(prices, below, strict=True) if share >= below[-1] / 2)
    return Valuation(cents=middle, prices=len(points), low_cents=prices[0][0], high_cents=prices[-1][0])
