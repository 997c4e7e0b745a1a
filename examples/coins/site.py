"""The three web sites, served on this machine, with the faults that web sites have.

Some pages answer 500 or 429 the first time, some are slow, some are written badly; one makes the parser segfault, one
makes it eat memory, one does not end the first two times. What is wrong with a page depends on the page alone.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from coins import catalog
from coins.catalog import Offer

Fault = Literal["error", "patience", "slow", "malformed", "segfault", "memory", "hang"]
SLOW_S = 0.7
DRIP_S = 0.5
HANGS = 2
"""So often the page that does not end doesn't."""

_WELL_KNOWN: dict[tuple[str, str], Fault] = {
    ("shop", catalog.intakes(2)[1]["title"]): "segfault",
    ("auction", catalog.intakes(3)[2]["title"]): "memory",
    ("dealer", catalog.intakes(6)[5]["title"]): "hang",
}
_CHANCES: tuple[tuple[float, Fault], ...] = ((0.12, "error"), (0.24, "patience"), (0.36, "slow"), (0.55, "malformed"))


def fault_of(site: str, title: str, page: int) -> Fault | None:
    """What is wrong with a page."""
    if page == 1 and (site, title) in _WELL_KNOWN:
        return _WELL_KNOWN[site, title]
    drawn = random.Random(f"fault {site} {title} {page}").random()
    return next((fault for below, fault in _CHANCES if drawn < below), None)


def is_poison(site: str, title: str) -> bool:
    """Whether nobody can read this page and live."""
    return _WELL_KNOWN.get((site, title)) in ("segfault", "memory")


class Site:
    """One of them: its server, and what it remembers."""

    def __init__(self, name: str, port: int = 0) -> None:
        self.name = name
        self.down = False
        """Every request is answered with 503 while it is."""
        self.requests = 0
        self.closing = threading.Event()
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), lambda *of: _Answer(self, *of))
        self._server.daemon_threads, self._server.block_on_close = True, False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def times_asked(self, path: str) -> int:
        """How often a page was asked for, with this time; 0 while the site is down: then no page is served."""
        with self._lock:
            self.requests += 1
            if not self.down:
                self._asked[path] += 1
            return 0 if self.down else self._asked[path]


class _Answer(BaseHTTPRequestHandler):
    """The answer to one request."""

    def __init__(self, site: Site, *of: object) -> None:
        self.site = site
        super().__init__(*of)  # type: ignore[arg-type]  # What the server gives to each handler.

    def do_GET(self) -> None:
        times = self.site.times_asked(self.path)
        asked = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        if not times:
            return self._send(503, "closed for a moment")
        if not asked.keys() >= {"title", "series", "denomination", "page"}:
            return self._send(404, "no such page")
        fault = fault_of(self.site.name, asked["title"], int(asked["page"]))
        match fault:
            case "error" if times == 1:
                return self._send(500, "Internal Server Error")
            case "patience" if times == 1:
                return self._send(429, "not so fast", {"Retry-After": "1"})
            case "hang" if times <= HANGS:
                return self._drip()
            case "slow":
                self.site.closing.wait(SLOW_S)
        shown = catalog.pages(self.site.name, asked["title"], asked["series"], asked["denomination"])
        return self._send(200, _html(self.site.name, asked["title"], shown, int(asked["page"]), fault))

    def _send(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        """A letter now and then, for ever: no timeout of a read ever comes."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        try:
            while not self.site.closing.wait(DRIP_S):
                self.wfile.write(b"<")
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


def _html(site: str, title: str, shown: list[list[Offer]], number: int, fault: Fault | None) -> str:
    offers = shown[number - 1] if 0 < number <= len(shown) else []
    rows = "\n".join(_row(offer) for offer in offers)
    html = f"""<!doctype html>
<html><head><title>{site}: {title}</title></head><body><h1>{title}</h1>
<ul>
{rows}
</ul>
<nav data-pages="{len(shown)}">page {number}</nav>
{_poison(fault)}</body></html>"""
    return _spoilt(html) if fault == "malformed" else html


def _row(offer: Offer) -> str:
    name = "" if offer.external_id is None else f' data-id="{offer.external_id}"'
    return (
        f'<li class="offer"{name}><a href="{offer.path}">{offer.title}</a> '
        f'<b class="price">${offer.cents // 100:,}.{offer.cents % 100:02}</b> '
        f'<time datetime="{offer.day}">{offer.day}</time></li>'
    )


def _poison(fault: Fault | None) -> str:
    match fault:
        case "segfault":
            return '<img data-address="0">'
        case "memory":
            return f'<section data-copies="1000000">{"<p>page</p>" * 20}</section>'
    return ""


def _spoilt(html: str) -> str:
    """As people write it: nothing is closed, quotes are missing, and some of it means nothing."""
    for tidy, untidy in (
        ("</li>", "</div>"),
        ("</a> ", "</A>&nbsp;&bogus; "),
        ('class="offer"', "class=offer CLASS=again"),
        ('<b class="price">', "<B class='price'><font color=red>"),
        ("</html>", "</table></htm"),
        ("<ul>", '<ul><li class="offer"><a href="/advert">A coin without a price\0<li class=offer>'),
    ):
        html = html.replace(tidy, untidy)
    return html


@contextmanager
def serve(ports: Mapping[str, int] | None = None) -> Iterator[dict[str, Site]]:
    """All three, on ports of their own or on free ones."""
    sites = {name: Site(name, (ports or {}).get(name, 0)) for name in catalog.KINDS}
    for site in sites.values():
        site.start()
    try:
        yield sites
    finally:
        for site in sites.values():
            site.close()


def places(sites: Mapping[str, Site]) -> str:
    """Where they are, as COINS_SITES says it."""
    return ",".join(f"{name}={site.place}" for name, site in sites.items())
