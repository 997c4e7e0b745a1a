"""What must not be in the built site: anything that a browser would fetch from elsewhere, and malformed links.

MkDocs itself refuses dead links and anchors between our pages, because it builds with --strict. Links that lead
elsewhere are only read, never followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

LOADED = {"src", "srcset", "poster", "data"}
"""The attributes whose address a browser fetches by itself; `href` too, in the `link`s that fetch something."""
NOT_FETCHED = {"canonical", "next", "prev", "alternate"}
CSS_ADDRESS = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


def complaints(site: Path) -> Iterator[str]:
    """Every fault of the built site, as a line."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            found = of_stylesheet(text) if path.suffix == ".css" else of_page(text)
            yield from (f"{path.relative_to(site)}: {one}" for one in found)


def of_stylesheet(text: str) -> list[str]:
    addresses = [first or second for first, second in CSS_ADDRESS.findall(text)]
    return [f"a browser would fetch {address}" for address in addresses if is_foreign(address)]


def of_page(text: str) -> list[str]:
    reader = _Reader()
    reader.feed(text)
    return reader.found


def is_foreign(address: str) -> bool:
    return address.strip().lower().startswith(("http:", "https:", "//"))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.in_style = tag == "style"
        self.found += of_stylesheet(given.get("style", ""))
        fetched = [given[name] for name in LOADED if name in given]
        if tag == "link" and not NOT_FETCHED & set(given.get("rel", "").split()):
            fetched.append(given.get("href", ""))
        self.found += [f"a browser would fetch {address}" for address in fetched if is_foreign(address)]
        if tag == "a" and is_foreign(given.get("href", "")) and not _is_well_formed(given["href"]):
            self.found.append(f"a link leads to {given['href']}, which is not an address")

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.found += of_stylesheet(data)


def _is_well_formed(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return "." in (parts.hostname or "") and not re.search(r"\s", address) and (parts.port or 1) > 0
    except ValueError:
        return False
