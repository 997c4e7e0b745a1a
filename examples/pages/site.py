"""A web site on this machine: good pages, and three that no browser survives. It counts the requests for each."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HANG = "<script>for (;;);</script>"
CRASH = "<script>kept = []; for (;;) kept.push(Array(5e6).fill(0))</script>"
"""Its scripts keep more than they may: Chromium ends the process that shows the page."""
LEAK = "<script>kept = []; for (;;) kept.push(new Uint8Array(5e7).fill(1))</script>"
"""It keeps memory that does not count as memory of scripts."""
POISON = {"/hang": HANG, "/crash": CRASH, "/leak": LEAK}


class Site:
    """The site, until it is closed."""

    def __init__(self, good: int, port: int = 0, poison: tuple[str, ...] = tuple(POISON)) -> None:
        self.good, self.poison = good, poison
        self.requests: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), lambda *of: _Answer(self, *of))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def paths(self) -> list[str]:
        """All that the first page links to."""
        return [f"/page/{n}" for n in range(self.good)] + list(self.poison)

    def html(self, path: str) -> str | None:
        if path == "/":
            return _page("All pages", self.paths)
        if path in POISON:
            return _page(f"Poison: {path[1:]}", [], POISON[path])
        if path in self.paths:
            title, links = f"Page {path.rpartition('/')[2]}", ["/", "/page/0"]
            if int(title[5:]) % 2:  # The title is written by a script, as on most pages today.
                return _page("…", links, f"<script>document.title = '{title}'</script>")
            return _page(title, links)
        return None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answer(BaseHTTPRequestHandler):
    """The answer to one request."""

    def __init__(self, site: Site, *of: object) -> None:
        self.site = site
        super().__init__(*of)  # type: ignore[arg-type]  # What the server gives to each handler.

    def do_GET(self) -> None:
        self.site.requests[self.path] += 1
        html = self.site.html(self.path)
        body = (html or "no such page").encode()
        self.send_response(200 if html else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The counter is enough."""


def _page(title: str, links: list[str], rest: str = "") -> str:
    shown = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    head = f'<title>{title}</title><link rel="icon" href="data:,">'
    return f"<!doctype html><html><head>{head}</head><body><ul>{shown}</ul>{rest}</body></html>"


@contextmanager
def serve(good: int = 6, port: int = 0, poison: tuple[str, ...] = tuple(POISON)) -> Iterator[Site]:
    site = Site(good, port, poison)
    try:
        yield site
    finally:
        site.close()
