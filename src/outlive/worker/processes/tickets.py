"""The supervisor's end of a child's tickets (see protocol.py): both ends of a pipe in one descriptor per child.

The child can only read its end: a job that writes into a descriptor by mistake makes no ticket.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import FileIO

from outlive import linux
from outlive.protocol import TICKET_BYTES, read_tickets, write_tickets

_MOST_BYTES = 65536


def make() -> tuple[FileIO, FileIO]:
    """The supervisor's end and the child's."""
    read, write = linux.pipe(os.O_NONBLOCK)
    with write:
        return FileIO(os.open(f"/proc/self/fd/{write.fileno()}", os.O_RDWR | os.O_NONBLOCK), "r+"), read


def put(tickets: FileIO, tokens: Iterable[int]) -> bool:
    """False if they do not all fit, because a job has opened the pipe and written into it."""
    data = write_tickets(tokens)
    return tickets.write(data) == len(data)


def take_back(tickets: FileIO) -> set[int]:
    """Take back the tickets that are left: the tokens of jobs that the child can no longer begin.

    A job may have read half a ticket, or opened the pipe to write into it: only whole tickets count.
    """
    data = tickets.read(_MOST_BYTES) or b""
    return set(read_tickets(data[: len(data) - len(data) % TICKET_BYTES]))


def left(tickets: FileIO) -> int:
    """How many jobs the child can still begin."""
    return linux.unread_bytes(tickets.fileno()) // TICKET_BYTES
