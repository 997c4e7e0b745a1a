"""`outlive worker` as a process, whose log goes to a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from outlive import config
from outlive.errors import OutliveError
from outlive.temporary.program import dying_with_this, stop

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
        stop(process)


def start_worker(target: str, *, url: str, slots: int, log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker that the caller must stop. If the caller is killed, the kernel kills the worker."""
    with log.open("ab") as file:
        return subprocess.Popen(
            dying_with_this([*worker_words(target, slots=slots), "--quiet"]),
            env=worker_environment(url) | dict(more),
            cwd=log.parent,  # The current directory may have an outlive.toml.
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C reaches only the caller, which then stops the worker.
        )


def worker_words(target: str, *, slots: int) -> list[str]:
    return [sys.executable, "-m", "outlive", "worker", target, "--slots", str(slots)]


def worker_environment(url: str) -> dict[str, str]:
    """The environment of a worker: this one, but with no other settings of outlive than the database."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OUTLIVE_") and name not in config.ALIASES
    }
    return ours | {"OUTLIVE_DATABASE_URL": url}


def expect_alive(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Raise an error with the end of the log if the worker has ended."""
    if (code := process.poll()) is not None:
        last = (directory / LOG).read_text(errors="replace")[-2000:]
        raise OutliveError(f"the worker ended with exit code {code}: {last}")
