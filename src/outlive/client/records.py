"""Keys for records: two findings of the same thing get the same key, so that it is stored once."""

from __future__ import annotations

from datetime import date


def dedupe_key(
    external_id: str | int | None = None,
    *,
    url: str = "",
    title: str = "",
    price_cents: int | None = None,
    day: date | str | None = None,
    kind: str = "",
) -> str:
    """`ext_<id>` if the source gives an id; otherwise a hash of the facts that identify the finding."""
    if external_id is not None and str(external_id) != "":
        return f"ext_{external_id}"
    import hashlib  # Not at the top: each fork of a zygote would pay for the libraries that come with it.
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    facts = (
        urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
        " ".join(title.lower().split()),
        "" if price_cents is None else str(price_cents),
        "" if day is None else str(day),
        kind,
    )
    return f"hash_{hashlib.sha256('|'.join(facts).encode()).hexdigest()[:16]}"
