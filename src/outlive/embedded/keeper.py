"""The keeper: a small process that owns the postmaster of one directory and stops it with the last lease.

It is executed by path with `python -I -S`, so that it starts fast and loads nothing of the application. It imports
only the standard library, nothing of outlive. It reads its orders as JSON from stdin, and writes one line of JSON to
stdout when the server is ready or can't be started.

Locks show which processes are alive, never process ids in files: the kernel releases the locks of a dead process. The
keeper holds `keeper`, every process of the server has inherited `server`, and every user holds `lease` shared.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOG_LIMIT_BYTES = 8_000_000
POLL_S = 0.01
PREDECESSOR_S = 3.0
FAST_STOP_S = 10.0
IMMEDIATE_STOP_S = 5.0
ORPHANS_S = 1.0

_libc = ctypes.CDLL(None, use_errno=True)


class KeeperError(Exception):
    """The server can't be started. The text is for the user."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a keeper needs to know. The commands lack only the data directory."""

    data: str
    socket_directory: str
    status: str
    log: str
    keeper_lock: str
    server_lock: str
    lease: str
    initdb: list[str]
    postgres: list[str]
    account: tuple[int, int] | None
    """The uid and gid of the server, if root starts it."""
    start_s: float


def main() -> None:
    orders = Orders(**json.load(sys.stdin))
    if os.fork():
        os._exit(0)  # The caller reaps this process at once. init adopts the keeper, and will reap it.
    _reset_process()
    try:
        locks = _take_over(orders)
        _initialise(orders)
        _clear_remains(orders)
        server = _Server(orders, locks=locks)
        server.await_ready()
    except (KeeperError, OSError) as error:
        _answer({"error": str(error)})
        _remove(orders.status, orders.socket_directory)
        os._exit(1)
    server.keep()
    os._exit(0)


def _reset_process() -> None:
    """Reset what this process inherited from the caller: signal masks, ignored signals, the umask."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.umask(0o077)
    os.chdir("/")
    # Backends of a killed postmaster become children of the keeper, which ends those that don't notice.
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _take_over(orders: Orders) -> tuple[int, int]:
    """Take the keeper's lock, then the server's. With both, no process of an earlier server is left."""
    keeper = open_lock(orders.keeper_lock)
    if not lock_within(keeper, PREDECESSOR_S):
        raise KeeperError(f"another keeper already serves {orders.data}; try again")
    _remove(orders.status)
    server = open_lock(orders.server_lock)
    # The server of a killed keeper stops by itself. After some time, kill it: no commit is lost by that.
    if not lock_within(server, PREDECESSOR_S if _live_postmaster(orders.data) else ORPHANS_S):
        _kill_leftovers(orders)
    if not lock_within(server, PREDECESSOR_S):
        raise KeeperError(
            f"processes of an earlier server on {orders.data} are still running; "
            "end them (their titles start with 'postgres:') and try again"
        )
    return keeper, server


def _kill_leftovers(orders: Orders) -> None:
    """Kill all processes that run in the data directory. Runs as the server's account: root may lack the permission."""
    if orders.account is not None:
        os.setegid(orders.account[1])
        os.seteuid(orders.account[0])
    try:
        home = os.stat(orders.data)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.path.samestat(home, os.stat(f"/proc/{pid}/cwd")):
                    os.kill(int(pid), signal.SIGKILL)
    except FileNotFoundError:
        pass  # There is no cluster yet, so no process runs in it.
    finally:
        if orders.account is not None:
            os.seteuid(0)
            os.setegid(0)


def open_lock(path: str | os.PathLike[str]) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def lock_within(fd: int, patience_s: float, how: int = fcntl.LOCK_EX) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)


def _initialise(orders: Orders) -> None:
    """Make the cluster beside its place and rename it when it is complete, so that no half cluster is ever used."""
    parent = os.path.dirname(orders.data)
    for name in os.listdir(parent):
        if name.startswith("data.new-"):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    if os.path.exists(orders.data):
        return
    fresh = tempfile.mkdtemp(prefix="data.new-", dir=parent)
    try:
        _give(fresh, orders)
        made = subprocess.run(
            [*orders.initdb, "-D", fresh],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=orders.start_s,
            preexec_fn=_dies_with_keeper(signal.SIGKILL),
            **run_as(orders.account),
        )
        if made.returncode != 0:
            raise KeeperError(f"initdb could not make a cluster in {parent}: {_last_lines(made.stderr)}")
        os.rename(fresh, orders.data)
    except subprocess.TimeoutExpired:
        raise KeeperError(f"initdb did not finish within {orders.start_s:.0f} s; check the disk") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def _clear_remains(orders: Orders) -> None:
    """Remove the pid file of a killed server. Postgres would not start if another process has that pid now."""
    if pid := _live_postmaster(orders.data):
        raise KeeperError(
            f"process {pid} is a postmaster on {orders.data} that outlive did not start; stop it and try again"
        )
    _remove(os.path.join(orders.data, "postmaster.pid"), orders.socket_directory)
    try:
        os.mkdir(orders.socket_directory, 0o700)
    except FileExistsError:
        raise KeeperError(f"{orders.socket_directory} belongs to another user; have it removed and try again") from None
    _give(orders.socket_directory, orders)


def _live_postmaster(data: str) -> int | None:
    """The pid in postmaster.pid, if that process is alive and is a server of this directory."""
    try:
        pid = int(_read(os.path.join(data, "postmaster.pid")).split("\n")[0])
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(data) in words else None


class _Server:
    """The postmaster and three threads: one writes its log, one waits for the lease, one stops it."""

    def __init__(self, orders: Orders, *, locks: tuple[int, int]) -> None:
        self._orders = orders
        self._keeper_lock, server_lock = locks
        self._stop_asked = threading.Event()
        self._gone = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._stop_asked.set())
        # Start it in the main thread: the death signal is sent when the thread that started the process ends.
        self._postmaster = subprocess.Popen(
            [*orders.postgres, "-D", orders.data],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(server_lock,),
            preexec_fn=_dies_with_keeper(signal.SIGINT),
            **run_as(orders.account),
        )
        self._logger = _in_background(self._keep_log)

    def await_ready(self) -> None:
        log, start_s = self._orders.log, self._orders.start_s
        deadline = time.monotonic() + start_s
        while not self._is_ready():
            if time.monotonic() > deadline:
                self._postmaster.kill()
                self._logger.join(1.0)
                raise KeeperError(f"postgres was not ready within {start_s:.0f} s; see {log}")
            if self._postmaster.poll() is not None:
                self._logger.join(1.0)
                raise KeeperError(f"postgres stopped while starting (see {log}): {_last_lines(_read(log, tail=True))}")
            time.sleep(POLL_S)
        status = self._orders.status
        with open(status + ".new", "w", encoding="ascii") as file:
            json.dump({"keeper": os.getpid(), "postmaster": self._postmaster.pid}, file)
        os.rename(status + ".new", status)
        _answer({"ready": True})

    def keep(self) -> None:
        """Wait until the postmaster has ended, and end what is left of it."""
        _in_background(self._await_last_lease)
        _in_background(self._stop_when_asked)
        self._postmaster.wait()
        self._gone.set()
        _end_orphans()
        self._logger.join(1.0)
        if self._is_our_directory():
            _remove(self._orders.status, self._orders.socket_directory)

    def _is_our_directory(self) -> bool:
        """False if the directory was deleted: one that exists now belongs to another server."""
        try:
            return os.path.samestat(os.fstat(self._keeper_lock), os.stat(self._orders.keeper_lock))
        except FileNotFoundError:
            return False

    def _is_ready(self) -> bool:
        try:
            lines = _read(os.path.join(self._orders.data, "postmaster.pid")).split("\n")
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self._postmaster.pid) and lines[7].strip() == "ready"

    def _await_last_lease(self) -> None:
        try:
            fcntl.flock(open_lock(self._orders.lease), fcntl.LOCK_EX)  # Granted when no user holds the lease.
        finally:
            self._stop_asked.set()

    def _stop_when_asked(self) -> None:
        self._stop_asked.wait()
        if self._is_our_directory():
            _remove(self._orders.status)
        for how, patience_s in ((signal.SIGINT, FAST_STOP_S), (signal.SIGQUIT, IMMEDIATE_STOP_S)):
            self._postmaster.send_signal(how)
            if self._gone.wait(patience_s):
                return
        self._postmaster.kill()

    def _keep_log(self) -> None:
        """Write the server's output to its log, in at most two files of LOG_LIMIT_BYTES."""
        pipe, log = self._postmaster.stdout, self._orders.log
        assert pipe is not None
        while chunk := os.read(pipe.fileno(), 65_536):
            with contextlib.suppress(OSError):  # Go on reading when the disk is full, or the server would block.
                fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
                try:
                    os.write(fd, chunk)
                    if os.fstat(fd).st_size > LOG_LIMIT_BYTES:
                        os.rename(log, log + ".1")
                finally:
                    os.close(fd)


def _in_background(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _dies_with_keeper(how: signal.Signals) -> Callable[[], None]:
    """Make a preexec_fn. It runs after setuid, which clears the death signal."""
    keeper = os.getpid()

    def in_child() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(how), 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)

    return in_child


class _Account(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def run_as(account: tuple[int, int] | None) -> _Account:
    """Arguments of subprocess that drop the rights of root; none for an ordinary user."""
    return {} if account is None else {"user": account[0], "group": account[1], "extra_groups": []}


def _give(path: str, orders: Orders) -> None:
    if orders.account is not None:
        os.chown(path, *orders.account)


def _end_orphans() -> None:
    """Reap the backends of a killed postmaster. Kill a backend that is busy and does not notice."""
    deadline = time.monotonic() + ORPHANS_S
    while time.monotonic() < deadline + ORPHANS_S:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for thread in os.listdir("/proc/self/task") if time.monotonic() > deadline else ():
                with contextlib.suppress(OSError):
                    for child in _read(f"/proc/self/task/{thread}/children").split():
                        os.kill(int(child), signal.SIGKILL)
            time.sleep(POLL_S)


def _read(path: str, *, tail: bool = False) -> str:
    """At most 4 kB of a file. It follows no symbolic link and does not block on a pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if tail:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        return file.read(4096).decode("utf-8", "replace")


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "FATAL" in line or "error:" in line.lower()]
    return " / ".join((errors or lines)[-3:]) or "it printed nothing"


def _remove(*paths: str) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(path, ignore_errors=True)


def _answer(answer: dict[str, object]) -> None:
    """Answer the process that started the keeper, and close its pipes."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(answer).encode() + b"\n")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)


if __name__ == "__main__":
    main()
