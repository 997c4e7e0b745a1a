"""Where the peers live: a virtual environment for each in a cache directory, and a Redis that goes away."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outlive.temporary.program import started
from outlive_lab.peers.plan import System

INSTALL_S = 300.0
START_S = 10.0


class Missing(Exception):
    """A peer that can't be measured here. The text says what to do about it."""


def cache() -> Path:
    """The directory of all environments. It may be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "outlive", "peers")


def programs(system: System) -> Path:
    """The directory of a peer's programs, `python` among them. Installs the peer if it is not there yet."""
    if not system.install:
        return Path(sys.executable).parent
    wanted = hashlib.sha256(" ".join([sys.version, *system.install]).encode()).hexdigest()[:12]
    place = cache() / f"{system.name}-{wanted}"
    if not (place / "installed").exists():
        _install(system, place)
    return place / "bin"


def _install(system: System, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    uv = [sys.executable, "-m", "uv", "--quiet"]
    trust = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}  # The old and the new name of one variable.
    for words in (
        [*uv, "venv", "--python", sys.executable, str(place)],
        [*uv, "pip", "install", "--python", str(place / "bin" / "python"), *system.install],
    ):
        try:
            subprocess.run(words, env=trust | os.environ, check=True, capture_output=True, text=True, timeout=INSTALL_S)
        except subprocess.CalledProcessError as error:
            raise Missing(f"can't be installed: {' '.join(error.stderr.split())[-200:]}") from error
        except subprocess.TimeoutExpired as error:
            raise Missing(f"can't be installed within {INSTALL_S:.0f} s") from error
    (place / "installed").touch()


def installed(system: System) -> list[str]:
    """Every package of a peer's environment, with its version."""
    words = [sys.executable, "-m", "uv", "pip", "freeze", "--quiet", "--python", str(programs(system) / "python")]
    return subprocess.run(words, capture_output=True, text=True).stdout.split()


@contextmanager
def redis_server(home: Path) -> Iterator[str | None]:
    """The address of a Redis with the defaults of its package; None if there is no redis-server."""
    if (program := shutil.which("redis-server")) is None:
        yield None
        return
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home)]
    with started(words, environment=dict(os.environ), directory=home) as server:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            server.expect_alive()
            if time.monotonic() > deadline:
                raise Missing("redis-server did not start")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as client:
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
    except OSError:
        return False
