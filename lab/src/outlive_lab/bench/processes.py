"""The processes that run the timed code, so that neither the progress bar nor other timed code slows it down.

A probe is a function that can be pickled and makes a generator: it prepares, yields when it is ready, and then does the
work that is timed and returns what it measured. All probes of a sample start when the last one is ready.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self, TypeVar

from outlive.errors import OutliveError

T = TypeVar("T")
Probing = Generator[None, None, T]
Probe = Callable[[], Generator[None, None, T]]


class Processes:
    """Processes that start when they are first needed and serve one probe at a time. They end with this object."""

    def __init__(self) -> None:
        self._running: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _process, pipe in self._running:
            pipe.close()
        for process, _pipe in self._running:
            process.join(5.0)
            process.kill()
            process.join()

    def measure(self, probes: Sequence[Probe[T]]) -> list[T]:
        """Run the probes at the same time, each in its own process."""
        while len(self._running) < len(probes):
            self._start()
        pipes = [pipe for _, pipe in self._running[: len(probes)]]
        for pipe, probe in zip(pipes, probes, strict=True):
            pipe.send(probe)
        for pipe in pipes:
            _answer(pipe)
        for pipe in pipes:
            pipe.send("go")
        return [_answer(pipe) for pipe in pipes]

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._running.append((process, ours))


def _answer(pipe: Connection) -> Any:
    try:
        failure, answer = pipe.recv()
    except EOFError:
        raise OutliveError("a process of the bench died") from None
    if failure:
        raise OutliveError(failure)
    return answer


def _serve(pipe: Connection) -> None:
    """Run one probe after the other, until the bench closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            probe: Probe[object] = pipe.recv()
            try:
                pipe.send((None, _run(probe, pipe)))
            except Exception:
                pipe.send((traceback.format_exc(), None))


def _run(probe: Probe[object], pipe: Connection) -> object:
    probing = probe()
    next(probing)
    pipe.send((None, None))
    pipe.recv()
    try:
        return next(probing)
    except StopIteration as finished:
        return finished.value
