"""Shares one server among processes: holds this process' lease, and joins, starts or repairs the server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlive.embedded import starting
from outlive.embedded.keeper import POLL_S, lock_within, open_lock
from outlive.embedded.places import Places, default_directory, prepare
from outlive.errors import EmbeddedError

WAIT_S = starting.START_S
BROKEN_S = 1.0
"""How long a server may be marked ready and refuse connections, before its keeper stops it."""

TRIES = 3
DELETED_S = 3.0

_log = logging.getLogger("outlive.embedded")


@dataclass(slots=True)
class _Share:
    """This process' use of one server. A forked child inherits the open lease, and so uses it too."""

    places: Places
    lease: int
    keeper: int
    """The open lock of the keeper, which shows its end even if the directory was deleted."""
    settings: Mapping[str, str] = field(default_factory=dict)
    binaries: Path | None = None

    @classmethod
    def take(cls, path: str) -> _Share:
        """Take the lease, after a keeper that stops its server and holds the lease exclusively until the end."""
        places = Places(Path(path))
        prepare(places)
        lease = open_lock(places.lease)
        if not lock_within(lease, WAIT_S, fcntl.LOCK_SH):
            os.close(lease)
            raise EmbeddedError(
                f"The server in {places.directory} is still stopping after {WAIT_S:.0f} s; see {places.log}."
            )
        return cls(places, lease, open_lock(places.keeper_lock))

    def close(self) -> None:
        """Close the lease without unlocking it: a forked child may still use the open file that the lock belongs to."""
        os.close(self.lease)
        os.close(self.keeper)


_shares: dict[str, _Share] = {}
_homes: dict[str, str] = {}
"""The directories of this process' servers, by address."""
_lock = threading.RLock()
_warned = False


def _forget_the_lock() -> None:
    """Replace the lock in a forked child: a thread that held it does not exist there."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_the_lock)


def ensure(
    directory: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    binaries: Path | None = None,
) -> str:
    """Start or join the server of `directory`, hold it until this process ends, and return its URL.

    Another call is cheap, and restarts a server that has died. `settings` and `binaries` apply when this process
    starts or restarts the server.
    """
    path = _absolute(directory)
    share = _shares.get(path)
    if share is not None and _is_same_file(share.lease, share.places.lease) and _is_ready(share.places):
        return share.places.url
    with _lock:
        try:
            share = _current_share(path)
            if settings is not None:
                share.settings = dict(settings)
            share.binaries = binaries or share.binaries
            _join_or_start(share)
        except BaseException as error:
            _drop(path)
            if isinstance(error, OSError):
                cure = "Set OUTLIVE_HOME to another directory."
                raise EmbeddedError(f"The embedded Postgres can't use {path}: {error}. {cure}") from error
            raise
        _homes[share.places.url] = path
        return share.places.url


def is_at(url: str, home: str | os.PathLike[str] | None) -> bool:
    """Whether this is the address of the server of `home`, or of the default directory."""
    return url == Places(Path(_absolute(home))).url


def join(url: str, home: str | os.PathLike[str] | None) -> None:
    """Start or join the server of `home` if this is its address."""
    if is_at(url, home):
        ensure(home)


def repair(url: str) -> None:
    """Restart the server of this address, if this process uses it and it has died."""
    if home := _homes.get(url):
        ensure(home)


def release(directory: str | os.PathLike[str] | None = None, *, wait_s: float = 0.0) -> bool:
    """Give up this process' lease. True if the server has stopped within `wait_s`."""
    path = _absolute(directory)
    places = Places(Path(path))
    with _lock:
        _homes.pop(places.url, None)
        _drop(path)
    deadline = time.monotonic() + wait_s
    while _is_held(places.keeper_lock):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def keep_on_exec() -> None:
    """Let the program that is about to replace this process keep the leases until it ends."""
    for share in _shares.values():
        os.set_inheritable(share.lease, True)


def fall_back(home: str | os.PathLike[str] | None = None) -> str:
    """The address of the server of `home`, or of the default directory. Logged once per process."""
    global _warned
    directory = home or default_directory()
    url = ensure(directory)
    if not _warned:
        _warned = True
        _log.warning(notice(directory))
    return url


def notice(directory: str | os.PathLike[str]) -> str:
    """The advice for a person who has named no database."""
    told = f"OUTLIVE_DATABASE_URL is not set: using the embedded Postgres in {os.fspath(directory)}"
    return f"{told}, at {Places(Path(_absolute(directory))).url}"


def first_notice(directory: str | os.PathLike[str]) -> bool:
    """Whether this is the first command that may give this advice. The directory remembers it."""
    try:
        (Places(Path(_absolute(directory))).locks / "noticed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _absolute(directory: str | os.PathLike[str] | None) -> str:
    return os.path.abspath(default_directory() if directory is None else directory)


def _current_share(path: str) -> _Share:
    """This process' share, with a new lease if the directory was deleted and made again."""
    share = _shares.get(path)
    if share is not None and _is_same_file(share.lease, share.places.lease):
        return share
    if share is not None:
        os.close(share.lease)
        # A stopping server removes its socket. Wait, or it removes the new server's.
        lock_within(share.keeper, DELETED_S, fcntl.LOCK_SH)
        os.close(share.keeper)
        del _shares[path]
    fresh = _shares[path] = _Share.take(path)
    if share is not None:
        fresh.settings, fresh.binaries = share.settings, share.binaries
    return fresh


def _drop(path: str) -> None:
    if share := _shares.pop(path, None):
        share.close()


def _join_or_start(share: _Share) -> None:
    places = share.places
    if _is_ready(places):
        return
    fd = open_lock(places.start_lock)
    try:
        if not lock_within(fd, WAIT_S):
            raise EmbeddedError(
                f"Another process has been starting the server in {places.directory} for too long; see {places.log}."
            )
        for _ in range(TRIES):  # An old server that is stopping may remove the new one's socket.
            if _await_keeper(places):
                return
            starting.start(places, settings=share.settings, binaries=share.binaries)
    finally:
        os.close(fd)
    if not _is_ready(places):
        raise EmbeddedError(
            f"The server in {places.directory} stopped {TRIES} times right after it started; see {places.log}."
        )


def _is_ready(places: Places) -> bool:
    """Whether the server has a keeper, is ready, and accepts a connection."""
    if not _is_held(places.keeper_lock) or not places.status.exists():
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5.0)
        connection.connect(str(places.socket))
        return True
    return False


def _await_keeper(places: Places) -> bool:
    """Wait while a keeper starts or stops, and stop one whose server can't be reached. False if no keeper is left."""
    deadline = time.monotonic() + WAIT_S
    broken_since: float | None = None
    while _is_held(places.keeper_lock):
        if _is_ready(places):
            return True
        now = time.monotonic()
        if not places.status.exists():
            broken_since = None
        elif broken_since is None:
            broken_since = now
        elif now - broken_since > BROKEN_S:
            with contextlib.suppress(OSError, ValueError):
                os.kill(json.loads(places.status.read_text(encoding="ascii"))["keeper"], signal.SIGTERM)
            broken_since = None
        if now > deadline:
            raise EmbeddedError(f"The server in {places.directory} is neither ready nor stopped; see {places.log}.")
        time.sleep(POLL_S)
    return False


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:  # The path is gone, or another thread has just closed the file.
        return False


def _is_held(path: Path) -> bool:
    """Whether a process holds the lock exclusively. This takes a shared lock for a moment, which disturbs no other."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
