"""The cache: what sources gave lately, in one SQLite file per machine, shared by all processes there.

It never costs a job: whatever goes wrong with the file, the answer is fetched as if there were no cache.
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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from outlive import wire
from outlive.config import Config

T = TypeVar("T")
WAIT_S = 60.0
"""So long somebody waits for another's answer, and then asks by himself."""
LOOK_S = 0.02
KEPT_SHARE = 0.9
"""What is left after an eviction, of the bound."""
_NOTHING = object()
_SCHEMA = """
create table if not exists entries (key blob primary key, value blob not null, expires_at real not null) without rowid;
create index if not exists entries_by_end on entries (expires_at);
"""

_log = logging.getLogger("outlive.cache")


class Cache:
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
            enabled = enabled and _is_ours(directory)
        return cls(directory, ttl_s=config.cache_ttl_s, bound_bytes=config.cache_bytes, enabled=enabled)

    def get(self, source: str, parts: object, fn: Callable[[], T], *, ttl_s: float | None = None) -> T:
        """What is known, or else what `fn` gives. Who comes while somebody fetches the same waits for him."""
        if not self.enabled:
            return fn()
        key = key_of(source, parts)
        if (known := self._find(key)) is not _NOTHING:
            return known  # type: ignore[return-value]
        with self._alone(key) as flight:
            while flight.wanting():
                time.sleep(LOOK_S)
            if (known := self._find(key)) is not _NOTHING:
                return known  # type: ignore[return-value]
            return self._keep(key, fn(), ttl_s)

    async def aget(
        self, source: str, parts: object, fn: Callable[[], Awaitable[T]], *, ttl_s: float | None = None
    ) -> T:
        """The async twin of `get`."""
        if not self.enabled:
            return await fn()
        key = key_of(source, parts)
        if (known := self._find(key)) is not _NOTHING:
            return known  # type: ignore[return-value]
        with self._alone(key) as flight:
            while flight.wanting():  # noqa: ASYNC110  # What another process does is no event of ours.
                await asyncio.sleep(LOOK_S)
            if (known := self._find(key)) is not _NOTHING:
                return known  # type: ignore[return-value]
            return self._keep(key, await fn(), ttl_s)

    def _find(self, key: bytes) -> object:
        with self._forgiving() as connection:
            if connection is not None:
                query = "select value from entries where key = ? and expires_at > ?"
                row = connection.execute(query, (key, time.time())).fetchone()
                if row is not None:
                    with contextlib.suppress(msgspec.DecodeError, TypeError):  # Not what was written: fetch it anew.
                        return wire.decode(row[0])
        return _NOTHING

    def _keep(self, key: bytes, value: T, ttl_s: float | None) -> T:
        try:
            data = wire.encode(value, "what is cached")
        except wire.NotJson as error:
            self._complain(f"an answer is not kept: {error}")
            return value
        if len(data) > self.bound_bytes // 4:
            return value
        with self._forgiving() as connection:
            if connection is not None:
                until = time.time() + (self.ttl_s if ttl_s is None else ttl_s)
                connection.execute("insert or replace into entries values (?, ?, ?)", (key, data, until))
                self._evict(connection)
        return value

    def _evict(self, connection: sqlite3.Connection) -> None:
        """Those whose end is nearest go first."""
        if self._size_bytes(connection) <= self.bound_bytes:
            return
        connection.execute("delete from entries where expires_at <= ?", (time.time(),))
        while self._size_bytes(connection) > self.bound_bytes * KEPT_SHARE:
            gone = connection.execute(
                "delete from entries where key in (select key from entries order by expires_at limit 100)"
            ).rowcount
            if not gone:
                return

    def _size_bytes(self, connection: sqlite3.Connection) -> int:
        count, free, size = (
            connection.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((count - free) * size)

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[sqlite3.Connection | None]:
        """The file, or None where there is none to be had. One that is broken is thrown away."""
        connection = None
        try:
            connection = self._open()
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
        try:
            yield connection
        except sqlite3.Error as error:
            self._give_up(error)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = sqlite3.connect(
                self.directory / "cache.sqlite", timeout=5.0, isolation_level=None, check_same_thread=False
            )
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = off")  # After a crash of the machine it may be thrown away.
            connection.executescript(_SCHEMA)
            self._connection = connection
        return self._connection

    def _give_up(self, error: Exception) -> None:
        self._complain(f"the cache in {self.directory} can't be used, and its answers are fetched anew: {error}")
        self.close()
        if type(error) is sqlite3.DatabaseError:  # The file is broken (all else is a subclass): the next is new.
            for name in ("cache.sqlite", "cache.sqlite-wal", "cache.sqlite-shm"):
                with contextlib.suppress(OSError):
                    (self.directory / name).unlink()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        with contextlib.suppress(sqlite3.Error):
            if connection is not None:
                connection.close()

    def _complain(self, words: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s", words)

    @contextlib.contextmanager
    def _alone(self, key: bytes) -> Iterator[_Flight]:
        flight = _Flight(self.directory / "flights", key)
        try:
            yield flight
        finally:
            flight.close()


def _close_all() -> None:
    """SQLite's locks belong to a process, and a copy of a connection does not know that it has none: none is copied."""
    for cache in list(_caches):
        cache.close()


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
os.register_at_fork(before=_close_all)


class _Flight:
    """The right to fetch an answer, held by one on this machine: a lock on one byte of a file, which dies with us."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._descriptor = -1
        self._until = time.monotonic() + WAIT_S
        start = int.from_bytes(key[:8], "big") >> 2
        self._lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def wanting(self) -> bool:
        """Whether somebody else has it. Where it can't be had, or not in time, everybody fetches for himself."""
        if self._descriptor < 0 or time.monotonic() > self._until:
            return False
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, self._lock)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def key_of(source: str, parts: str | Sequence[object] | Mapping[str, object] | object) -> bytes:
    """From the source and the parts, whatever their order where they have names."""
    return hashlib.sha256(wire.encode([source, list(parts) if isinstance(parts, tuple) else parts])).digest()


def _home_directory() -> Path | None:
    """One for all processes of this user on this machine; None where his home can't be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.access(base, os.W_OK) or os.access(os.path.dirname(base), os.W_OK):
        return Path(base) / "outlive"
    return None


def _is_ours(directory: Path) -> bool:
    """Whether only we can write to a directory, which is made if need be, in a place where everybody can make one.

    Whoever else could would decide what our jobs take for a source's answers. Where the place is as it should be, only
    its owner can put another in its place: one look is enough.
    """
    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
    except OSError as error:
        _log.warning("there is no cache, and answers are fetched anew: %s", error)
        return False
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return True
    _log.warning(
        "%s is not a directory that only we can write to: there is no cache, and answers are fetched anew", directory
    )
    return False
