"""A process that has imported the command `worker`, and forks workers: imports are most of what a start costs.

`Forked` is a worker as its test sees it, in place of a `subprocess.Popen`.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

PRELOADED = ("outlive.cli.worker", "outlive.worker.supervisor", "typer._adapters")


class Server:
    """The process that forks, started with the first worker. It ends with the process of the tests."""

    def __init__(self) -> None:
        self.environ = plain(os.environ)
        self.ends: dict[int, int] = {}
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._unread = b""

    def fork(self, words: list[str], environ: dict[str, str], folder: Path, log: Path) -> int:
        """Start a worker; returns its pid."""
        log.touch()
        with self._lock:
            self._link.sendall(json.dumps([words, environ, str(folder), str(log)]).encode() + b"\n")
            while not (started := [pid for pid, end in self._heard(within_s=60) if end is None]):
                pass
        return started[0]

    def look(self, within_s: float) -> None:
        """Read which workers have ended."""
        with self._lock:
            self._heard(within_s)

    def _heard(self, within_s: float) -> list[tuple[int, int | None]]:
        if select.select([self._link], [], [], within_s)[0]:
            self._unread += self._link.recv(65536)
        *lines, self._unread = self._unread.split(b"\n")
        found = [json.loads(line) for line in lines]
        for pid, end in found:
            self.ends.pop(pid, None)  # A pid that starts has ended before, where the kernel has come round.
            if end is not None:
                self.ends[pid] = end
        return found


class Forked:
    def __init__(self, server: Server, pid: int) -> None:
        self._server = server
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self._server.ends.get(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            self._server.look(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (3600 if timeout is None else timeout)
        while (code := self.returncode) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("outlive worker", timeout or 0)
            self._server.look(0.05)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def plain(environ: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """The variables that an interpreter or a library may read when it starts. Those of outlive are read later."""
    later = ("OUTLIVE_", "PYTEST_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "TESTED_")
    return {name: value for name, value in environ.items() if not name.startswith(later)}


def serve(link: socket.socket) -> None:
    for name in PRELOADED:
        __import__(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    awake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    lines = link.makefile("rb")
    while True:
        ready, _, _ = select.select([link.fileno(), awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            while (ended := _reaped()) is not None:
                link.sendall(json.dumps(ended).encode() + b"\n")
        if link.fileno() in ready:
            line = lines.readline()
            if not line:
                return
            if (pid := os.fork()) == 0:
                become(*json.loads(line))
                return
            link.sendall(json.dumps([pid, None]).encode() + b"\n")


def _reaped() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def become(words: list[str], environ: dict[str, str], folder: str, log: str) -> None:
    """Be what `python -m outlive …` is, with these variables, in this folder."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.closerange(3, 256)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.path[:1] = [folder, *environ["PYTHONPATH"].split(":")]
    sys.argv = ["outlive", *words]
    runpy.run_module("outlive", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
