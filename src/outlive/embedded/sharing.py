"""Shares one server among processes: holds this process' lease, and joins, starts or repairs the server."""

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlive.embedded import starting
from outlive.embedded.keeper import POLL_S, lock_within, open_lock
from outlive.embedded.places import Places, default_directory, prepare
from outlive.errors import EmbeddedError

WAIT_S = starting.START_S
BROKEN_S = 1.0
"""How long a server may be marked ready and refuse connections, before its keeper is told to stop it."""

TRIES = 3
DELETED_S = 3.0

_log = logging.getLogger("outlive.embedded")


@dataclass(frozen=True, slots=True)
class _Server:
    """The processes and files of the server that was joined, to check cheaply that it is still the same."""

    processes: tuple[int, ...]
    files: tuple[tuple[Path, int], ...]

    def is_unchanged(self) -> bool:
        if not self.processes:
            return False
        poll = select.poll()
        for process in self.processes:
            poll.register(process, select.POLLIN)
        if poll.poll(0):  # A pidfd becomes readable when its process ends.
            return False
        try:
            return all(os.stat(path).st_ino == inode for path, inode in self.files)
        except OSError:
            return False

    def await_end(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        for process in self.processes:
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


@dataclass(slots=True)
class _Share:
    """This process' use of one server. A forked child inherits the open lease, and so uses it too."""

    places: Places
    lease: int | None
    settings: Mapping[str, str] = field(default_factory=dict)
    binaries: Path | None = None
    server: _Server | None = None

    def forget_server(self) -> None:
        server, self.server = self.server, None
        for process in server.processes if server else ():
            os.close(process)

    def let_go(self) -> None:
        """Close the lease without unlocking it: a forked child may still use the open file that the lock belongs to."""
        lease, self.lease = self.lease, None
        if lease is not None:
            os.close(lease)


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
    if share is not None and share.server is not None and share.server.is_unchanged():
        return share.places.url
    with _lock:
        try:
            share = _current_share(path)
            if settings is not None:
                share.settings = dict(settings)
            share.binaries = binaries or share.binaries
            if share.server is None or not share.server.is_unchanged():
                _join_or_start(share)
        except OSError as error:
            _drop(path)
            raise EmbeddedError(
                f"The embedded Postgres can't use {path}: {error}. Set OUTLIVE_HOME to another directory."
            ) from error
        except BaseException:
            _drop(path)
            raise
        _homes[share.places.url] = path
        return share.places.url


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


def fall_back(home: str | os.PathLike[str] | None = None) -> str:
    """The address of the server of `home`, or of the default directory. Logged once per process."""
    global _warned
    directory = home or default_directory()
    url = ensure(directory)
    if not _warned:
        _warned = True
        _log.warning("OUTLIVE_DATABASE_URL is not set: using the embedded Postgres in %s", directory)
    return url


def _absolute(directory: str | os.PathLike[str] | None) -> str:
    return os.path.abspath(default_directory() if directory is None else directory)


def _current_share(path: str) -> _Share:
    """This process' share, with a new lease if the directory was deleted and made again."""
    places = Places(Path(path))
    share = _shares.get(path)
    if share is None:
        share = _shares[path] = _Share(places, _take_lease(places))
    elif share.lease is None or not _is_same_file(share.lease, places.lease):
        share.let_go()
        if share.server is not None:
            # A stopping server removes its socket. Wait, or it removes the new server's.
            share.server.await_end(DELETED_S)
        share.lease = _take_lease(places)
    return share


def _take_lease(places: Places) -> int:
    prepare(places)
    lease = open_lock(places.lease)
    # A keeper that stops its server holds the lease exclusively until the end.
    if not lock_within(lease, WAIT_S, fcntl.LOCK_SH):
        os.close(lease)
        raise EmbeddedError(
            f"The server in {places.directory} is still stopping after {WAIT_S:.0f} s; see {places.log}."
        )
    return lease


def _drop(path: str) -> None:
    if share := _shares.pop(path, None):
        share.forget_server()
        share.let_go()


def _join_or_start(share: _Share) -> None:
    share.forget_server()
    share.server = _find_server(share.places)
    if share.server is not None:
        return
    with _locked_to_start(share.places):
        for _ in range(TRIES):  # An old server that is stopping may remove the new one's socket.
            share.server = _await_keeper(share.places)
            if share.server is not None:
                return
            starting.start(share.places, settings=share.settings, binaries=share.binaries)
    share.server = _find_server(share.places)
    if share.server is None:
        raise EmbeddedError(
            f"The server in {share.places.directory} stopped {TRIES} times right after it started; "
            f"see {share.places.log}."
        )


def _find_server(places: Places) -> _Server | None:
    """The server, if it is ready and accepts a connection; else None."""
    if not _is_held(places.keeper_lock):
        return None
    try:
        processes = json.loads(places.status.read_text(encoding="ascii"))
        files = tuple((path, path.stat().st_ino) for path in (places.status, places.socket))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5.0)
            connection.connect(str(places.socket))
    except (OSError, ValueError):
        return None
    return _Server(_open_processes([processes["keeper"], processes["postmaster"]]), files)


def _open_processes(pids: list[int]) -> tuple[int, ...]:
    """Handles of processes, which a later process with the same pid can't take over. Empty if they can't be opened."""
    opened: list[int] = []
    with contextlib.suppress(OSError):
        for pid in pids:
            opened.append(os.pidfd_open(pid))
        return tuple(opened)
    for fd in opened:
        os.close(fd)
    return ()


def _await_keeper(places: Places) -> _Server | None:
    """Wait while a keeper starts or stops, and stop one whose server can't be reached. None if no keeper is left."""
    deadline = time.monotonic() + WAIT_S
    broken_since: float | None = None
    while _is_held(places.keeper_lock):
        if server := _find_server(places):
            return server
        now = time.monotonic()
        if not places.status.exists():
            broken_since = None
        elif broken_since is None:
            broken_since = now
        elif now - broken_since > BROKEN_S:
            _end_keeper(places)
            broken_since = None
        if now > deadline:
            raise EmbeddedError(f"The server in {places.directory} is neither ready nor stopped; see {places.log}.")
        time.sleep(POLL_S)
    return None


def _end_keeper(places: Places) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.kill(json.loads(places.status.read_text(encoding="ascii"))["keeper"], signal.SIGTERM)


@contextlib.contextmanager
def _locked_to_start(places: Places) -> Iterator[None]:
    fd = open_lock(places.start_lock)
    try:
        if not lock_within(fd, WAIT_S):
            raise EmbeddedError(
                f"Another process has been starting the server in {places.directory} for too long; see {places.log}."
            )
        yield
    finally:
        os.close(fd)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
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
