"""A highly available Postgres: three nodes under Patroni, with etcd, and what can happen to their primary.

Each node has a namespace of processes, so that it can be killed or frozen whole, and nothing of it survives the game.
nftables drop the packets between etcd and a node that is cut off: each node reaches etcd by a port of its own. All
addresses are on the loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from outlive import linux
from outlive.embedded.binaries import DEBIAN, clean_environment
from outlive.embedded.places import Places, server_account
from outlive.errors import ConfigError, OutliveError
from outlive.temporary.program import dying_with_this
from outlive_lab.gameday.history import Fault, Kind

HOST = "127.0.0.1"
NODES = ("one", "two", "three")
TTL_S = 20
"""How long a primary that says nothing is left in peace: the least that Patroni takes."""
TIMES = {"ttl": TTL_S, "loop_wait": 1, "retry_timeout": 5}
SETTINGS = {
    "max_connections": 200,
    "shared_buffers": "64MB",
    "track_commit_timestamp": "on",
    "wal_keep_size": "1GB",
    "max_replication_slots": 10,
}
POLL_S = 0.05
PRIMARY_S = 120.0
RECOVERY_S = 60.0
CALM_S = 180.0
RUNNING = ("running", "streaming")
LATE_S = 10.0
"""How long a primary stays frozen or cut off when another one has taken over."""
TABLE = "inet outlive_gameday"


@dataclass(slots=True)
class Node:
    name: str
    home: Path
    port: int
    rest: int
    etcd: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return make_conninfo("", host=HOST, port=self.port, user="postgres", dbname="postgres", connect_timeout=2)

    def processes(self) -> list[int]:
        return linux.descendants_of(self.process.pid) if self.process else []

    def postmaster(self) -> int:
        """The process that has started all other processes of Postgres."""
        words = ((pid, linux.read(f"/proc/{pid}/cmdline").split(b"\0")) for pid in self.processes())
        return next(pid for pid, found in words if found[0].endswith(b"/postgres") and b"-D" in found)

    def writable(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url) as connection:
            return connection.execute("select pg_is_in_recovery()").fetchone() == (False,)
        return False


class Cluster:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._programs = _programs()
        self._account = server_account(Places(home), owner=0)
        ports = _free_ports(1 + 3 * len(NODES))
        self._etcd_port = ports.pop()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1)
        """Starts all processes: the kernel kills them when the thread that has started them ends."""
        self.nodes = [Node(name, home / name, ports.pop(), ports.pop(), ports.pop()) for name in NODES]

    @property
    def url(self) -> str:
        """The address of whichever node is the primary."""
        hosts, ports = ",".join(HOST for _ in NODES), ",".join(str(node.port) for node in self.nodes)
        more = {"user": "postgres", "dbname": "postgres", "target_session_attrs": "read-write"}
        return make_conninfo("", host=hosts, port=ports, **more)

    # Start and end

    def start(self) -> None:
        self._thread.submit(self._start_all).result()

    def _start_all(self) -> None:
        listening = ",".join(f"http://{HOST}:{port}" for port in (self._etcd_port, *[one.etcd for one in self.nodes]))
        peers = f"http://{HOST}:{_free_ports(1)[0]}"
        words = ["etcd", "--data-dir", str(self._home / "etcd"), "--listen-client-urls", listening]
        words += ["--advertise-client-urls", f"http://{HOST}:{self._etcd_port}", "--listen-peer-urls", peers]
        words += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]
        self._etcd = self._run(words, self._home / "etcd.log")
        for node in self.nodes:
            node.home.mkdir()
            os.chown(node.home, self._account.uid, self._account.gid)
            (node.home / "patroni.yml").write_text(json.dumps(self._config(node)))  # JSON is YAML.
            self._start(node)
            self._await(lambda: self.leader() is not None, CALM_S, "first primary")
        self.await_calm()

    def _start(self, node: Node) -> None:
        who = [f"--reuid={self._account.uid}", f"--regid={self._account.gid}", "--clear-groups", "--pdeathsig", "KILL"]
        inside = ["setpriv", *who, "patroni", str(node.home / "patroni.yml")]
        node.process = self._run(["unshare", "--pid", "--fork", "--mount-proc", *inside], node.home / "patroni.log")

    def _run(self, words: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                dying_with_this(words),
                env=clean_environment() | {"ETCD_UNSUPPORTED_ARCH": "arm64", "HOME": str(self._home)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def _config(self, node: Node) -> dict[str, object]:
        peer = {"use_pg_rewind": True, "parameters": SETTINGS}
        dcs = {**TIMES, "synchronous_mode": True, "postgresql": peer}
        postgres = {
            "listen": f"{HOST}:{node.port}",
            "connect_address": f"{HOST}:{node.port}",
            "data_dir": str(node.home / "data"),
            "bin_dir": str(self._programs),
            "pgpass": str(node.home / "pgpass"),
            "authentication": {who: {"username": "postgres"} for who in ("superuser", "replication", "rewind")},
            "parameters": {"unix_socket_directories": str(node.home)},
            "pg_hba": [
                "local all all trust",
                *(f"host {what} all 127.0.0.0/8 trust" for what in ("all", "replication")),
            ],
        }
        return {
            "scope": "gameday",
            "name": node.name,
            "restapi": {"listen": f"{HOST}:{node.rest}", "connect_address": f"{HOST}:{node.rest}"},
            "etcd3": {"hosts": [f"{HOST}:{node.etcd}"], "use_proxies": True},
            "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "no-sync"]},
            "postgresql": postgres,
        }

    def close(self) -> None:
        _heal()
        for node in self.nodes:
            self._kill(node)
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()
        self._thread.shutdown()

    # What it is like

    def members(self) -> list[dict[str, Any]]:
        """What Patroni says about its nodes, as the first one that answers knows it."""
        for node in self.nodes:
            with contextlib.suppress(OSError, ValueError):
                found = self._ask(node, "GET", "/cluster")["members"]
                if found:
                    return list(found)
        return []

    def leader(self) -> Node | None:
        roles = {one["name"]: one["role"] for one in self.members()}
        return next((node for node in self.nodes if roles.get(node.name) == "leader" and node.writable()), None)

    def calm(self) -> bool:
        """Whether there is a primary, and both other nodes follow it, one of them synchronously."""
        found = self.members()
        roles = sorted(str(one["role"]) for one in found)
        running = all(one.get("state") in RUNNING for one in found)
        near = all(isinstance(lag := one.get("lag", 0), int) and lag < 1 << 20 for one in found)
        if roles != ["leader", "replica", "sync_standby"] or not running or not near:
            return False
        return sum(node.writable() for node in self.nodes) == 1

    def await_calm(self) -> None:
        """A node whose log leads nowhere, because its primary failed while it recovered, is made again."""
        try:
            self._await(self.calm, RECOVERY_S, "calm cluster")
        except OutliveError:
            down = {one["name"] for one in self.members() if one.get("state") not in RUNNING}
            for node in (node for node in self.nodes if node.name in down):
                self._kill(node)
                shutil.rmtree(node.home / "data")
                self._start(node)
            self._await(self.calm, CALM_S, "calm cluster")

    def _await(self, is_so: Callable[[], bool], within_s: float, what: str) -> None:
        deadline = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > deadline:
                raise OutliveError(f"Patroni gave no {what} within {within_s:g} s: {self.members()}")
            time.sleep(POLL_S)

    def _ask(self, node: Node, method: str, path: str, body: object = None) -> Any:
        asked = urllib.request.Request(f"http://{HOST}:{node.rest}{path}", json.dumps(body).encode(), method=method)
        with urllib.request.urlopen(asked, timeout=2 if method == "GET" else 60) as answer:
            said = answer.read()
        return json.loads(said) if said[:1] in (b"{", b"[") else said.decode()

    # What happens to it

    def fail_over(self, fault: Fault) -> None:
        """Let something happen to the primary, note when there is another one, and repair what is broken."""
        self._thread.submit(self._fail_over, fault).result()

    def _fail_over(self, fault: Fault) -> None:
        old = self.leader()
        assert old is not None, "the cluster was calm a moment ago"
        others = [node for node in self.nodes if node is not old or fault.kind is Kind.POSTMASTER]
        fault.at_s, fault.worker = time.time(), old.name
        with _HARMS[fault.kind](self, old):
            self._await(lambda: any(node.writable() for node in others), PRIMARY_S, "new primary")
            fault.writable_s = time.time()
        self.await_calm()

    @contextmanager
    def _switch_over(self, old: Node) -> Iterator[None]:
        found = {one["role"]: one["name"] for one in self.members()}
        self._ask(old, "POST", "/switchover", {"leader": old.name, "candidate": found["sync_standby"]})
        yield

    @contextmanager
    def _kill_postmaster(self, old: Node) -> Iterator[None]:
        """Patroni starts it again, and it is the primary as before."""
        linux.kill(old.postmaster())
        yield

    @contextmanager
    def _kill_node(self, old: Node) -> Iterator[None]:
        self._kill(old)
        yield
        self._start(old)

    @contextmanager
    def _freeze(self, old: Node) -> Iterator[None]:
        frozen = old.processes()
        for pid in frozen:
            linux.kill(pid, signal.SIGSTOP)
        yield
        time.sleep(LATE_S)
        for pid in reversed(frozen):
            linux.kill(pid, signal.SIGCONT)

    @contextmanager
    def _cut_off(self, old: Node) -> Iterator[None]:
        _drop(f"tcp dport {old.etcd}", f"tcp sport {old.etcd}")
        yield
        time.sleep(LATE_S)
        _heal()

    def _kill(self, node: Node) -> None:
        """Kill the first process of a namespace: the kernel kills all others with it."""
        if node.process is not None:
            for pid in linux.children_of(node.process.pid):
                linux.kill(pid)
            node.process.wait()


_HARMS = {
    Kind.SWITCHOVER: Cluster._switch_over,
    Kind.POSTMASTER: Cluster._kill_postmaster,
    Kind.NODE: Cluster._kill_node,
    Kind.FROZEN: Cluster._freeze,
    Kind.CUT_OFF: Cluster._cut_off,
}


def _drop(*packets: str) -> None:
    """Drop packets silently."""
    rules = "".join(f"{some} drop\n" for some in packets)
    _nft(f"table {TABLE} {{\nchain lossy {{\ntype filter hook output priority 0\n{rules}}}\n}}\n")


def _heal() -> None:
    _nft(f"table {TABLE}\ndelete table {TABLE}\n")


def _nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, capture_output=True)


def _programs() -> Path:
    """The directory of Postgres. A ConfigError says what is missing."""
    missing = [name for name in ("patroni", "etcd", "nft", "unshare", "setpriv") if shutil.which(name) is None]
    found = sorted(DEBIAN.glob("[0-9]*/bin/pg_rewind"), key=lambda path: int(path.parent.parent.name))
    if os.geteuid() != 0 or missing or not found:
        raise ConfigError(
            "--ha needs root and the programs of Debian's packages patroni, etcd-server, nftables and postgresql"
            + (f"; missing: {', '.join(missing)}" if missing else "")
        )
    return found[-1].parent


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
