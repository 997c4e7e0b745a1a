"""The supervisor's end of a child's tickets (see protocol.py): a pipe in one descriptor, because each child has one."""

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


def make() -> int:
    read, write = os.pipe2(_FLAGS)
    try:
        return os.open(f"/proc/self/fd/{write}", os.O_RDWR | _FLAGS)
    finally:
        os.close(read)
        os.close(write)


def put(descriptor: int, tokens: Iterable[int]) -> None:
    os.write(descriptor, write_tickets(tokens))


def take_back(descriptor: int) -> set[int]:
    """The tokens of the jobs that the child has not begun. It can't begin them any more."""
    with contextlib.suppress(BlockingIOError):
        return set(read_tickets(os.read(descriptor, _MOST_BYTES)))
    return set()


def left(descriptor: int) -> int:
    """How many jobs the child has not begun yet."""
    (size,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    return int(size) // TICKET_BYTES
