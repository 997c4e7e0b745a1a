"""The supervisor's end of a child's tickets (see protocol.py): both ends of a pipe in one descriptor per child.

The child can only read its end: a job that writes into a descriptor by mistake makes no ticket.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from outlive import linux
from outlive.protocol import TICKET_BYTES, read_tickets, write_tickets

_MOST_BYTES = 65536
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


def make() -> tuple[int, int]:
    """The supervisor's end and the child's."""
    read, write = os.pipe2(_FLAGS)
    try:
        return os.open(f"/proc/self/fd/{write}", os.O_RDWR | _FLAGS), read
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)


def put(descriptor: int, tokens: Iterable[int]) -> bool:
    """False if they do not all fit, because a job has opened the pipe and written into it."""
    data = write_tickets(tokens)
    with contextlib.suppress(BlockingIOError):
        return os.write(descriptor, data) == len(data)
    return False


def take_back(descriptor: int) -> set[int]:
    """Take back the tickets that are left: the tokens of jobs that the child can no longer begin.

    A job may have read half a ticket, or opened the pipe to write into it: only whole tickets count.
    """
    with contextlib.suppress(BlockingIOError):
        data = os.read(descriptor, _MOST_BYTES)
        return set(read_tickets(data[: len(data) - len(data) % TICKET_BYTES]))
    return set()


def left(descriptor: int) -> int:
    """How many jobs the child can still begin."""
    return linux.unread_bytes(descriptor) // TICKET_BYTES
