"""A network of the test's own between a worker and its database, with a router in the middle that can lose packets.

Three namespaces of the kernel: the tests' own, where the database listens; the router's; the worker's. Nothing here
touches the machine's own addresses: these are of the range that is kept for benchmarks.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from uuid import uuid4

import pytest


class Network:
    """`host` is the address of the database as the worker sees it. `within` runs a command where the worker is."""

    def __init__(self) -> None:
        name = uuid4().hex[:8]
        self._router, self._worker = f"router-{name}", f"worker-{name}"
        self._here = f"ot{name}"
        block = f"198.18.{os.getpid() % 256}"
        self.host, self._middle = f"{block}.1", f"{block}.2"
        self._behind, self._there = f"{block}.5", f"{block}.6"
        self._beyond = f"{block}.4/30"
        self.within = ["ip", "netns", "exec", self._worker]

    def make(self) -> None:
        _ip("netns", "add", self._router)
        _ip("netns", "add", self._worker)
        _ip("link", "add", self._here, "type", "veth", "peer", "name", "front", "netns", self._router)
        _ip("-n", self._router, "link", "add", "back", "type", "veth", "peer", "name", "way", "netns", self._worker)
        for where, device, address in (
            ((), self._here, self.host),
            (("-n", self._router), "front", self._middle),
            (("-n", self._router), "back", self._behind),
            (("-n", self._worker), "way", self._there),
        ):
            _ip(*where, "address", "add", f"{address}/30", "dev", device)
            _ip(*where, "link", "set", device, "up")
        _ip("-n", self._worker, "route", "add", "default", "via", self._behind)
        _ip("route", "add", self._beyond, "via", self._middle)
        _run("ip", "netns", "exec", self._router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.heal()

    def cut(self) -> None:
        """Drop every packet silently, in both directions."""
        self._rule("drop")

    def lose(self, percent: int) -> None:
        self._rule(f"numgen random mod 100 < {percent} drop")

    def heal(self) -> None:
        self._rule("accept")

    def _rule(self, rule: str) -> None:
        chain = f"chain way {{\ntype filter hook forward priority 0\n{rule}\n}}"
        text = f"table inet lossy\ndelete table inet lossy\ntable inet lossy {{\n{chain}\n}}\n"
        _run("ip", "netns", "exec", self._router, "nft", "-f", "-", text=text)

    def remove(self) -> None:
        for name in (self._worker, self._router):  # What connects them goes with them.
            with contextlib.suppress(OSError):
                _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str, text: str = "") -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def new_network() -> Iterator[Network]:
    """Make a network, or skip the test where none can be made."""
    if missing := [name for name in ("ip", "nft") if shutil.which(name) is None]:
        pytest.skip(f"{' and '.join(missing)} can't be found: apt install iproute2 nftables")
    network = Network()
    try:
        try:
            network.make()
        except OSError as error:
            pytest.skip(f"no network namespace can be made here: {error}")
        yield network
    finally:
        network.remove()
