"""The keeper: a small process that owns the postmaster of one directory and stops it with the last lease.

It is executed by path with `python -I -S`, so that it starts fast and drags nothing of the application along:
only the standard library may be imported here, nothing of outlive. Its orders come as JSON on stdin; it
answers one JSON line on stdout, when the server is ready or can't be, and then lives on by itself.

What is alive is known by locks that the kernel takes back, never by process ids in files: the keeper holds
`keeper`, every process of the server has inherited `server`, every user holds `lease` shared.
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
from collections.abc import Callable, Iterator
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
    """The server can't be started; the text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Everything that a keeper is told; the commands are complete but for the data directory."""

    data: str
    socket_directory: str
    status: str
    log: str
    keeper_lock: str
    server_lock: str
    lease: str
    initdb: list[str]
    postgres: list[str]
    uid: int | None
    gid: int | None
    start_s: float


def main() -> None:
    orders = Orders(**json.load(sys.stdin))
    if os.fork():
        os._exit(0)  # The caller reaps this one at once; the keeper is nobody's child, so it can't become a zombie.
    _settle_in()
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


def _settle_in() -> None:
    """Shed what the starting process may have left on us: signal masks, ignored signals, a narrow umask."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.umask(0o077)
    os.chdir("/")
    # Backends whose postmaster was killed come to us, so that we can end the ones that don't notice.
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _take_over(orders: Orders) -> tuple[int, int]:
    """Hold the keeper's lock, then the server's: nobody of an earlier server is left once we have both."""
    keeper = _open_lock(orders.keeper_lock)
    if not _lock_within(keeper, PREDECESSOR_S):
        raise KeeperError(f"another keeper already serves {orders.data}; try again")
    _remove(orders.status)
    server = _open_lock(orders.server_lock)
    if not _outlast_predecessor(server, orders):
        raise KeeperError(
            f"processes of an earlier server on {orders.data} are still running; "
            "end them (their titles start with 'postgres:') and try again"
        )
    return keeper, server


def _outlast_predecessor(lock: int, orders: Orders) -> bool:
    """Wait for the server of a killed keeper, which is stopping; hurry it and then its backends if that takes long.

    An immediate shutdown and a killed backend lose nothing that was committed.
    """
    if _lock_within(lock, ORPHANS_S):
        return True
    if _live_postmaster(orders.data):
        if _lock_within(lock, PREDECESSOR_S - ORPHANS_S):
            return True
        if pid := _live_postmaster(orders.data):
            _signal(pid, signal.SIGQUIT)
            if _lock_within(lock, ORPHANS_S):
                return True
    _kill_inhabitants(orders)
    return _lock_within(lock, PREDECESSOR_S)


def _kill_inhabitants(orders: Orders) -> None:
    """Kill whoever works in the data directory, as the account of the server: root may lack the right to look."""
    if orders.uid is not None and orders.gid is not None:
        os.setegid(orders.gid)
        os.seteuid(orders.uid)
    try:
        home = os.stat(orders.data)
        for pid in _all_processes():
            with contextlib.suppress(OSError):
                if os.path.samestat(home, os.stat(f"/proc/{pid}/cwd")):
                    os.kill(pid, signal.SIGKILL)
    except FileNotFoundError:
        pass  # Not even a cluster: whoever holds the lock is only about to find that out.
    finally:
        if orders.uid is not None:
            os.seteuid(0)
            os.setegid(0)


def _open_lock(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _lock_within(fd: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)


def _initialise(orders: Orders) -> None:
    """Make the cluster beside its place and rename it when it is whole: half a cluster is never seen."""
    parent = os.path.dirname(orders.data)
    for name in os.listdir(parent):
        if name.startswith("data.new-"):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    if os.path.exists(orders.data):
        return
    fresh = tempfile.mkdtemp(prefix="data.new-", dir=parent)
    try:
        _give(fresh, orders)
        made = _run(orders, [*orders.initdb, "-D", fresh])
        if made.returncode != 0:
            raise KeeperError(f"initdb could not make a cluster in {parent}: {_last_lines(made.stderr)}")
        os.rename(fresh, orders.data)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def _run(orders: Orders, command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=orders.start_s,
            preexec_fn=_dying_with_us(signal.SIGKILL),
            **_account(orders),
        )
    except subprocess.TimeoutExpired:
        raise KeeperError(f"{command[0]} did not end within {orders.start_s:.0f} s; is the disk very slow?") from None


def _clear_remains(orders: Orders) -> None:
    """Remove what a killed server left. Its pid may belong to another process by now, which Postgres would fear."""
    if pid := _live_postmaster(orders.data):
        raise KeeperError(
            f"process {pid} is a postmaster on {orders.data} that outlive did not start; stop it and try again"
        )
    _remove(os.path.join(orders.data, "postmaster.pid"), orders.socket_directory)
    try:
        os.mkdir(orders.socket_directory, 0o700)
    except FileExistsError:
        raise KeeperError(
            f"{orders.socket_directory} belongs to somebody else; have it removed and try again"
        ) from None
    _give(orders.socket_directory, orders)


def _live_postmaster(data: str) -> int | None:
    """The process named in postmaster.pid, if it is alive and really a server of this directory."""
    try:
        pid = int(_read(os.path.join(data, "postmaster.pid")).split("\n")[0])
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(data) in words else None


class _Server:
    """The postmaster and the three threads around it: its log, the lease, and the one that stops it."""

    def __init__(self, orders: Orders, *, locks: tuple[int, int]) -> None:
        self._orders = orders
        self._keeper_lock, server_lock = locks
        self._stop_asked = threading.Event()
        self._gone = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._stop_asked.set())
        # Started by the main thread, which lives as long as we do: a death signal follows the parent's thread.
        self._postmaster = subprocess.Popen(
            [*orders.postgres, "-D", orders.data],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(server_lock,),
            preexec_fn=_dying_with_us(signal.SIGINT),
            **_account(orders),
        )
        self._logger = self._in_background(self._keep_log)

    def await_ready(self) -> None:
        deadline = time.monotonic() + self._orders.start_s
        while not self._is_ready():
            late = time.monotonic() > deadline
            if late:
                self._postmaster.kill()
            if late or self._postmaster.poll() is not None:
                self._logger.join(1.0)
                raise KeeperError(self._why_not(late=late))
            time.sleep(POLL_S)
        self._publish()
        _answer({"ready": True})

    def keep(self) -> None:
        """Return when the postmaster is gone, for whatever reason, and nothing of it is left."""
        self._in_background(self._await_last_lease)
        self._in_background(self._stop_when_asked)
        self._postmaster.wait()
        self._gone.set()
        _end_orphans()
        self._logger.join(1.0)
        if self._is_our_directory():
            _remove(self._orders.status, self._orders.socket_directory)

    def _is_our_directory(self) -> bool:
        """False when it was deleted under us: what stands there now is another server's."""
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

    def _why_not(self, *, late: bool) -> str:
        log = self._orders.log
        if late:
            return f"postgres was not ready within {self._orders.start_s:.0f} s; see {log}"
        return f"postgres stopped while starting (see {log}): {_last_lines(_read(log, tail=True))}"

    def _publish(self) -> None:
        status = self._orders.status
        with open(status + ".new", "w", encoding="ascii") as file:
            json.dump({"keeper": os.getpid(), "postmaster": self._postmaster.pid}, file)
        os.rename(status + ".new", status)

    def _await_last_lease(self) -> None:
        try:
            fcntl.flock(_open_lock(self._orders.lease), fcntl.LOCK_EX)  # Granted when no user is left.
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
        """Write what the server says to its log, which never grows beyond two files of the limit."""
        pipe, log = self._postmaster.stdout, self._orders.log
        assert pipe is not None
        while chunk := os.read(pipe.fileno(), 65_536):
            with contextlib.suppress(OSError):  # A full disk must not stop the reading, or the server would block.
                fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
                try:
                    os.write(fd, chunk)
                    if os.fstat(fd).st_size > LOG_LIMIT_BYTES:
                        os.rename(log, log + ".1")
                finally:
                    os.close(fd)

    def _in_background(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


def _dying_with_us(how: signal.Signals) -> Callable[[], None]:
    """For preexec_fn, which runs after setuid: changing the user would clear the death signal."""
    keeper = os.getpid()

    def in_child() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(how), 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)

    return in_child


class _Account(TypedDict, total=False):
    """Arguments of subprocess that drop root's rights; none when there are none to drop."""

    user: int
    group: int
    extra_groups: list[int]


def _account(orders: Orders) -> _Account:
    if orders.uid is None or orders.gid is None:
        return {}
    return {"user": orders.uid, "group": orders.gid, "extra_groups": []}


def _give(path: str, orders: Orders) -> None:
    if orders.uid is not None and orders.gid is not None:
        os.chown(path, orders.uid, orders.gid)


def _end_orphans() -> None:
    """Reap the backends of a killed postmaster; one that computes on without noticing is killed too."""
    deadline = time.monotonic() + ORPHANS_S
    while time.monotonic() < deadline + ORPHANS_S:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                for child in _children():
                    _signal(child, signal.SIGKILL)
            time.sleep(POLL_S)


def _children() -> Iterator[int]:
    for pid in _all_processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                yield pid


def _all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _signal(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


def _read(path: str, *, tail: bool = False) -> str:
    """At most 4 kB of a file; never through a link and never waiting for a pipe's other end."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if tail:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        return file.read(4096).decode("utf-8", "replace")


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "FATAL" in line or "error:" in line.lower()]
    return " / ".join((telling or lines)[-3:]) or "it said nothing"


def _remove(*paths: str) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(path, ignore_errors=True)


def _answer(words: dict[str, object]) -> None:
    """Tell the process that started us, if it still listens, and let go of its pipes."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(words).encode() + b"\n")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)


if __name__ == "__main__":
    main()
