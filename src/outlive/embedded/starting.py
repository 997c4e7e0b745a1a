"""Starts a keeper: builds the commands of the server, and waits for the keeper's answer."""

import json
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from outlive.embedded import binaries as programs
from outlive.embedded import keeper
from outlive.embedded.places import PORT, Places, account_to_drop_to
from outlive.errors import EmbeddedError

START_S = 300.0
"""A killed server first replays its log, up to `max_wal_size`. On a slow disk that takes minutes."""

KEEPER_LOG_LIMIT_BYTES = 1_000_000

DEFAULTS = {"max_connections": "200", "shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum_naptime": "5s"}


def start(places: Places, *, settings: Mapping[str, str], binaries: Path | None) -> None:
    """Start a keeper and wait until its server is ready. The caller holds the start lock and a lease."""
    account = account_to_drop_to(places)
    bin_directory, major = programs.runnable_by(account, binaries or programs.find(), places)
    _refuse_other_major(places, major, bin_directory)
    orders = keeper.Orders(
        data=str(places.data),
        socket_directory=str(places.socket_directory),
        status=str(places.status),
        log=str(places.log),
        keeper_lock=str(places.keeper_lock),
        server_lock=str(places.server_lock),
        lease=str(places.lease),
        initdb=_initdb(bin_directory, major, settings),
        postgres=_postgres(bin_directory, places, settings),
        account=None if account is None else (account.uid, account.gid),
        start_s=START_S,
    )
    _await_answer(_execute(orders, places), places)


def _refuse_other_major(places: Places, major: int, bin_directory: Path) -> None:
    if not places.data.exists():
        return
    try:
        held = (places.data / "PG_VERSION").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise EmbeddedError(f"{places.data} is not a Postgres cluster; move it away and try again.") from None
    if held != str(major):
        raise EmbeddedError(
            f"{places.data} was made by PostgreSQL {held}, but the programs in {bin_directory} are {major}, "
            f"which can't read it. Use those of {held}, or move the directory away (after a dump, if it matters)."
        )


def _initdb(bin_directory: Path, major: int, settings: Mapping[str, str]) -> list[str]:
    """The locale does not depend on the environment: C, with UTF-8 character classes. Postgres 17 has its own."""
    builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    classes = builtin if major >= 17 else ["--lc-ctype=C.UTF-8"]
    hurry = ["--no-sync"] if settings.get("fsync") == "off" else []
    access = ["--username=postgres", "--auth-local=trust", "--auth-host=reject"]
    texts = ["--encoding=UTF8", "--locale=C", *classes]
    return [str(bin_directory / "initdb"), "--data-checksums", *texts, *access, *hurry]


def _postgres(bin_directory: Path, places: Places, settings: Mapping[str, str]) -> list[str]:
    ours = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": '"' + str(places.socket_directory).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
        "log_destination": "stderr",  # The keeper limits the size of the file, which logging_collector can't.
        "logging_collector": "off",
    }
    for name in settings:
        if name in ours or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
            raise EmbeddedError(f"The embedded server does not take the setting {name!r}; leave it out.")
    words = [str(bin_directory / "postgres")]
    for name, value in (DEFAULTS | dict(settings) | ours).items():
        words += ["-c", f"{name}={value}"]
    return words


def _execute(orders: keeper.Orders, places: Places) -> int:
    """Run keeper.py by its path, isolated, in its own session. Returns the pipe for its answer."""
    log = os.open(places.keeper_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    reader, writer = os.pipe()
    try:
        if os.fstat(log).st_size > KEEPER_LOG_LIMIT_BYTES:
            os.ftruncate(log, 0)
        subprocess.run(
            # The keeper does not read the directory: it is there for operators who list the processes.
            [_interpreter(), "-I", "-S", keeper.__file__, str(places.directory)],
            input=json.dumps(asdict(orders)).encode(),
            stdout=writer,
            stderr=log,
            env=programs.clean_environment(),
            cwd="/",
            start_new_session=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        os.close(reader)
        raise EmbeddedError(
            f"The keeper of the embedded server can't be started: {error}; see {places.keeper_log}."
        ) from error
    finally:
        os.close(writer)
        os.close(log)
    return reader


def _interpreter() -> str:
    """The path of this Python. In an application server, sys.executable may be another program."""
    own = [sys.executable, *(os.path.join(prefix, "bin", "python3") for prefix in (sys.prefix, sys.base_prefix))]
    for path in own:
        if path and os.path.basename(path).startswith(("python", "pypy")) and os.access(path, os.X_OK):
            return path
    if found := shutil.which("python3"):
        return found
    raise EmbeddedError("No Python was found to run the keeper of the embedded server; put python3 on PATH.")


def _await_answer(reader: int, places: Places) -> None:
    """The keeper writes its whole answer at once."""
    try:
        poll = select.poll()  # Not select, which fails in a process with more than 1,023 open files.
        poll.register(reader, select.POLLIN)
        if not poll.poll(START_S * 1000):
            raise EmbeddedError(f"The embedded server was not ready within {START_S:.0f} s; see {places.log}.")
        answer = os.read(reader, 65_536)
    finally:
        os.close(reader)
    if not answer:
        raise EmbeddedError(f"The keeper of the embedded server died while starting; see {places.keeper_log}.")
    if error := json.loads(answer).get("error"):
        raise EmbeddedError(f"The embedded Postgres did not start: {error}.")
