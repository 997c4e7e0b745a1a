"""`outlive worker` as a process: start it, see that it lives, and stop it with all processes below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from outlive import config, kernel
from outlive.errors import OutliveError

STOP_S = 10.0
HURRY_S = 0.5
LOG = "worker.log"


@contextmanager
def worker(
    target: str, *, url: str, slots: int, directory: Path, more: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that is stopped afterwards, and killed if that takes long. Only its log stays.

    `more` goes into its environment.
    """
    process = start_worker(target, url=url, slots=slots, log=directory / LOG, more=more or {})
    try:
        yield process
    finally:
        _stop(process)


def start_worker(target: str, *, url: str, slots: int, log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker that the caller must stop. If the caller is killed, the kernel kills the worker."""
    words = [str(os.getpid()), "worker", target, "--slots", str(slots), "--quiet"]
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OUTLIVE_") and name not in config.ALIASES
    }
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "outlive.lab.dies_with_parent", *words],
            env=ours | {"OUTLIVE_DATABASE_URL": url} | dict(more),
            cwd=log.parent,  # The current directory may have an outlive.toml.
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C reaches only the caller, which then stops the worker.
        )


def expect_alive(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Raise an error with the end of the log if the worker has ended."""
    if (code := process.poll()) is not None:
        last = (directory / LOG).read_text(errors="replace")[-2000:]
        raise OutliveError(f"the worker ended with exit code {code}: {last}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    below = kernel.descendants_of(process.pid)
    # A second Ctrl-C must not interrupt the cleaning up, which takes seconds at most.
    with handling((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN):
        process.send_signal(signal.SIGTERM)
        for patience_s, insist in ((HURRY_S, signal.SIGTERM), (STOP_S, signal.SIGKILL)):
            try:
                process.wait(patience_s)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(insist)
        process.wait()
        await_end(below)


def await_end(pids: list[int]) -> None:
    """Wait for processes whose supervisor is gone: their zygote kills them. After a while, kill them here."""
    deadline = time.monotonic() + STOP_S
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            for pid in pids:
                kernel.kill(pid)
            return
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    words = kernel.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return bool(words) and words[0] != b"Z"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that everything that was started is stopped."""
    with handling((signal.SIGTERM,), _interrupt):
        yield


@contextmanager
def handling(numbers: tuple[signal.Signals, ...], action: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    """Handle some signals differently for a while."""
    before = {number: signal.signal(number, action) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
