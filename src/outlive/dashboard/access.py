"""Who may look and who may act: tokens, the signed cookie that a token is exchanged for, and what a form must prove.

There are two roles. A viewer reads. An operator also acts. A cookie is signed with a key that is derived from the
tokens of the settings, so all processes of a dashboard accept it, and a new token ends all sessions. The tokens of
people are in the database (`people`).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import hmac
import os
import secrets
import time
from collections import deque
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from outlive import validation
from outlive.dashboard.proxy import USER
from outlive.embedded import places
from outlive.errors import ConfigError, EmbeddedError

MIN_TOKEN = 16
MADE_BYTES = 12
"""Few enough for a link that fits on a line, and too many to guess."""
SESSION_S = 7 * 86400
MAX_COOKIE = 200
ATTEMPTS = 10
PER_S = 60.0
ADDRESSES = 1000


def new_token() -> str:
    return secrets.token_urlsafe(MADE_BYTES)


def kept_token(home: Path) -> str | None:
    """The token in the directory of the embedded server. It is made once, so links and sessions outlive a restart.

    None: there is no such directory, or it belongs to another user.
    """
    file = home / "dashboard-token"
    try:
        if not home.is_dir():
            return None
        places.prepare(places.Places(home))
        with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+") as kept:
            fcntl.flock(kept, fcntl.LOCK_EX)  # Two dashboards that start together share what the first one makes.
            if len(token := kept.read()) < MIN_TOKEN:  # It is new, or the disk was full.
                kept.seek(0)
                kept.write(token := new_token())
        return token
    except (EmbeddedError, OSError):
        return None


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"


class Access:
    """The tokens of one dashboard, and the sessions that they open."""

    def __init__(self, token: str, viewer_token: str | None = None) -> None:
        for name, one in (("dashboard_token", token), ("dashboard_viewer_token", viewer_token)):
            if one is not None and len(validation.text(name, one)) < MIN_TOKEN:
                raise ConfigError(f"{name} has fewer than {MIN_TOKEN} characters: make one with `openssl rand -hex 16`")
        if token == viewer_token:
            raise ConfigError("dashboard_token and dashboard_viewer_token are the same: viewers would be operators")
        self._tokens = [(Role.OPERATOR, token), *([(Role.VIEWER, viewer_token)] if viewer_token else [])]
        material = "\0".join(["outlive dashboard", token, viewer_token or ""])
        self._key = hashlib.sha256(material.encode()).digest()
        # Cookies don't know ports: two dashboards on one machine must not overwrite each other's.
        self.cookie = f"outlive_{hashlib.sha256(self._key).hexdigest()[:8]}"
        self._wrong_at = functools.lru_cache(ADDRESSES)(lambda address: deque[float](maxlen=ATTEMPTS))

    def role_of(self, token: str) -> Role | None:
        """The role that a token gives. Every token is compared, in constant time."""
        given = hashlib.sha256(token.encode(errors="replace")).digest()
        found = None
        for role, one in self._tokens:
            if hmac.compare_digest(given, hashlib.sha256(one.encode()).digest()):
                found = role
        return found

    def too_many(self, address: str) -> bool:
        """Whether many wrong tokens came from this address in the last minute.

        A right token is let in all the same: others may share its address, and any web page can make a browser send
        wrong ones. So this keeps no guesser out. What does is the length of a token.
        """
        times = self._wrong_at(address)
        return len(times) == ATTEMPTS and times[0] > time.monotonic() - PER_S

    def count_wrong(self, address: str) -> None:
        self._wrong_at(address).append(time.monotonic())

    def session(self, key: str) -> str:
        """The value of a new cookie, for the role or the person that this key stands for."""
        body = f"{key}.{int(time.time()) + SESSION_S}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._signature('session', body)}"

    def key_in(self, connection: HTTPConnection) -> str | None:
        value = connection.cookies.get(self.cookie, "")
        body, _, signature = value.rpartition(".")
        if len(value) > MAX_COOKIE or not hmac.compare_digest(
            signature.encode(), self._signature("session", body).encode()
        ):
            return None
        key, until, _ = body.split(".", 2)
        return key if int(until) > time.time() else None

    def proof(self, connection: HTTPConnection) -> str:
        """The value that forms of this session, or of a proxy's user, carry. A page of another site can't know it."""
        session = connection.cookies.get(self.cookie, "")
        return self._signature("form", session or f"user {connection.scope.get(USER, '')}")

    def proves(self, connection: HTTPConnection, given: str) -> bool:
        return hmac.compare_digest(self.proof(connection).encode(), given.encode(errors="replace"))

    def _signature(self, purpose: str, body: str) -> str:
        return hmac.digest(self._key, f"{purpose}\0{body}".encode(errors="replace"), "sha256").hex()


def refusal(connection: HTTPConnection) -> str | None:
    """Why a write is refused because of where it comes from; None if it comes from a page of this dashboard."""
    if (site := connection.headers.get("sec-fetch-site")) is not None and site != "same-origin":
        return "this request comes from another site"
    origin = connection.headers.get("origin")
    if origin is not None and _netloc(origin) != connection.headers.get("host", "").lower():
        return "this request has another origin than its host; a proxy in front must pass the header Host on"
    return None


def is_embedded_elsewhere(connection: HTTPConnection) -> bool:
    """Whether a page of another site loads this as an image or the like, and no person has followed a link."""
    headers = connection.headers
    return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
