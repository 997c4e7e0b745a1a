"""The paths of an embedded server, the checks of its directory, and the account that it runs as."""

import contextlib
import hashlib
import os
import pwd
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from outlive.errors import EmbeddedError

PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"
SOCKET_PATH_LIMIT_BYTES = 107
PATH_LIMIT_BYTES = 900
"""Postgres cuts paths at 1023 bytes. This leaves room for the longest path below the directory."""


class Places:
    """The paths of a server, and its address. Lock files are never removed: a lock on a removed file has no effect."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.binaries = directory / "binaries"
        self.log = directory / "postgres.log"
        self.keeper_log = directory / "keeper.log"
        self.status = directory / "server.json"  # The process ids of the server. It exists while the server is ready.
        self.locks = directory / "locks"
        self.lease = self.locks / "lease"
        self.start_lock = self.locks / "start"
        self.keeper_lock = self.locks / "keeper"
        self.server_lock = self.locks / "server"
        self.socket_directory = _socket_directory(directory)
        self.socket = self.socket_directory / SOCKET_NAME
        # The address names the port, because libpq would take PGPORT otherwise.
        self.url = f"postgresql:///postgres?host={quote(str(self.socket_directory))}&port={PORT}&user=postgres"


def _socket_directory(directory: Path) -> Path:
    """Inside the directory, unless its path is too long for a socket or has a comma, a separator of libpq."""
    inside = directory / "socket"
    if len(os.fsencode(inside / SOCKET_NAME)) <= SOCKET_PATH_LIMIT_BYTES and "," not in str(inside):
        return inside
    key = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    base = "/run" if os.geteuid() == 0 and os.path.isdir("/run") else "/tmp"
    return Path(base, f"outlive-{os.geteuid()}-{key}")


def default_directory() -> Path:
    if home := os.environ.get("OUTLIVE_HOME"):
        return Path(home).expanduser()
    if os.geteuid() == 0:
        return Path("/var/lib/outlive")
    shared = os.environ.get("XDG_DATA_HOME")
    return (Path(shared) if shared else Path.home() / ".local" / "share") / "outlive"


def prepare(places: Places) -> None:
    """Make the directory, or use one that outlive has made or that is empty; refuse any other."""
    directory = places.directory
    if len(os.fsencode(directory)) > PATH_LIMIT_BYTES:
        raise EmbeddedError(f"The path {directory} is too long for Postgres; set OUTLIVE_HOME to a shorter one.")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        _refuse_foreign(places)
        _close_to_others(places)
        places.locks.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(
            f"The embedded Postgres can't use {directory}: {error.strerror}. "
            "Set OUTLIVE_HOME to another directory, or OUTLIVE_DATABASE_URL to a database."
        ) from error


def _refuse_foreign(places: Places) -> None:
    """Refuse a directory of another user or with other files: it becomes private, and others would lose access."""
    directory, found = places.directory, places.directory.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise EmbeddedError(
            f"{directory} is a symbolic link, which another user could redirect; "
            "set OUTLIVE_HOME to the directory itself."
        )
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedError(f"{directory} is not a directory; set OUTLIVE_HOME to one.")
    _refuse_owner(directory, found.st_uid)
    names = os.listdir(directory)
    if names and places.locks.name not in names:
        raise EmbeddedError(
            f"{directory} holds other files and was not made by outlive; "
            "set OUTLIVE_HOME to an empty or a new directory."
        )


def _refuse_owner(path: Path, owner: int) -> None:
    trusted, who = {os.geteuid()}, "you"
    if os.geteuid() == 0:
        trusted |= {account.uid for account in _unprivileged_accounts()}
        who = "root, postgres or nobody"
    if owner not in trusted:
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"user {owner}"
        raise EmbeddedError(
            f"{path} belongs to {name}, but it must belong to {who}; set OUTLIVE_HOME to another directory."
        )


def _close_to_others(places: Places) -> None:
    """Set mode 0700. For root 0710: the group of the server's account must pass through."""
    directory, found = places.directory, places.directory.stat()
    mode, group = 0o700, found.st_gid
    if os.geteuid() == 0 and found.st_uid == 0:
        mode, group = 0o710, server_account(places, owner=0).gid
    if group != found.st_gid:
        os.chown(directory, -1, group)
    if stat.S_IMODE(found.st_mode) != mode:
        os.chmod(directory, mode)


class Account(NamedTuple):
    """The user that the server runs as when root starts it: Postgres refuses to run as root."""

    name: str
    uid: int
    gid: int


def account_to_drop_to(places: Places) -> Account | None:
    """For root the account that the server runs as, which must be able to reach the directory; else None."""
    if os.geteuid() != 0:
        return None
    account = server_account(places, owner=places.directory.stat().st_uid)
    for part in places.directory.parents:
        if not _may_pass(part.stat(), account):
            raise EmbeddedError(
                f"Started by root, the server runs as {account.name}, which can't pass through {part}; "
                "set OUTLIVE_HOME to another directory, such as /var/lib/outlive."
            )
    return account


def server_account(places: Places, *, owner: int) -> Account:
    """The owner of an existing cluster or of the directory; if that is root, `postgres` or `nobody`."""
    if places.data.exists():
        owner = places.data.lstat().st_uid
        _refuse_owner(places.data, owner)
    accounts = _unprivileged_accounts()
    if not accounts:
        raise EmbeddedError(
            "Postgres refuses to run as root, and this machine has neither of the users postgres and nobody; "
            "add one, or set OUTLIVE_DATABASE_URL to a database."
        )
    return next((account for account in accounts if account.uid == owner), accounts[0])


def _may_pass(found: os.stat_result, account: Account) -> bool:
    group = stat.S_IXGRP if found.st_gid == account.gid else stat.S_IXOTH
    return bool(found.st_mode & (stat.S_IXUSR if found.st_uid == account.uid else group))


def _unprivileged_accounts() -> list[Account]:
    accounts = []
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            accounts.append(Account(name, found.pw_uid, found.pw_gid))
    return accounts
