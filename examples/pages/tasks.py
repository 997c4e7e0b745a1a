"""The app: a crawler. `visit` opens a page in a browser, keeps what it shows, and asks for the pages that it links to.

Every visit has a process of its own, with a browser of its own. So a page that hangs, crashes its browser or eats
memory costs its own job an attempt, and no other job anything.
"""

from __future__ import annotations

import os
import sys

import outlive
from pages.browsing import BrowserDied, Seen, see

SITE = os.environ.get("PAGES_SITE", "http://127.0.0.1:8100")
PAGES = "pages"
"""The scope of the records: one for each page, by its address."""

app = outlive.App()
site = app.source("site", rate_limit_per_minute=300, burst=4, max_concurrency=4, breaker_failures=10)
"""How often the site is called, by all workers together."""


@app.task(source=site, timeout="20s", memory="1GB", max_attempts=2, max_crashes=3, backoff=[1])
def visit(url: str, depth: int = 1) -> str:
    """Keep title and links of a page, and visit the pages that it links to, down to a depth. Returns the title."""
    ctx = outlive.current()
    seen = site.cached({"url": url}, lambda: _fetch(url))
    ctx.record(PAGES, url, seen)
    for link in seen["links"] if depth > 0 else ():
        if link.startswith(f"{SITE}/"):  # Links that lead elsewhere are kept, and not followed.
            ctx.spawn(visit.using(dedupe_key=link).job(link, depth - 1))
    return seen["title"]


def _fetch(url: str) -> Seen:
    """The page from the site. A page that kills its browser kills this process too: it is caught after three times."""
    with site.request():
        try:
            return see(url)
        except BrowserDied as error:
            print(error, file=sys.stderr, flush=True)  # The last lines are part of the evidence.
            os.abort()
