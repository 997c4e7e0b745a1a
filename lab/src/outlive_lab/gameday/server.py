"""The database of a game: the configured one, or a temporary server, which the game also restarts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql
from psycopg.pq import TransactionStatus

from outlive import db, embedded, migrate, store
from outlive.config import Config
from outlive.embedded.places import Places
from outlive.temporary.server import temporary_home, temporary_server
from outlive_lab.gameday.cluster import Cluster

SETTINGS = {"track_commit_timestamp": "on", "max_connections": "200"}
END_S = 5.0
ANSWER_S = 2.0
"""How long the game waits for a primary that may be frozen."""
IDLE = TransactionStatus.IDLE

# Sessions of this game only: a configured database may have others, which began earlier.
_SESSIONS = """
select pid from pg_stat_activity
where datname = current_database() and usename = current_user and pid <> pg_backend_pid()
  and (application_name = 'outlive' or application_name like 'gameday %%') and backend_start >= to_timestamp(%s)
order by pid
"""
_END = "select pg_terminate_backend(%s)"


@dataclass(slots=True)
class Server:
    url: str
    own: Path | None
    """The directory of the temporary server, if the game has one."""
    began_s: float
    """When the game began. Earlier sessions are left alone."""
    cluster: Cluster | None = None
    """The nodes, if the game has a highly available Postgres."""
    _connection: db.Connection | None = None

    @property
    def connection(self) -> db.Connection:
        """The game's own connection, which can write even while the database is read-only.

        While the database is away, this raises psycopg.OperationalError.
        """
        if self._connection is not None and self._connection.pgconn.transaction_status != IDLE:
            self._connection.close()  # It got no answer in time.
        if self._connection is None or self._connection.closed:
            self._connection = db.connect(self.url)
            self._connection.execute("set default_transaction_read_only = off")
        self._connection.until = time.monotonic() + ANSWER_S if self.cluster else None
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def sessions(self) -> list[int]:
        """The processes of the game's sessions, without that of this connection."""
        return [pid for (pid,) in self.connection.execute(_SESSIONS, [self.began_s])]

    def end_session(self, pid: int) -> None:
        """On a temporary server with SIGKILL, after which Postgres drops all sessions."""
        if self.own is not None:
            os.kill(pid, signal.SIGKILL)
        else:
            self.connection.execute(_END, [pid])

    def allow_writing(self, allowed: bool) -> None:
        """Make the database read-only, or undo it, for new sessions. To forbid writing, the game's sessions are ended
        too; their clients reconnect."""
        how = sql.SQL("reset default_transaction_read_only" if allowed else "set default_transaction_read_only = on")
        name = sql.Identifier(self.connection.info.dbname)
        self.connection.execute(sql.SQL("alter database {} {}").format(name, how))
        for pid in [] if allowed else self.sessions():
            self.connection.execute(_END, [pid])

    def restart(self, away_s: float = 0.0) -> None:
        """Stop the temporary server at once, as `pg_ctl stop -m immediate` does, and start it again after a while."""
        assert self.own is not None, "only a temporary server can be restarted"
        with contextlib.suppress(OSError, ValueError):
            postmaster = json.loads(Places(self.own).status.read_text(encoding="ascii"))["postmaster"]
            os.kill(postmaster, signal.SIGQUIT)
            deadline = time.monotonic() + END_S
            while Path(f"/proc/{postmaster}").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        time.sleep(away_s)
        embedded.ensure(self.own)


@contextmanager
def server(config: Config, *, ha: bool) -> Iterator[tuple[Server, Path]]:
    """The server, and a directory for the game. A temporary server and the directory are removed afterwards."""
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(temporary_home("gameday"))
        own = home / "server" if config.database_url is None and not ha else None
        cluster = Cluster(home) if ha else None
        if cluster is not None:
            stack.callback(cluster.close)
            cluster.start()
            url = cluster.url
        else:
            url = stack.enter_context(temporary_server(home, SETTINGS)) if own else migrate.address(config)
        with db.connect(url) as connection:
            migrate.make_ready(connection, config)
            began_s = db.run(connection, store.clock())
        yield Server(url, own, began_s, cluster), home
