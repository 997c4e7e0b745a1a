"""Keys for records: the same finding has the same key, wherever and however often it is found."""

from __future__ import annotations

import hashlib
from datetime import date
from urllib.parse import urlsplit, urlunsplit


def dedupe_key(
    external_id: str | int | None = None,
    *,
    url: str = "",
    title: str = "",
    price_cents: int | None = None,
    day: date | str | None = None,
    kind: str = "",
) -> str:
    """`ext_<id>` where the source gives one; else a hash of what makes the finding what it is."""
    if external_id is not None and str(external_id) != "":
        return f"ext_{external_id}"
    parts = urlsplit(url)
    facts = (
        urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
        " ".join(title.lower().split()),
        "" if price_cents is None else str(price_cents),
        "" if day is None else str(day),
        kind,
    )
    return f"hash_{hashlib.sha256('|'.join(facts).encode()).hexdigest()[:16]}"
