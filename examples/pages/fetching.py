"""Gets a page over HTTP, with a client that many jobs share, and says what it shows without its scripts."""

from __future__ import annotations

from urllib.parse import urljoin

import httpx2
from selectolax.lexbor import LexborHTMLParser

from pages.browsing import Seen

MAX_PAGE_BYTES = 1_000_000
"""Longer pages are cut: to parse one takes the time of all jobs in the process."""


async def look(client: httpx2.AsyncClient, url: str) -> Seen | None:
    """What a page shows; None if it has scripts: only a browser knows what these make of it."""
    body = bytearray()
    async with client.stream("GET", url) as answer:
        if answer.status_code != httpx2.codes.OK:  # A redirect too: it may lead anywhere.
            raise ConnectionError(f"{url} answers {answer.status_code}")
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_PAGE_BYTES:
                break
    page = LexborHTMLParser(bytes(body[:MAX_PAGE_BYTES]))
    if page.css_first("script"):
        return None
    title = page.css_first("title")
    links = {urljoin(url, link.attributes["href"] or "") for link in page.css("a[href]")}
    return Seen(title=title.text(strip=True) if title else "", links=sorted(links - {url}))
