"""The child's end of its socket to the supervisor. Blocking, and safe for a job's threads."""

from __future__ import annotations

import _thread
import os
import select
import socket
from collections import deque
from os import getpid
from sys import byteorder

from outlive import errors
from outlive.child import stops
from outlive.protocol import (
    ARGUMENTS_PART_BYTES,
    MAX_CHILD_FRAME_BYTES,
    TICKET_BYTES,
    TO_CHILD,
    Call,
    Completing,
    Frame,
    FrameReader,
    FromChild,
    Reply,
    Run,
    Secret,
    Stopping,
    encode_frame,
)


class SupervisorGone(Exception):
    """EOF: there is nobody left to work for."""


def _bounded(message: Frame) -> bytes:
    """A frame that the supervisor takes: it kills a child that sends a longer one."""
    data = encode_frame(message)
    if len(data) > MAX_CHILD_FRAME_BYTES:
        raise errors.BadArguments(
            f"{len(data):,} bytes are more than a job may send to its worker at once ({MAX_CHILD_FRAME_BYTES:,}):"
            " send less in one call"
        )
    return data


class Channel:
    def __init__(self, sock: socket.socket, tickets: int) -> None:
        self._socket = sock
        self.tickets = tickets
        self._frames = FrameReader(TO_CHILD)
        self._runs: deque[Run] = deque()
        self._replies: dict[int, Reply] = {}
        self._secrets: dict[int, str] = {}
        self._stopping = False
        self._number = 0
        self.pid = getpid()
        """The process whose socket this is. A copy that the job forks has the same socket, and must not use it."""
        self._lock = _thread.allocate_lock()  # Importing threading would halve the rate of forks.
        self.worker = os.environ["_OUTLIVE_TREE"]  # Now: a job may clear its environment.

    def next_run(self) -> Run:
        """The next job to run; waits for it. A thread that the last one has left can't ask for anything meanwhile."""
        with self._lock:
            while True:
                while not self._runs:
                    self._read()
                if (run := self._take_ticket()) is not None:
                    return run

    def _take_ticket(self) -> Run | None:
        """The job of the next ticket; None if the supervisor has taken back all that came before."""
        try:
            token = int.from_bytes(os.read(self.tickets, TICKET_BYTES), byteorder, signed=True)
        except BlockingIOError:
            self._runs.clear()
            return None
        while True:
            while self._runs:
                if (run := self._runs.popleft()).token == token:
                    return run
            self._read()

    def unread(self) -> tuple[list[Run], bytes]:
        """What was received and not used yet, for the program that goes on with this socket."""
        return list(self._runs), self._frames.rest()

    def resume(self, runs: list[Run], rest: bytes) -> None:
        self._runs.extend(runs)
        self._frames.feed(rest)

    def told_to_stop(self) -> bool:
        self._refuse_copies()
        with self._lock, stops.held:
            while select.select([self._socket], [], [], 0)[0]:
                self._read()
        return self._stopping

    def send(self, message: FromChild) -> None:
        """All of it: a signal that ends the job waits until it is out."""
        self._refuse_copies()
        with self._lock, stops.held:
            self._socket.sendall(_bounded(message))

    def call(self, verb: str, body: bytes) -> bytes:
        """Ask, and wait for the answer; an error comes out as it was raised there."""
        self._refuse_copies()
        with self._lock, stops.held:
            self._number += 1
            number = self._number
            self._socket.sendall(_bounded(Call(number, verb, body)))
            while number not in self._replies:
                self._read()
            reply = self._replies.pop(number)
        if reply.error is not None:
            kind = getattr(errors, reply.error, errors.OutliveError)
            raise kind(reply.body.decode())
        return reply.body

    def secret(self, token: int) -> str:
        """Say that this attempt will end in a transaction of its own; what the database wants to know for that."""
        self._refuse_copies()
        with self._lock, stops.held:
            self._socket.sendall(_bounded(Completing(token)))
            while token not in self._secrets:
                self._read()
            return self._secrets.pop(token)

    def arguments(self) -> bytes:
        """The arguments of the job that runs, which are too large to come with it."""
        parts = [self.call("arguments", b"0")]
        while len(parts[-1]) == ARGUMENTS_PART_BYTES:
            parts.append(self.call("arguments", b"%d" % len(parts)))
        return b"".join(parts)

    def _refuse_copies(self) -> None:
        """Before the lock: a thread that the copy does not have may hold it."""
        if getpid() != self.pid:
            raise errors.OutliveError(
                f"process {getpid()} is a copy that the job in process {self.pid} has forked: progress, checkpoints and"
                " everything else that a job asks for are said by the job's own process. Hand the value back to it,"
                " for example as the result of the pool's function"
            )

    def _read(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise SupervisorGone
        for message in self._frames.feed(data):
            match message:
                case Run():
                    self._runs.append(message)
                case Reply():
                    self._replies[message.number] = message
                case Secret(token, secret):
                    self._secrets[token] = secret
                case Stopping():
                    self._stopping = True
