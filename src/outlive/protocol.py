"""What supervisor, zygote and children say to each other: small tagged structs in length-prefixed frames.

Arguments and results travel as the JSON that the database has; nobody on the way looks inside.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from outlive.model import SourceLimits
from outlive.policy import Limits

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""A longer frame is no message of ours."""
MAX_BROUGHT_BYTES = 16 * 1024 * 1024
"""Of a job's result, its records and the jobs that it spawns together; also of one call."""
ARGUMENTS_PART_BYTES = 1024 * 1024
"""Large arguments are called for in parts, so that a supervisor never has many whole ones."""
MAX_CHILD_FRAME_BYTES = MAX_BROUGHT_BYTES + 1024 * 1024
"""A child that sends a longer frame is not trusted any more: the supervisor has to keep it in memory."""
MAX_CHECKPOINT_BYTES = 1024 * 1024
MAX_PROGRESS_CHARS = 2000
"""Of what a job says with its progress."""
MAX_ERROR_CHARS = 8_001
MAX_STACK_CHARS = 64_001
"""With the mark that says that something was left out."""


MARK = b"\0\x1eoutlive\x1e\0"
"""Ends the output of a job, in the output, where some of it is still unread and the next job's may follow."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Each kind is told by its tag, the first element."""


# From the supervisor to a child


class Run(Frame, frozen=True, tag=1):
    """Run this. `last`: exit afterwards. Without `args` they are large, and called for in parts."""

    token: int
    job_id: bytes
    task: str
    attempt: int
    args: bytes | None
    last: bool
    max_result_bytes: int
    checkpoint: bytes | None = None
    source: str = ""


class Stopping(Frame, frozen=True, tag=2):
    """The worker drains: finish soon."""


class Reply(Frame, frozen=True, tag=3):
    """The answer to a Call; `error` names an exception of outlive's."""

    number: int
    body: bytes
    error: str | None = None


class Secret(Frame, frozen=True, tag=14):
    """By which the job shows the database that the attempt is its own."""

    token: int
    secret: str


# From a child to the supervisor


class Done(Frame, frozen=True, tag=4):
    """How the job ended that was to be run first."""

    token: int
    outcome: str
    result: bytes | None = None
    error: str | None = None
    stack: str | None = None
    final: bool = False
    after_s: float | None = None
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    marked: bool = False
    source_ok: bool | None = None
    records: bytes | None = None
    spawns: bytes | None = None
    stopped_by: int = 0
    """The signal that told the job to stop, if one came: who has sent it, only the supervisor knows."""


class Call(Frame, frozen=True, tag=5):
    """The job wants something that only the supervisor can do."""

    number: int
    verb: str
    body: bytes


class Progress(Frame, frozen=True, tag=6):
    token: int
    current: float | None
    total: float | None
    message: str | None
    checkpoint: bytes | None

    def after(self, before: Progress) -> Progress:
        """The latest of each, when this came after that."""
        said = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)
        return Progress(*[old if new is None else new for new, old in said])


class Completing(Frame, frozen=True, tag=7):
    """The job is about to end in a transaction of its own: don't end it in the hot statement. `Secret` answers."""

    token: int


class Imported(Frame, frozen=True, tag=17):
    """An interpreter of its own has imported the app: from now on the job is to blame for what happens."""

    token: int


# From the supervisor to the zygote, and back


class Fork(Frame, frozen=True, tag=8):
    """Make a child; its socket, its output and its stack file come along as descriptors."""

    slot: int


class TaskFacts(msgspec.Struct, frozen=True):
    """What the supervisor must know of a task whose code it never imports."""

    limits: Limits
    timeout_s: float | None
    stall_s: float | None
    memory_bytes: int | None
    recycle_after: int
    preload: bool

    @property
    def by_fingerprint(self) -> bool:
        return self.limits.quarantine_by == "fingerprint"


class Ready(Frame, frozen=True, tag=9):
    """The app is imported. `threads` names what a fork would leave behind; `database_url` is the app's own, if any."""

    tasks: list[TaskFacts]
    sources: list[SourceLimits]
    threads: list[str]
    database_url: str | None


class Broken(Frame, frozen=True, tag=10):
    """The app can't be imported."""

    reason: str
    traceback: str


class Forked(Frame, frozen=True, tag=11):
    slot: int
    pid: int


class NotForked(Frame, frozen=True, tag=12):
    slot: int
    reason: str


class Exited(Frame, frozen=True, tag=13):
    """A child is gone, and with it all that it left behind."""

    pid: int
    status: int
    peak_memory_bytes: int
    cpu_s: float


class Left(Frame, frozen=True, tag=16):
    """A process that a job has left behind, and that can't be killed."""

    pid: int


ToChild = Run | Stopping | Reply | Secret
FromChild = Done | Call | Progress | Completing | Imported
ToZygote = Fork
FromZygote = Ready | Broken | Forked | NotForked | Exited | Left

TICKET_BYTES = 8
"""A child takes a ticket, which is the job's token, before it begins a job. Tickets lie in a pipe that the supervisor
reads too: each is read once, so the supervisor knows which jobs have begun, and can take back the others, whatever the
child does meanwhile. A job's ticket is written before its Run."""


def write_tickets(tokens: Iterable[int]) -> bytes:
    return array("q", tokens).tobytes()


def read_tickets(data: bytes) -> list[int]:
    return array("q", data).tolist()


T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
# Making a decoder takes milliseconds; these are made once, before any fork.
TO_CHILD: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
FROM_CHILD: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
TO_ZYGOTE: msgspec.msgpack.Decoder[ToZygote] = msgspec.msgpack.Decoder(ToZygote)
FROM_ZYGOTE: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)


def encode_frame(message: Frame) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


class GarbledFrame(ValueError):
    """A frame can't be read. The messages that came before it can."""

    def __init__(self, error: Exception, before: list[Any]) -> None:
        super().__init__(str(error))
        self.before = before


class FrameReader(Generic[T]):
    """Takes bytes as they come and gives the messages that are whole."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T], most_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder, self._most_bytes = decoder, most_bytes
        self._buffer = bytearray()
        self.unfinished_bytes = 0
        """The length of the frame that has begun and is not whole yet."""

    def feed(self, data: bytes) -> list[T]:
        buffer = self._buffer
        buffer += data
        messages: list[T] = []
        start, end = 0, len(buffer)
        self.unfinished_bytes = 0
        view = memoryview(buffer)
        try:
            while end - start >= 4:
                length = int.from_bytes(view[start : start + 4], "big")
                if length > self._most_bytes:
                    raise ValueError(f"a frame of {length} bytes")
                if end - start - 4 < length:
                    self.unfinished_bytes = length
                    break
                messages.append(self._decoder.decode(view[start + 4 : start + 4 + length]))
                start += 4 + length
        except (ValueError, RecursionError) as error:
            raise GarbledFrame(error, messages) from None
        finally:
            view.release()
        del buffer[:start]
        return messages

    def rest(self) -> bytes:
        """The beginning of a message that is not whole yet."""
        return bytes(self._buffer)
