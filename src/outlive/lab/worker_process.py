"""A worker as a process of its own, for a while: started, watched, and gone with all that is below it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
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
) -> Iterator["subprocess.Popen[bytes]"]:
    """It is asked to stop at the end, and made to if it takes its time; nothing of it is left but its log.

    `more` goes into its environment.
    """
    process = start_worker(target, url=url, slots=slots, log=directory / LOG, more=more or {})
    try:
        yield process
    finally:
        _stop(process)


def start_worker(target: str, *, url: str, slots: int, log: Path, more: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Whoever starts it must stop it; if he is killed, it is too."""
    words = [str(os.getpid()), "worker", target, "--slots", str(slots), "--quiet"]
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "outlive.lab.dies_with_parent", *words],
            env=_environment(url) | dict(more),
            cwd=log.parent,  # Not where the user's outlive.toml may lie.
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for us, and we stop it.
        )


def expect_alive(process: "subprocess.Popen[bytes]", directory: Path) -> None:
    """Say what its log says if it has ended by itself."""
    if (code := process.poll()) is not None:
        last = (directory / LOG).read_text(errors="replace")[-2000:]
        raise OutliveError(f"the worker ended with exit code {code}: {last}")


def _environment(url: str) -> dict[str, str]:
    """Ours without any setting of the user's, and with the address."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OUTLIVE_") and name not in config.ALIASES
    }
    return kept | {"OUTLIVE_DATABASE_URL": url}


def _stop(process: "subprocess.Popen[bytes]") -> None:
    below = kernel.descendants_of(process.pid)
    with _deaf():
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
    """A zygote whose supervisor is gone kills what is below it, which takes a moment."""
    deadline = time.monotonic() + STOP_S
    while any(_lives(pid) for pid in pids):
        if time.monotonic() > deadline:
            for pid in pids:
                kernel.kill(pid)
            return
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    """Zombies don't: their parent has only not looked yet."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def _deaf() -> Iterator[None]:
    """A second Ctrl-C must not keep us from cleaning up; it takes seconds at most."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """As by Ctrl-C, so that what was started goes."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
