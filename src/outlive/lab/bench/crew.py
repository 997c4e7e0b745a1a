"""The processes that run what is timed, so that the progress bar and each other's Python don't slow them down.

An order says what to prepare and what to time; it travels to a process of the crew, which says when it is ready and
begins when all are. A process lives for the whole bench and serves one order at a time.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, Self, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Order(Protocol[T_co]):
    """Can be pickled; `prepare` is not timed and gives what is."""

    def prepare(self) -> Callable[[], T_co]: ...


class OrderFailed(Exception):
    """A process of the crew could not do what it was told; its traceback is the message."""


class Crew:
    """Processes made when they are first needed; they end with the crew, or when their pipe breaks."""

    def __init__(self) -> None:
        self._members: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _process, pipe in self._members:
            pipe.close()
        for process, _pipe in self._members:
            process.join(5.0)
            if process.is_alive():
                process.terminate()
                process.join()

    def measure(self, orders: Sequence[Order[T]]) -> list[T]:
        """Carry out the orders at the same time, each in a process of its own."""
        while len(self._members) < len(orders):
            self._hire()
        pipes = [pipe for _, pipe in self._members[: len(orders)]]
        for pipe, order in zip(pipes, orders, strict=True):
            pipe.send(order)
        for pipe in pipes:
            _answer(pipe)
        for pipe in pipes:
            pipe.send("go")
        return [_answer(pipe) for pipe in pipes]

    def _hire(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._members.append((process, ours))


def _answer(pipe: Connection) -> Any:
    try:
        failed, answer = pipe.recv()
    except EOFError:
        raise OrderFailed("a process of the bench died") from None
    if failed:
        raise OrderFailed(answer)
    return answer


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The first process ends us, by closing the pipe.
    try:
        while True:
            order: Order[object] = pipe.recv()
            try:
                timed = order.prepare()
                pipe.send((False, None))
                pipe.recv()
                pipe.send((False, timed()))
            except EOFError:
                return
            except Exception:
                pipe.send((True, traceback.format_exc()))
    except (EOFError, OSError):
        return
