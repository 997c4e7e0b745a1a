"""What a proxy in front of the dashboard says about a request, if the request comes from the proxy's address.

Without the setting `dashboard_proxy` no such header is believed: any client can send it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import Scope

MOST_NAME = 200
USER = "outlive.user"
"""The key in the scope of a request for the person that the proxy has authenticated."""


class Proxy:
    """Trusts the headers X-Forwarded-For and X-Forwarded-Proto of some addresses, and a header that names the user."""

    def __init__(self, addresses: Iterable[str] = (), user_header: str | None = None) -> None:
        self._networks = [ipaddress.ip_network(one) for one in addresses]
        self._user_header = None if user_header is None else user_header.encode()

    def read(self, scope: Scope) -> None:
        """Replace the address and the scheme of a request by those that the proxy has seen, and note the user."""
        scope.pop(USER, None)
        peer = (scope.get("client") or ("", 0))[0]
        if not self._networks or not self._trusts(peer):
            return
        given: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name, []).append(value.decode("latin-1"))
        if hops := ",".join(given.get(b"x-forwarded-for", [])):
            scope["client"] = (self._client(peer, hops), 0)
        if (scheme := given.get(b"x-forwarded-proto", [""])[-1].strip().lower()) in ("http", "https"):
            scope["scheme"] = scheme
        users = given.get(self._user_header, []) if self._user_header else []
        # A proxy that adds its header to one that the client has sent makes two: neither is believed.
        if len(users) == 1 and (user := _name(users[0])):
            scope[USER] = user

    def _trusts(self, address: str) -> bool:
        found = _ip(address)
        return found is not None and any(found in network for network in self._networks)

    def _client(self, peer: str, hops: str) -> str:
        """The last address in the chain that is no proxy of ours. What stands before it, the client can forge."""
        for hop in [peer, *reversed(hops.split(","))]:
            address = _ip(hop.strip())
            if address is None:
                break
            peer = str(address)
            if not self._trusts(peer):
                break
        return peer


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _name(value: str) -> str | None:
    """The name of a user as UTF-8, in which proxies send it; None if it is empty or no name."""
    try:
        name = value.encode("latin-1").decode().strip(" \t")
    except UnicodeDecodeError:
        return None
    return name if name.isprintable() and 0 < len(name) <= MOST_NAME else None
