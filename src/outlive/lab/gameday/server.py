"""The database of a game: one that was named, or an embedded server of its own, which can be restarted as well."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from outlive import db, embedded, migrate
from outlive.config import Config
from outlive.embedded.places import Places

SETTINGS = {"track_commit_timestamp": "on", "max_connections": "200"}
STOP_S = 15.0
END_S = 5.0

# Of this game only: in a database of somebody's, sessions that were there before are not ours to kill.
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
    """The directory of the embedded server, if it is the game's own."""

    def kill_session(self, connection: db.Connection, rng: random.Random, *, since_s: float) -> bool:
        """End one session: in our own server by SIGKILL of its backend, after which Postgres drops all of them."""
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
        """Stop it at once, as `pg_ctl stop -m immediate` does, and start it again."""
        assert self.own is not None, "only a server of our own can be restarted"
        with contextlib.suppress(OSError, ValueError):
            postmaster = json.loads(Places(self.own).status.read_text(encoding="ascii"))["postmaster"]
            os.kill(postmaster, signal.SIGQUIT)
            deadline = time.monotonic() + END_S
            while Path(f"/proc/{postmaster}").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        embedded.ensure(self.own)

    def connect(self) -> db.Connection | None:
        """None while it is away. Ours writes even where others may only read."""
        try:
            connection = db.connect(self.url)
            connection.execute("set default_transaction_read_only = off")
            return connection
        except psycopg.OperationalError:
            return None

    def end_sessions(self, connection: db.Connection, *, since_s: float) -> None:
        """Those of the game end, and come back with the settings that the database has by then."""
        for (pid,) in connection.execute(_SESSIONS, [since_s]).fetchall():
            connection.execute("select pg_terminate_backend(%s)", [pid])


@contextmanager
def server(config: Config) -> Iterator[tuple[Server, Path]]:
    """The server, and a directory for the game; what was made goes with it."""
    home = Path(tempfile.mkdtemp(prefix="outlive-gameday-", dir="/var/tmp" if Path("/var/tmp").is_dir() else None))
    home.chmod(0o755)  # As root the server runs as somebody else, who must pass here.
    own = home / "server" if config.database_url is None else None
    try:
        if own is None:
            with db.translated_errors():
                url = migrate.ready(config)
            yield Server(url, None), home
        else:
            url = embedded.ensure(own, settings=SETTINGS)
            with db.connect(url) as connection:
                migrate.migrate(connection)
            yield Server(url, own), home
    finally:
        if own is not None:
            embedded.release(own, wait_s=STOP_S)
        shutil.rmtree(home, ignore_errors=True)
