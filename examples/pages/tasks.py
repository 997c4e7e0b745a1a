"""The app: a crawler. `fetch` gets a page over HTTP, and `visit` opens those that have scripts in a browser. Both keep
what the page shows, and ask for the pages that it links to.

Fetches wait most of the time, so hundreds of them share one process and one client. Every visit has a process of its
own, with a browser of its own. So a page that hangs, crashes its browser or eats memory costs its own job an attempt,
and no other job anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator

import httpx2

import outlive
from pages.browsing import BrowserDied, Seen, see
from pages.fetching import look

SITE = os.environ.get("PAGES_SITE", "http://127.0.0.1:8100")
PAGES = "pages"
"""The scope of the records: one for each page, by its address."""

app = outlive.App()
site = app.source("site", rate_limit_per_minute=600, burst=20, max_concurrency=20, breaker_failures=10)
"""How often the site is called, by all workers together."""
client: httpx2.AsyncClient
"""What all fetches of a process use."""


@app.lifespan
async def session() -> AsyncIterator[None]:
    global client
    async with httpx2.AsyncClient(timeout=10.0, trust_env=False) as client:
        yield


@app.task(source=site, share=200, timeout="20s", memory="500MB", max_attempts=2, backoff=[1])
async def fetch(url: str, depth: int = 1) -> str:
    """Get a page, or hand it to a browser. Returns its title."""
    async with site.request():
        seen = await look(client, url)
    if not seen:
        outlive.current().spawn(visit.using(dedupe_key=url).job(url, depth))
        return ""
    _keep(url, seen, depth)
    return seen["title"]


@app.task(source=site, timeout="20s", memory="1GB", max_attempts=2, max_crashes=3, backoff=[1])
def visit(url: str, depth: int = 1) -> str:
    """Open a page in a browser. Returns its title."""
    seen = site.cached({"url": url}, lambda: _see(url))
    _keep(url, seen, depth)
    return seen["title"]


def _keep(url: str, seen: Seen, depth: int) -> None:
    """Keep title and links of a page, and fetch the pages that it links to, down to a depth."""
    ctx = outlive.current()
    ctx.record(PAGES, url, seen)
    for link in seen["links"] if depth > 0 else ():
        if link.startswith(f"{SITE}/"):  # Links that lead elsewhere are kept, and not followed.
            ctx.spawn(fetch.using(dedupe_key=link).job(link, depth - 1))


def _see(url: str) -> Seen:
    """The page from the site. A page that kills its browser kills this process too: it is caught after three times."""
    with site.request():
        try:
            return see(url)
        except BrowserDied as error:
            print(error, file=sys.stderr, flush=True)  # The last lines are part of the evidence.
            os.abort()
