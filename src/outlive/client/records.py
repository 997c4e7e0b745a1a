"""Keys for records: two findings of the same thing get the same key, so that it is stored once."""

from __future__ import annotations

from datetime import date

from outlive import wire

_FIRST = ("url", "title", "price_cents", "day", "kind")
"""Keys are stored, so these parts stay in the place that they have had in the hash since the first version."""


def dedupe_key(external_id: str | int | None = None, **parts: str | int | date | None) -> str:
    """`ext_<id>` if the source gives an id; otherwise a hash of the named parts that identify the finding.

    None and empty parts don't count, nor do query and fragment of `url`, nor case and spaces of `title`.
    """
    if external_id is not None and str(external_id) != "":
        return f"ext_{external_id}"
    import hashlib  # Not at the top: each fork of a zygote would pay for the libraries that come with it.
    from urllib.parse import urlsplit

    texts = {name: "" if part is None else str(part) for name, part in parts.items()}
    texts["url"] = urlsplit(texts.get("url", ""))._replace(query="", fragment="").geturl()
    texts["title"] = " ".join(texts.get("title", "").lower().split())
    facts = [texts.get(name, "") for name in _FIRST]
    if others := {name: text for name, text in texts.items() if text and name not in _FIRST}:
        facts.append(wire.encode(others).decode())
    return f"hash_{hashlib.sha256('|'.join(facts).encode()).hexdigest()[:16]}"
