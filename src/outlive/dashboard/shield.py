"""The outermost layer of the dashboard: which hosts and paths it answers for, how large a request may be, and the
headers that keep a page from doing anything but what its own files say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlive.dashboard.proxy import Proxy

MAX_BODY = 256 * 1024
PROBES = ("/healthz", "/readyz", "/metrics")
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    # With no-referrer, browsers send "Origin: null" with forms, and over plain HTTP nothing else tells their origin.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Shield:
    """`hosts`: the names that the dashboard answers for, whatever the port; None for any.

    On loopback this stops pages that point a name of their own at 127.0.0.1 (DNS rebinding). `root_path`: the path
    below which it answers, as if it were mounted there.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] | None, proxy: Proxy, root_path: str) -> None:
        self._app, self._proxy, self._root_path = app, proxy, root_path
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        self._proxy.read(scope)
        given = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refused: PlainTextResponse | None = None
        if self._hosts is not None and _name(given.get(b"host", "")) not in self._hosts:
            refused = PlainTextResponse("this dashboard answers on 127.0.0.1 and localhost only", 421)
        elif _malformed(given.get(b"host", "")):
            refused = PlainTextResponse("this request has a host that is no address", 400)
        elif not re.fullmatch(r"\d{1,10}", length := given.get(b"content-length", "0")) or int(length) > MAX_BODY:
            refused = PlainTextResponse("this request has more than 256 KiB: send large values in Python", 413)
        elif self._root_path and not self._enter(scope):
            where = f"this dashboard is below {self._root_path}/: a proxy in front must pass on paths as they are"
            refused = PlainTextResponse(where, 404)
        await (refused or self._app)(scope, _limited(receive), send_guarded)

    def _enter(self, scope: Scope) -> bool:
        """Whether a request is below the root path, which the scope then says. Probes may also come without it."""
        path = scope["path"]
        if path in PROBES:
            return True
        if path == self._root_path:
            scope["path"] = path = f"{path}/"
        scope["root_path"] = self._root_path
        return str(path).startswith(f"{self._root_path}/")


def _malformed(host: str) -> bool:
    try:
        urlsplit(f"http://{host}/").port  # noqa: B018  # It is parsed when it is asked for.
    except ValueError:
        return True
    return False


def _name(host: str) -> str:
    """The host without its port."""
    return host.lower().rpartition(":")[0] if ":" in host.rpartition("]")[2] else host.lower()


def _limited(receive: Receive) -> Receive:
    """Pass on a body up to the limit: one that comes in chunks has no length."""
    got = 0

    async def receive_limited() -> Message:
        nonlocal got
        message = await receive()
        got += len(message.get("body", b""))
        if got > MAX_BODY:
            return {"type": "http.disconnect"}
        return message

    return receive_limited
