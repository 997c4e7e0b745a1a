"""A home directory that goes away, and an embedded server in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from outlive import embedded

STOP_S = 60.0


@contextmanager
def temporary_home(program: str) -> Iterator[Path]:
    """A directory on disk. The usual temporary directory may live in memory, where fsync costs nothing."""
    disk = "/var/tmp" if Path("/var/tmp").is_dir() else None
    with TemporaryDirectory(prefix=f"outlive-{program}-", dir=disk, ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o755)  # When root starts a server, it runs under another account, which must get in here.
        yield Path(home)


@contextmanager
def temporary_server(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of an embedded server that stops afterwards."""
    try:
        yield embedded.ensure(home / "server", settings=settings)
    finally:
        embedded.release(home / "server", wait_s=STOP_S)
