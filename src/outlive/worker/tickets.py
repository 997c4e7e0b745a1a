"""The supervisor's end of a child's tickets (see protocol.py): a pipe in one descriptor, because each child has one.

The child's end can only be read: what a job writes into a descriptor that it mistakes for its own is no ticket.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Iterable

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


def put(descriptor: int, tokens: Iterable[int]) -> None:
    os.write(descriptor, write_tickets(tokens))


def take_back(descriptor: int) -> set[int]:
    """The tokens of the jobs that the child has not begun. It can't begin them any more.

    A job may have read half a ticket, or opened the pipe to write into it: what is not a whole ticket is left out.
    """
    with contextlib.suppress(BlockingIOError):
        data = os.read(descriptor, _MOST_BYTES)
        return set(read_tickets(data[: len(data) - len(data) % TICKET_BYTES]))
    return set()


def left(descriptor: int) -> int:
    """How many jobs the child has not begun yet."""
    (size,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    return int(size) // TICKET_BYTES
