"""A process that wants an answer from the cache. The tests of the cache start many of them."""

import os
import sys
from pathlib import Path

from outlive.client.cache import Cache
from tests.waiting import eventually

BOUND_BYTES = 1_000_000


def fetch(directory: Path) -> str:
    """Note that the source was called, and answer when the file `go` is there."""
    with (directory / "calls").open("a") as calls:
        calls.write(f"{os.getpid()}\n")
    eventually((directory / "go").exists, within_s=60)
    return "answer"


def ask(directory: Path) -> str:
    (directory / f"ready.{os.getpid()}").touch()
    return Cache(directory / "cache", ttl_s=3600, bound_bytes=BOUND_BYTES).get(
        "shop", ["key"], lambda: fetch(directory)
    )


def fork(directory: Path) -> str:
    """Use the cache on both sides of a fork. An answer that the child stores after its parent has closed is kept."""
    cache = Cache(directory / "cache", ttl_s=3600, bound_bytes=BOUND_BYTES)
    cache.get("shop", "before", lambda: 1)
    (opened, tell_opened), (closed, tell_closed) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        cache.get("shop", "before", lambda: 2)
        os.write(tell_opened, b".")
        os.read(closed, 1)
        cache.get("shop", "after", lambda: "kept")
        os.kill(os.getpid(), 9)
    os.read(opened, 1)
    cache.get("shop", "before", lambda: 3)
    cache.close()
    os.write(tell_closed, b".")
    os.waitpid(child, 0)
    return cache.get("shop", "after", lambda: "lost")


if __name__ == "__main__":
    print({"ask": ask, "fork": fork}[sys.argv[1]](Path(sys.argv[2])))
