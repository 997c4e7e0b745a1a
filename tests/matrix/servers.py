"""Postgres servers that belong to one test each, to be killed, frozen, filled, restarted and promoted."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from outlive import linux, migrate
from outlive.embedded import binaries, places
from tests.driving.making import Queue
from tests.driving.workers import all_gone
from tests.waiting import eventually

PORT = 5432
SETTINGS = {
    "fsync": "off",  # A crash of Postgres loses nothing by it, only one of the machine would.
    "max_connections": "50",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "5s",
    "wal_level": "replica",
    "max_wal_senders": "4",
}


class Programs:
    """The programs of Postgres. If need be, they are copied to a place where their account can read them."""

    def __init__(self, base: Path) -> None:
        self.account = places.server_account(places.Places(base), owner=0) if os.geteuid() == 0 else None
        self.folder, _ = binaries.runnable_by(self.account, binaries.find(), places.Places(base))

    def give(self, path: Path) -> None:
        """Give a directory to the account of the server."""
        if self.account:
            os.chown(path, self.account.uid, self.account.gid)

    def start(
        self, *words: object, environ: Mapping[str, str] | None = None, log: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        with (log or Path(os.devnull)).open("ab") as output:
            return subprocess.Popen(
                [str(self.folder / str(words[0])), *map(str, words[1:])],  # An absolute path stays what it is.
                cwd="/",
                env=binaries.clean_environment() | dict(environ or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self.account.uid if self.account else None,
                group=self.account.gid if self.account else None,
                extra_groups=[] if self.account else None,
            )

    def run(self, *words: object, log: Path) -> None:
        assert self.start(*words, log=log).wait(60) == 0, log.read_text()


class Server:
    """One cluster below `folder`, and its postmaster, which may be running or not."""

    def __init__(self, programs: Programs, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.programs, self.folder = programs, folder
        self.settings: dict[str, str] = SETTINGS | dict(settings or {})
        self.environ: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.url = make_conninfo("", host=str(folder), port=PORT, user="postgres", dbname="postgres")
        folder.mkdir(exist_ok=True)
        programs.give(folder)
        folder.chmod(0o755)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def make(self) -> None:
        """Make a new cluster with the schema of outlive."""
        access = ("--username=postgres", "--auth-local=trust", "--auth-host=trust")
        where = ("--locale=C", "--encoding=UTF8", "--no-sync", "-D", self.data)
        self.programs.run("initdb", *access, *where, log=self.folder / "log")
        self.start()
        with Queue.at(self.url) as connection:
            migrate.migrate(connection)
            connection.execute("checkpoint")
        self.stop(signal.SIGINT)

    def copy_from(self, other: "Server") -> None:
        """Copy the cluster that `make` has made."""
        subprocess.run(["cp", "-a", str(other.data), str(self.data)], check=True)

    def begin(self) -> None:
        """Start the server, and don't wait until it is ready."""
        settings = self.settings | {"unix_socket_directories": str(self.folder), "port": str(PORT)}
        settings = {"listen_addresses": ""} | settings
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.process = self.programs.start(
            "postgres", "-D", self.data, *words, environ=self.environ, log=self.folder / "log"
        )

    def start(self) -> None:
        self.begin()
        self.await_ready()

    def await_ready(self, *, within_s: float = 30) -> None:
        eventually(self.is_ready, within_s=within_s, what="the server is ready")

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """Stop the server: fast with SIGINT, immediately with SIGQUIT, and without its knowledge with SIGKILL."""
        if self.process is not None:
            below = linux.descendants_of(self.pid)
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None
            for pid in below:  # Those of a killed postmaster may take a while, and hold the data meanwhile.
                if number == signal.SIGKILL and Path(f"/proc/{pid}").exists():
                    os.kill(pid, signal.SIGKILL)
            all_gone(below, within_s=10, what="no process of the server is left")

    def tree(self) -> list[int]:
        return [self.pid, *linux.descendants_of(self.pid)]

    def ask(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        """Run a query on a new connection, because an older one may not survive the test."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            answered = cursor.pgresult is not None and cursor.pgresult.status == pq.ExecStatus.TUPLES_OK
            return cursor.fetchall() if answered else []
