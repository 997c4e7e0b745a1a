"""The child's end of its socket to the supervisor. Blocking, and safe for a job's threads."""

from __future__ import annotations

import _thread
import os
import select
import socket
from collections import deque
from collections.abc import Iterable
from os import getpid
from sys import byteorder
from typing import TypeVar

from outlive import errors, linux, protocol
from outlive.child import stops, talks
from outlive.child.talks import Talk
from outlive.statement import carry_out

FEW_BYTES, MANY_BYTES = 2048, 65536
"""How much is read at once, and how much of a long frame. Decoding all jobs that were given ahead would copy a hundred
pages of the zygote, in whose gaps Python puts new objects."""
WORKER = os.environ.get("_OUTLIVE_TREE", "")
"""The id of the worker. It is read at the start, because the app or a job may clear the environment."""
T = TypeVar("T")


class SupervisorGone(Exception):
    """The supervisor has closed the socket, or has died."""


def encode(frame: protocol.Frame) -> bytes:
    """A frame as bytes. One that is too long is refused here, because the supervisor would kill the child for it."""
    data = protocol.encode_frame(frame)
    if len(data) > protocol.MAX_CHILD_FRAME_BYTES:
        raise errors.BadArguments(
            f"{len(data):,} bytes are more than a job may send to its worker at once"
            f" ({protocol.MAX_CHILD_FRAME_BYTES:,}): send less in one call"
        )
    return data


def body_of(reply: protocol.Reply) -> bytes:
    """What the supervisor has answered. An error of the call is raised."""
    if reply.error is not None:
        kind = getattr(errors, reply.error, errors.OutliveError)
        raise kind(reply.body.decode())
    return reply.body


class Channel:
    _read_bytes = FEW_BYTES
    _failed, _behind = "", 0
    """The source that failed last, and how many of the jobs given before that are still to be received."""

    def __init__(self, sock: socket.socket, tickets: int, stack: int) -> None:
        self._socket = sock
        self.tickets = tickets
        self.stack = stack  # The descriptor to which faulthandler writes. Each child puts its own file behind it.
        self._frames = protocol.FrameReader(protocol.TO_CHILD)
        self._runs: deque[protocol.Run] = deque()
        self._replies: dict[int, protocol.Reply] = {}
        self._stopping = False
        self._number = 0
        self._run: protocol.Run | None = None
        self.pid = getpid()  # It owns the socket. A copy that the job forks has the same one, and must not use it.
        self.worker = WORKER
        self._lock = _thread.allocate_lock()  # Importing threading would halve the rate of forks.

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def adopt(self, sock: int, tickets: int, stack: int) -> None:
        """In a fork of the zygote: put the child's own descriptors behind the numbers of this channel."""
        for own, number in ((sock, self._socket.fileno()), (tickets, self.tickets), (stack, self.stack)):
            os.dup2(own, number, inheritable=False)
            os.close(own)
        self.pid = getpid()

    def receive(self) -> protocol.Run:
        """Wait for the next job. Meanwhile a thread that the last job has left can't use the channel."""
        with self._lock:
            while True:
                while not self._runs:
                    self._read()
                if (run := self._take_ticket()) is not None:
                    self._run = run
                    return run

    def _take_ticket(self) -> protocol.Run | None:
        """The job of the next ticket; None if the supervisor has taken back all the jobs that were received."""
        try:
            token = int.from_bytes(os.read(self.tickets, protocol.TICKET_BYTES), byteorder, signed=True)
        except BlockingIOError:
            self._runs.clear()
            self._behind = 0
            return None
        while True:
            while self._runs:
                if (run := self._runs.popleft()).token == token:
                    return run
            self._read()

    def source_failed(self, source: str) -> None:
        """The jobs of this source that this child has ahead go back: the breaker may open."""
        self._failed, self._behind = source, linux.unread_bytes(self.tickets) // protocol.TICKET_BYTES

    def goes_back(self, run: protocol.Run) -> bool:
        """Whether this job, which was just received, must not begin because its source has failed."""
        behind, self._behind = self._behind, max(0, self._behind - 1)
        return behind > 0 and run.source == self._failed

    def unfinished(self, run: protocol.Run) -> bytes:
        """The job that has begun, and what was received after it, for `resume` in a new interpreter."""
        return b"".join(map(protocol.encode_frame, (run, *self._runs))) + self._frames.rest()

    def resume(self, unfinished: bytes) -> protocol.Run:
        self._runs.extend(frame for frame in self._frames.feed(unfinished) if isinstance(frame, protocol.Run))
        self._run = self._runs.popleft()
        return self._run

    def stopping(self) -> bool:
        """Whether the worker is shutting down."""
        self._refuse_copies()
        with self._lock, stops.held:
            while select.select([self._socket], [], [], 0)[0]:
                self._read()
        return self._stopping

    def send(self, frame: protocol.FromChild, *, now: bool = False) -> None:
        """Send a whole frame, which this channel always does now. A signal that stops the job waits until then."""
        self._refuse_copies()
        with self._lock, stops.held:
            self._socket.sendall(encode(frame))

    def call(self, verb: str, body: bytes) -> bytes:
        """Ask the supervisor and wait for its answer. An error of the call is raised here."""
        self._refuse_copies()
        with self._lock, stops.held:
            self._number += 1
            self._socket.sendall(encode(protocol.Call(self._number, verb, body, self._asking())))
            while self._number not in self._replies:
                self._read()
            reply = self._replies.pop(self._number)
        return body_of(reply)

    def _asking(self) -> int:
        """The token of the attempt that asks. After a wait it has a new one."""
        return 0 if self._run is None else self._run.token

    def talk(self, talk: Talk[T]) -> T:
        """Ask all that a job asks in a talk, and return what it makes of the answers."""
        return carry_out(talk, lambda asked: self.call(*asked))

    async def atalk(self, talk: Talk[T]) -> T:
        """The async twin of `talk`. All of it in a thread, also what asks nothing: another call may hold the lock, and
        the job's other tasks go on meanwhile."""
        import asyncio  # Not at the top: every fork would pay for the libraries that come with it.

        return await asyncio.to_thread(self.talk, talk)

    async def until_over(self, wait: Talk[T]) -> T:
        """Hold the talk of a wait. It stops the event loop: in a parked process, nothing of the job goes on."""
        return self.talk(wait)

    async def acall(self, verb: str, body: bytes) -> bytes:
        """The async twin of `call`."""
        import asyncio  # As above.

        return await asyncio.to_thread(self.call, verb, body)

    def keep_later(self, verb: str, step: protocol.KeptStep) -> None:
        """Send a step to keep, and wait for no answer."""
        self.send(protocol.Call(0, verb, talks.encoded(step), step.token), now=True)

    def note_steps(self, names: Iterable[str]) -> None:
        """Say which steps are under way, without a frame: the supervisor reads it only if this process dies."""
        self._refuse_copies()
        noted = ", ".join(names).encode()[: protocol.STEPS_UNDER_WAY_BYTES - 1]
        os.pwrite(self.stack, noted + b"\0", 0)

    def _refuse_copies(self) -> None:
        """Called before the lock is taken: it may be held by a thread that was not copied."""
        if getpid() != self.pid:
            raise errors.OutliveError(
                f"process {getpid()} is a copy that the job in process {self.pid} has forked: only the job's own"
                " process can report progress, save checkpoints or ask for anything else. Pass the value back to it,"
                " for example as the result of the pool's function"
            )

    def _read(self) -> None:
        data = self._socket.recv(max(self._read_bytes, min(MANY_BYTES, self._frames.unfinished_bytes)))
        if not data:
            raise SupervisorGone
        for frame in self._frames.feed(data):
            self._handle(frame)

    def _handle(self, frame: protocol.ToChild) -> None:
        match frame:
            case protocol.Run():
                self._runs.append(frame)
            case protocol.Reply():
                self._replies[frame.number] = frame
            case protocol.Stopping():
                self._stopping = True
