"""Where everything of an embedded server lives, and which directories are refused."""

import contextlib
import hashlib
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from outlive.errors import EmbeddedError

PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"
SOCKET_PATH_LIMIT_BYTES = 107
PATH_LIMIT_BYTES = 900
"""Postgres cuts its own paths at 1023 bytes; this leaves room for the longest that it makes below ours."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a server runs as when root starts it: Postgres refuses to run as root."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of one server. The locks stay when it stops: a lock file that is removed locks nobody out."""

    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def binaries(self) -> Path:
        return self.directory / "binaries"

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def keeper_log(self) -> Path:
        return self.directory / "keeper.log"

    @property
    def status(self) -> Path:
        """The process ids of a server that is ready; there only while it is."""
        return self.directory / "server.json"

    @property
    def locks(self) -> Path:
        return self.directory / "locks"

    @property
    def lease(self) -> Path:
        return self.locks / "lease"

    @property
    def start_lock(self) -> Path:
        return self.locks / "start"

    @property
    def keeper_lock(self) -> Path:
        return self.locks / "keeper"

    @property
    def server_lock(self) -> Path:
        return self.locks / "server"

    @property
    def socket_directory(self) -> Path:
        """Inside the directory, unless its path is too long for a socket or has a comma, which libpq splits at."""
        inside = self.directory / "socket"
        if len(os.fsencode(inside / SOCKET_NAME)) <= SOCKET_PATH_LIMIT_BYTES and "," not in str(inside):
            return inside
        key = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        base = "/run" if os.geteuid() == 0 and os.path.isdir("/run") else "/tmp"
        return Path(base, f"outlive-{os.geteuid()}-{key}")

    @property
    def socket(self) -> Path:
        return self.socket_directory / SOCKET_NAME

    @property
    def url(self) -> str:
        """The port is named because PGPORT would be obeyed otherwise."""
        return f"postgresql:///postgres?host={quote(str(self.socket_directory))}&port={PORT}&user=postgres"


def default_directory() -> Path:
    if home := os.environ.get("OUTLIVE_HOME"):
        return Path(home).expanduser()
    if os.geteuid() == 0:
        return Path("/var/lib/outlive")
    shared = os.environ.get("XDG_DATA_HOME")
    return (Path(shared) if shared else Path.home() / ".local" / "share") / "outlive"


def prepare(places: Places) -> None:
    """Make the directory, or take one that is ours or empty; refuse any other."""
    directory = places.directory
    if len(os.fsencode(directory)) > PATH_LIMIT_BYTES:
        raise EmbeddedError(f"The path {directory} is too long for Postgres; name a shorter one in OUTLIVE_HOME.")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        _refuse_foreign(directory)
        _refuse_occupied(places)
        _close_to_others(directory)
        places.locks.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(
            f"The embedded Postgres can't use {directory}: {error.strerror}. "
            "Name another directory in OUTLIVE_HOME, or a database in OUTLIVE_DATABASE_URL."
        ) from error


def _refuse_foreign(directory: Path) -> None:
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise EmbeddedError(
            f"{directory} is a symbolic link, which somebody could turn elsewhere; name the directory itself."
        )
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedError(f"{directory} is not a directory; name one in OUTLIVE_HOME.")
    _refuse_owner(directory, found.st_uid)


def _refuse_owner(path: Path, owner: int) -> None:
    trusted = {os.geteuid()}
    if os.geteuid() == 0:
        trusted |= {account.uid for account in _unprivileged_accounts()}
    if owner not in trusted:
        who = "root, postgres or nobody" if os.geteuid() == 0 else "you"
        raise EmbeddedError(
            f"{path} belongs to {_user_name(owner)}, and only one that belongs to {who} is used; "
            "name another directory in OUTLIVE_HOME."
        )


def _refuse_occupied(places: Places) -> None:
    """Others' files would lose their access when we close the directory to all but ourselves."""
    names = os.listdir(places.directory)
    if names and places.locks.name not in names:
        raise EmbeddedError(
            f"{places.directory} holds other files and was not made by outlive; "
            "name an empty or a new directory in OUTLIVE_HOME."
        )


def _close_to_others(directory: Path) -> None:
    """Mode 0700; as root the server's account must pass through, so its group may, and only that."""
    found = directory.stat()
    mode, group = 0o700, found.st_gid
    if os.geteuid() == 0 and found.st_uid == 0:
        mode, group = 0o710, server_account(Places(directory), owner=0).gid
    if group != found.st_gid:
        os.chown(directory, -1, group)
    if stat.S_IMODE(found.st_mode) != mode:
        os.chmod(directory, mode)


def account_to_drop_to(places: Places) -> Account | None:
    """None for an ordinary user; for root the account that the server gets, once it is sure that it gets there."""
    if os.geteuid() != 0:
        return None
    account = server_account(places, owner=places.directory.stat().st_uid)
    for part in places.directory.parents:
        if not may_pass(part, account):
            raise EmbeddedError(
                f"As root the server runs as {account.name}, who can't pass through {part}; "
                "name a directory elsewhere in OUTLIVE_HOME, such as /var/lib/outlive."
            )
    return account


def server_account(places: Places, *, owner: int) -> Account:
    """An existing cluster's owner; else the directory's, unless that is root; else postgres, else nobody."""
    if places.data.exists():
        owner = places.data.lstat().st_uid
        _refuse_owner(places.data, owner)
    accounts = _unprivileged_accounts()
    if not accounts:
        raise EmbeddedError(
            "Postgres refuses to run as root and there is no user postgres or nobody to run it as; "
            "add one, or name a database in OUTLIVE_DATABASE_URL."
        )
    return next((account for account in accounts if account.uid == owner), accounts[0])


def may_pass(directory: Path, account: Account) -> bool:
    found = directory.stat()
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def _unprivileged_accounts() -> list[Account]:
    accounts = []
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            accounts.append(Account(name, found.pw_uid, found.pw_gid))
    return accounts


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
