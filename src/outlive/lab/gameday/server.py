"""The database of a game: the configured one, or a temporary server, which the game also restarts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from outlive import db, embedded, migrate
from outlive.config import Config
from outlive.embedded.places import Places
from outlive.lab.server import temporary_home, temporary_server

SETTINGS = {"track_commit_timestamp": "on", "max_connections": "200"}
END_S = 5.0

# Sessions of this game only: a configured database may have others, which began earlier.
_SESSIONS = """
select pid from pg_stat_activity
where datname = current_database() and usename = current_user and pid <> pg_backend_pid()
  and (application_name = 'outlive' or application_name like 'gameday %%') and backend_start >= to_timestamp(%s)
order by pid
"""


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    own: Path | None
    """The directory of the temporary server, if the game has one."""

    def kill_session(self, connection: db.Connection, rng: random.Random, *, since_s: float) -> bool:
        """End one session. On a temporary server SIGKILL hits its backend, and Postgres drops all sessions."""
        pids = [pid for (pid,) in connection.execute(_SESSIONS, [since_s])]
        if not pids:
            return False
        pid = rng.choice(pids)
        if self.own is not None:
            os.kill(pid, signal.SIGKILL)
        else:
            connection.execute("select pg_terminate_backend(%s)", [pid])
        return True

    def restart(self) -> None:
        """Stop the temporary server at once, as `pg_ctl stop -m immediate` does, and start it again."""
        assert self.own is not None, "only a temporary server can be restarted"
        with contextlib.suppress(OSError, ValueError):
            postmaster = json.loads(Places(self.own).status.read_text(encoding="ascii"))["postmaster"]
            os.kill(postmaster, signal.SIGQUIT)
            deadline = time.monotonic() + END_S
            while Path(f"/proc/{postmaster}").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        embedded.ensure(self.own)

    def connect(self) -> db.Connection | None:
        """A connection that can write even while the database is read-only; None while the database is away."""
        try:
            connection = db.connect(self.url)
            connection.execute("set default_transaction_read_only = off")
            return connection
        except psycopg.OperationalError:
            return None

    def end_sessions(self, connection: db.Connection, *, since_s: float) -> None:
        """End the sessions of the game. Their clients reconnect and get the current settings of the database."""
        for (pid,) in connection.execute(_SESSIONS, [since_s]).fetchall():
            connection.execute("select pg_terminate_backend(%s)", [pid])


@contextmanager
def server(config: Config) -> Iterator[tuple[Server, Path]]:
    """The server, and a directory for the game. A temporary server and the directory are removed afterwards."""
    with temporary_home("gameday") as home:
        if config.database_url is not None:
            with db.translated_errors():
                url = migrate.ready(config)
            yield Server(url, None), home
        else:
            with temporary_server(home, SETTINGS) as url:
                with db.connect(url) as connection:
                    migrate.migrate(connection)
                yield Server(url, home / "server"), home
