"""A program, such as `outlive worker`, as a process that dies with its parent, and whose output is read as a service
manager reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from outlive import config, linux
from outlive.errors import OutliveError

STOP_S = 10.0
HURRY_S = 0.5
READ_BYTES = 65_536
TAIL_BYTES = 2000  # How much of the last output is kept.
_WRAPPER = [sys.executable, "-I", "-S", str(Path(__file__).with_name("dies_with_parent.py"))]


def dying_with_this(words: Sequence[str]) -> list[str]:
    """The words that start a program which the kernel kills when this process dies."""
    return [*_WRAPPER, str(os.getpid()), *words]


class Program:
    """A running program. A thread reads its output through a pipe and keeps the end of it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.name, self.process, self._output = name, process, output
        self._tail = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while some := os.read(self._output.fileno(), READ_BYTES):
            self._tail = (self._tail + some)[-TAIL_BYTES:]

    def tail(self) -> str:
        if self.process.poll() is not None:
            self._reader.join(1.0)  # It may not have read the last words yet.
        return self._tail.decode(errors="replace")

    def expect_alive(self) -> None:
        """Raise an error with the end of the output if the program has ended."""
        if (code := self.process.poll()) is not None:
            raise OutliveError(f"{self.name} ended with exit code {code}: {self.tail()}")

    def stop(self) -> None:
        stop(self.process)
        self._reader.join(STOP_S)
        self._output.close()


@contextmanager
def started(
    words: Sequence[str], *, environment: Mapping[str, str], directory: Path, name: str | None = None
) -> Iterator[Program]:
    """A program that is stopped afterwards, with all processes below it."""
    process = subprocess.Popen(
        dying_with_this(words),
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches only the caller, which then stops the program.
    )
    assert process.stdout is not None
    program = Program(name or Path(words[0]).name, process, process.stdout)
    try:
        yield program
    finally:
        program.stop()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, again after a moment, and kill what does not end."""
    below = linux.descendants_of(process.pid)
    # A second Ctrl-C must not interrupt the cleaning up, which takes seconds at most. It comes to the main thread.
    in_main = threading.current_thread() is threading.main_thread()
    with handling((signal.SIGINT, signal.SIGTERM) if in_main else (), signal.SIG_IGN):
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
    """Wait for processes whose parent is gone. After a while, kill them here."""
    deadline = time.monotonic() + STOP_S
    while any(map(linux.lives, pids)):
        if time.monotonic() > deadline:
            for pid in pids:
                linux.kill(pid)
            return
        time.sleep(0.01)


def stopped_by_sigterm() -> AbstractContextManager[None]:
    """Treat SIGTERM like Ctrl-C, so that everything that was started is stopped."""
    return handling((signal.SIGTERM,), signal.default_int_handler)


@contextmanager
def handling(numbers: tuple[signal.Signals, ...], action: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    """Handle some signals differently for a while."""
    before = {number: signal.signal(number, action) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def worker(
    target: str, *, url: str, slots: int, directory: Path, more: Mapping[str, str]
) -> AbstractContextManager[Program]:
    """A worker that is stopped afterwards, and killed if that takes long. `more` goes into its environment. Its
    directory is another one than this, which may have an outlive.toml."""
    words = [*worker_words(target, slots=slots), "--quiet"]
    return started(words, environment=worker_environment(url) | dict(more), directory=directory, name="the worker")


def worker_words(target: str, *, slots: int) -> list[str]:
    return [sys.executable, "-m", "outlive", "worker", target, "--slots", str(slots)]


def worker_environment(url: str) -> dict[str, str]:
    """The environment of a worker: this one, but with no other settings of outlive than the database."""
    given = os.environ.items()
    ours = {key: value for key, value in given if not key.startswith("OUTLIVE_") and key not in config.ALIASES}
    return ours | {"OUTLIVE_DATABASE_URL": url}
