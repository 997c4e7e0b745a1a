"""The cache of sources' answers: one SQLite file per machine, shared by all processes there.

The cache never fails a job. If its file can't be used, answers are fetched as if there were no cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import sqlite3
import stat
import struct
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from outlive import wire
from outlive.config import Config

T = TypeVar("T")
WAIT_S = 60.0
"""How long a process waits for the answer that another one fetches, before it fetches the answer itself."""
POLL_S = 0.02
KEPT_SHARE = 0.9
"""How full the cache is after an eviction."""
_SCHEMA = """
create table if not exists entries (key blob primary key, value blob not null, expires_at real not null) without rowid;
create index if not exists entries_by_end on entries (expires_at);
"""
_SIZE_BYTES = """
select (page_count - freelist_count) * page_size from pragma_page_count, pragma_freelist_count, pragma_page_size
"""
_EVICT = "delete from entries where key in (select key from entries order by expires_at limit 100)"

_log = logging.getLogger("outlive.cache")


class Cache:
    """The cache of one machine. Jobs use it through `Source.cached`."""

    def __init__(self, directory: Path, *, ttl_s: float, bound_bytes: int, enabled: bool = True) -> None:
        self.directory, self.ttl_s, self.bound_bytes, self.enabled = directory, ttl_s, bound_bytes, enabled
        self._connection: sqlite3.Connection | None = None
        self._complained = False
        _caches.add(self)

    @classmethod
    def of(cls, config: Config) -> Cache:
        directory, enabled = Path(config.cache_dir) if config.cache_dir else _home_directory(), config.cache_enabled
        if directory is None:
            directory = Path(tempfile.gettempdir()) / f"outlive-cache-{os.getuid()}"
            enabled = enabled and _is_private(directory)
        return cls(directory, ttl_s=config.cache_ttl_s, bound_bytes=config.cache_bytes, enabled=enabled)

    def get(self, source: str, parts: object, fn: Callable[[], T], *, ttl_s: float | None = None) -> T:
        """The cached answer, or else the answer of `fn`. A process waits while another one fetches the same answer."""
        if not self.enabled:
            return fn()
        key = key_of(source, parts)
        if known := self._find(key):
            return known[0]  # type: ignore[no-any-return]
        with contextlib.closing(_Flight(self.directory / "flights", key)) as flight:
            while flight.is_taken():
                time.sleep(POLL_S)
            if known := self._find(key):
                return known[0]  # type: ignore[no-any-return]
            return self._keep(key, fn(), ttl_s)

    async def aget(
        self, source: str, parts: object, fn: Callable[[], Awaitable[T]], *, ttl_s: float | None = None
    ) -> T:
        """The async twin of `get`."""
        if not self.enabled:
            return await fn()
        key = key_of(source, parts)
        if known := self._find(key):
            return known[0]  # type: ignore[no-any-return]
        with contextlib.closing(_Flight(self.directory / "flights", key)) as flight:
            while flight.is_taken():  # noqa: ASYNC110  # A lock of another process raises no event here.
                await asyncio.sleep(POLL_S)
            if known := self._find(key):
                return known[0]  # type: ignore[no-any-return]
            return self._keep(key, await fn(), ttl_s)

    def _find(self, key: bytes) -> tuple[Any] | None:
        query = "select value from entries where key = ? and expires_at > ?"
        if row := self._tried(lambda connection: connection.execute(query, (key, time.time())).fetchone()):
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # The entry is damaged: fetch it.
                return (wire.decode(row[0]),)
        return None

    def _keep(self, key: bytes, value: T, ttl_s: float | None) -> T:
        try:
            data = wire.encode(value, "the answer")
        except wire.NotJson as error:
            self._complain(f"an answer of a source can't be cached: {error}")
            return value
        if len(data) > self.bound_bytes // 4:
            return value
        until = time.time() + (self.ttl_s if ttl_s is None else ttl_s)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("insert or replace into entries values (?, ?, ?)", (key, data, until))
            self._evict(connection)

        self._tried(write)
        return value

    def _evict(self, connection: sqlite3.Connection) -> None:
        """Delete the entries that expire first, until the cache is below its bound."""
        bound_bytes: float = self.bound_bytes
        while connection.execute(_SIZE_BYTES).fetchone()[0] > bound_bytes:
            bound_bytes = self.bound_bytes * KEPT_SHARE
            if not connection.execute(_EVICT).rowcount:
                return

    def _tried(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """What the work returns, or None if the file can't be used. A damaged file is deleted."""
        try:
            return work(self._open())
        except (sqlite3.Error, OSError) as error:
            self._complain(f"the cache in {self.directory} can't be used, so answers are not cached: {error}")
            self.close()
            # Most errors about damage are of no subclass; no answer is long enough for a DataError.
            damage = type(error) in (sqlite3.DatabaseError, sqlite3.DataError)
            if damage or "unsupported file format" in str(error):
                for name in ("cache.sqlite", "cache.sqlite-wal", "cache.sqlite-shm"):
                    with contextlib.suppress(OSError):
                        (self.directory / name).unlink()
            return None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = sqlite3.connect(
                self.directory / "cache.sqlite", timeout=5.0, isolation_level=None, check_same_thread=False
            )
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = off")  # The cache may be lost when the machine crashes.
            connection.executescript(_SCHEMA)
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """Close the file. The next answer opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _complain(self, words: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s", words)


def _close_all() -> None:
    """Close all caches before a fork: SQLite's locks belong to the process, so a copied connection has none."""
    for cache in list(_caches):
        cache.close()


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
os.register_at_fork(before=_close_all)


class _Flight:
    """The right to fetch an answer, which one process per machine holds: a lock on one byte of a file."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._descriptor = -1
        self._until = time.monotonic() + WAIT_S
        start = int.from_bytes(key[:8], "big") >> 2
        self._lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def is_taken(self) -> bool:
        """Whether another process holds it. If locking fails or takes too long, no process waits for another."""
        if self._descriptor < 0 or time.monotonic() > self._until:
            return False
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, self._lock)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    def close(self) -> None:
        """Give the right back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def key_of(source: str, parts: str | Sequence[object] | Mapping[str, object] | object) -> bytes:
    """The key of the source and the parts. The order of named parts does not matter."""
    return hashlib.sha256(wire.encode([source, list(parts) if isinstance(parts, tuple) else parts])).digest()


def _home_directory() -> Path | None:
    """The directory for all processes of this user; None if the home directory can't be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.access(base, os.W_OK) or os.access(os.path.dirname(base), os.W_OK):
        return Path(base) / "outlive"
    return None


def _is_private(directory: Path) -> bool:
    """Whether only this user can write to a directory in a place that all users share. It is made if it is missing.

    A user who could write to it could forge the answers of sources. In a directory like /tmp only the owner of an entry
    can replace it, so checking once is enough.
    """
    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
    except OSError as error:
        _log.warning("the cache directory can't be made, so answers are not cached: %s", error)
        return False
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return True
    _log.warning(
        "%s is not a private directory of this user, so answers are not cached: remove it, or set cache_dir", directory
    )
    return False
