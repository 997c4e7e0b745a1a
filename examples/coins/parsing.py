"""Reading pages of offers, however badly they are written.

The parser is native code, and native code dies of some pages. Here two such deaths are built in, so that they can be
watched: the faults are real ones, only their cause is made up.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from urllib.parse import urljoin

from selectolax.lexbor import LexborHTMLParser, LexborNode

from coins.catalog import Offer

_PRICE = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)\.(\d\d)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class Page:
    offers: list[Offer]
    last: int
    """The number of the last page."""


def parse(html: str, *, url: str) -> Page:
    """What a page offers; what has no title, price or day is no offer."""
    tree = LexborHTMLParser(html)
    for picture in tree.css("img[data-address]"):
        _decode(int(picture.attrs.sget("data-address")))
    for album in tree.css("section[data-copies]"):
        _unfold(album, int(album.attrs.sget("data-copies")))
    offers = [offer for node in tree.css("li.offer") if (offer := _offer(node, url)) is not None]
    pages = tree.css_first("nav[data-pages]")
    last = pages.attrs.sget("data-pages") if pages is not None else ""
    return Page(offers, int(last) if last.isdecimal() else 1)


def _offer(node: LexborNode, url: str) -> Offer | None:
    link, price, day = (node.css_first(query) for query in ("a[href]", ".price", "time[datetime]"))
    if link is None or price is None or day is None:
        return None
    cents = _PRICE.search(price.text())
    when = _DAY.match(day.attrs.sget("datetime"))
    if cents is None or when is None:
        return None
    return Offer(
        external_id=node.attrs.sget("data-id") or None,
        path=urljoin(url, link.attrs.sget("href").partition("?")[0]),  # Without where the reader came from.
        title=" ".join(link.text().split()),
        cents=int(cents[1].replace(",", "")) * 100 + int(cents[2]),
        day=when[0],
    )


def _decode(address: int) -> None:
    """A decoder that believes the page when it says where the picture lies."""
    print(f"decoding the picture at {address:#x}", flush=True)
    ctypes.string_at(address)


def _unfold(album: LexborNode, copies: int) -> None:
    """A parser that keeps all it has ever read."""
    kept = []
    for n in range(copies):
        kept.append(LexborHTMLParser((album.html or "") * 2_000))
        print(f"album: copy {n + 1} of {copies:,}", flush=True)
