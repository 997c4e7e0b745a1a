"""Getting pages from the web, without becoming somebody's way into our own network.

An address in a page, or a redirect, may lead anywhere: to this machine, to the database, to the cloud's metadata. So
the name is resolved here, what is not public is refused, and the connection goes to the address that was looked at:
a name that means something else a moment later changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from typing import cast

import httpx2

import outlive

TIMEOUT_S = 3.0
MAX_PAGE_BYTES = 2_000_000
MAX_REDIRECTS = 3
MAX_PATIENCE_S = 60.0
_TLS = httpx2.create_ssl_context()
"""Made when the module is imported, once per worker: the processes of all its jobs are forked with it."""


class Refused(outlive.Fail):
    """We don't go there. To try again would not help."""


def get(url: str, *, allowed: Collection[str] = ()) -> str:
    """The text of a page. `allowed` are the places, as host:port, that may be private."""
    with (
        httpx2.Client(
            transport=_Guarded(allowed),
            timeout=TIMEOUT_S,
            follow_redirects=True,
            max_redirects=MAX_REDIRECTS,
            trust_env=False,  # A proxy would resolve the name by itself.
        ) as client,
        client.stream("GET", url) as response,
    ):
        _expect_page(response)
        return _text(response)


class _Guarded(httpx2.BaseTransport):
    """Below the redirects, so that each of them is looked at as well."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = allowed
        self._below = httpx2.HTTPTransport(verify=_TLS, trust_env=False)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        if url.scheme not in ("http", "https"):
            raise Refused(f"{url.scheme} is not for pages")
        port = url.port or (443 if url.scheme == "https" else 80)
        address = resolve(url.host, port, private=f"{url.host}:{port}" in self._allowed)
        # The Host header was set before, and the certificate must be that of the name.
        request.extensions = {**request.extensions, "sni_hostname": url.host}
        request.url = url.copy_with(host=address)
        try:
            return self._below.handle_request(request)
        finally:
            request.url = url  # A relative redirect is relative to the name.

    def close(self) -> None:
        self._below.close()


def resolve(host: str, port: int, *, private: bool = False) -> str:
    """An address of the host; one that is not public only where that is said to be right."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ConnectionError(f"{host} can't be resolved: {error.strerror}") from None
    addresses = [cast("str", place[0]) for *_, place in found]
    for address in addresses:
        if private or is_public(address):
            return address
    raise Refused(f"{host} is at {', '.join(addresses)}, which is not public")


def is_public(address: str) -> bool:
    """Whether an address belongs to the world. One with another address inside might lead back to us, and does not."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and (
        ip.is_site_local or ip.ipv4_mapped or ip.sixtofour or ip.teredo or ip in _NAT64
    ):
        return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def _expect_page(response: httpx2.Response) -> None:
    """An error that passes is for the task's backoff, unless the site says itself when to come back."""
    status = response.status_code
    if status == 429:
        raise outlive.Retry(f"{response.url.host} asks for patience", after=_patience_s(response))
    if 400 <= status < 500:
        raise outlive.Fail(f"{response.url} answers {status}")
    if status != 200:
        raise ConnectionError(f"{response.url.host} answers {status}")


def _patience_s(response: httpx2.Response) -> float:
    """Retry-After may be a date too; and nobody may keep us for days."""
    said = response.headers.get("retry-after", "")
    return min(float(said), MAX_PATIENCE_S) if said.isdecimal() else 1.0


def _text(response: httpx2.Response) -> str:
    """The body, as far as we want it."""
    read = bytearray()
    for chunk in response.iter_bytes():
        read += chunk
        if len(read) > MAX_PAGE_BYTES:
            raise outlive.Fail(f"{response.url} has more than {MAX_PAGE_BYTES:,} bytes")
    return read.decode(response.encoding or "utf-8", errors="replace")
