"""The protocol between supervisor, zygote and children: small tagged structs in length-prefixed frames.

Arguments and results travel as the JSON that the database stores. Only the child decodes them.
"""

from __future__ import annotations

import signal
from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from outlive.model import Schedule, SourceLimits
from outlive.policy import TaskRow
from outlive.states import Outcome

MAX_FRAME_BYTES = 64 * 1024 * 1024  # A longer frame can't come from outlive.
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024  # Of a job's result, its records and the jobs that it spawns together.
MAX_CHILD_FRAME_BYTES = MAX_PAYLOAD_BYTES + 1024 * 1024
"""The supervisor kills a child that sends a longer frame, because it has to keep frames in memory."""
CHECKPOINT = "checkpoint"  # The only step whose value is replaced (`keep_steps` in sql/statements/steps.sql).
MAX_CHECKPOINT_BYTES = 1024 * 1024
MAX_SPANS_BYTES = 256 * 1024
MAX_STEP_CHARS = 1000
MAX_STEPS = 10_000
MAX_STEP_BYTES = 16 * 1024 * 1024  # This is how much the values of a job's steps have together.
STACK_SIGNAL = signal.SIGSTKFLT  # A job's process writes its stack on this signal, which nothing else sends.
STEPS_UNDER_WAY_BYTES = 1024
"""The beginning of a child's stack file has the names of the steps that are under way, for the evidence if the child
dies. The stack follows."""
PULSE = Struct("@qqq")
"""What the beginning of the same file has in a shared child: how often its event loop has ticked or turned to other
code, the token of the attempt whose code runs, 0 between two, and that of the one whose code ran last."""
FOR_ALL = -1  # In place of a token: what the jobs of the child share is opened or closed.
TICK_S = 0.25
MAX_PRINTED_BYTES = 256 * 1024
MAX_PROGRESS_CHARS = 2000  # The longest message of a job's progress.
MAX_ERROR_CHARS = 8_001  # This and the next include the character that marks the place where a text was cut.
MAX_STACK_CHARS = 64_001
MARK = b"\0\x1eoutlive %d\x1e\0"
"""A child writes this with a job's token into its output after the job, if some of that is still unread."""


class Frame(msgspec.Struct, array_like=True):
    """The tag, its first element, gives its kind."""


# From the supervisor to a child:
class Run(Frame, tag=1):
    """Run this job. `last`: exit afterwards. Large `args` are left out: the child asks for them in parts."""

    token: int
    job_id: bytes
    task: str
    attempt: int
    args: bytes | None
    last: bool
    max_result_bytes: int
    source: str = ""
    trace: tuple[str, str] | None = None
    """With OpenTelemetry: the context of the attempt's span, as the headers traceparent and tracestate. With Sentry
    alone: that of the span that has enqueued the job, with Sentry's baggage in place of tracestate."""
    steps: bytes | None = b""  # Earlier steps, as a JSON array of names, values and arguments. None: the child asks.
    shared: bool = False  # Run it beside the other jobs of this child.
    failures: int = 0
    queue: str = ""
    decisive: bool = True  # If it fails, the job has failed: no attempt is left.
    baggage: dict[str, str] = {}
    ready_at: float = 0.0  # With a trace: when it could begin, in seconds since 1970.


class Stopping(Frame, tag=2):
    """The worker is shutting down: finish soon."""


class Reply(Frame, tag=3):
    """The answer to a Call. `error` is the name of a class in outlive.errors, if the call failed."""

    number: int
    body: bytes
    error: str | None = None

    @classmethod
    def refusing(cls, number: int, error: Exception) -> Reply:
        return cls(number, str(error).encode(errors="replace"), type(error).__name__)


class Halt(Frame, tag=7):
    """Cancel a job of a shared child, or, if it is `suspended`, only what it has left running beside its wait."""

    token: int
    suspended: bool = False
    asks_stack: bool = False  # Say first where it is.


# From a child to the supervisor:
class Done(Frame, tag=4):
    """How an attempt ended. The child adds what it has measured."""

    token: int
    outcome: Outcome
    result: bytes | None = None
    error: str | None = None
    stack: str | None = None
    final: bool = False
    after_s: float | None = None
    took_s: float = -1.0  # How long it ran, as the child measured it; negative if it did not run.
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    marked: bool = False  # The child has written MARK into its output.
    source_ok: bool | None = None
    records: bytes | None = None
    spawns: bytes | None = None
    stopped_by: int = 0
    """The signal that told the job to stop; 0 if none came. Only the supervisor knows whether it has sent that."""
    process_ended: bool = False  # A process that the job had started has ended, which may be why the job failed.
    told: bool = False  # With Sentry: the child has made an event of the job's exception, or it makes none.
    ended_at: float | None = None  # With OpenTelemetry or Sentry: the time. The supervisor reads this frame later.
    changed: str | None = None  # With `recycle_after="clean"`: the child exits, because the job has changed this in it.
    stopped: bool = False  # A signal to stop has ended the job.
    restart: bytes | None = None  # The job begins again with these arguments.


class Call(Frame, tag=5):
    """The job asks for something that only the supervisor can do. The verbs:

    - `run` runs statements;
    - `arguments`, `inputs` and `steps` fetch a part of what is too large for `Run`;
    - `batch` fetches the id of the job's batch;
    - `step` keeps a step (see `KeptStep`). A call without a number gets no answer;
    - `checkpoint` keeps the step of this name, in place of the one before;
    - `wait` suspends the job (see `Wait`). The answer comes when the wait is over, if the process is there then;
    - `complete` announces that the job ends its attempt in its own transaction, so the supervisor must not. The answer
      is a secret, which proves to the database that the job owns the attempt. `secret` asks for that alone.
    """

    number: int
    verb: str
    body: bytes
    token: int = 0  # The attempt that asks.


class KeptStep(msgspec.Struct, array_like=True):
    """What a call `step` asks to keep. The answer is the value that is kept: it may be that of another attempt."""

    name: Annotated[str, msgspec.Meta(max_length=MAX_STEP_CHARS)]
    value: bytes | None
    arguments: str | None
    took_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None
    relaxed: bool = False  # The supervisor may write it some milliseconds later. It has it even if the child dies.
    token: int = 0  # The attempt that has taken it. A thread of an earlier job in a warm child may send one too.


class Wait(msgspec.Struct, array_like=True):
    """What a call `wait` asks for: to wait in a step until some time has passed, until a signal comes, or until jobs
    have ended: those that are spawned by it, or those with these ids."""

    token: int
    step: Annotated[str, msgspec.Meta(max_length=MAX_STEP_CHARS)]
    after_s: float | None = None
    signal: str | None = None
    spawns: bytes | None = None
    needs: list[bytes] | None = None


class Waited(msgspec.Struct, array_like=True):
    """The answer to a `wait` that is over: the attempt from now on, and what was received."""

    token: int
    attempt: int
    received: bool
    value: bytes | None


class Progress(Frame, tag=6):
    token: int
    current: float | None
    total: float | None
    message: str | None

    def after(self, before: Progress) -> Progress:
        """The latest value of each field, where `before` came earlier."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)
        return Progress(*[old if new is None else new for new, old in pairs])


class Printed(Frame, tag=8):
    """What a job of a shared child has printed or logged: whole lines, or the end."""

    token: int
    data: bytes


class Stack(Frame, tag=20):
    """Where a job of a shared child was when it was told to end: it may be killed with its process."""

    token: int
    stack: str


class Imported(Frame, tag=17):
    """A child with its own interpreter has imported the app: from now on the job is to blame if the child dies."""

    token: int


class Spans(Frame, tag=19):
    """Spans of OpenTelemetry that have ended in the child: telemetry/spans.py, as msgpack. Or a transaction of Sentry,
    in its envelope."""

    spans: bytes
    to_sentry: bool = False


# Between the supervisor and a zygote or a parent:

FORK = b"\n"
"""The zygote forks a parent for this request, and a parent a child. Its descriptors come along: a control socket for a
parent; socket, output, stack file and tickets for a child. The answers come in the order of the requests."""


class Ready(Frame, tag=9):
    """The app is imported."""

    tasks: list[TaskRow]
    sources: list[SourceLimits]
    schedules: list[Schedule]
    threads: list[str]  # The names of threads that a fork loses.
    settings: dict[str, Any]  # Those in code.
    sentry: dict[str, str] = {}  # Options of the app's client of Sentry.
    sentry_is_silent: bool = False  # It has a client, but the setting is off.
    unused_results: list[str] = []  # Of which tasks and steps the annotation is not used, and why.


class Broken(Frame, tag=10):
    """The app can't be imported."""

    reason: str
    traceback: str


class Forked(Frame, tag=11):
    pid: int


class NotForked(Frame, tag=12):
    reason: str


class Exited(Frame, tag=13):
    """A child has died, and every process that it left behind was killed or reported as `Left`."""

    pid: int
    status: int
    peak_memory_bytes: int
    cpu_s: float


class Left(Frame, tag=16):
    """A job has left a process behind that can't be killed."""

    pid: int


ToChild = Run | Stopping | Reply | Halt
FromChild = Done | Call | Progress | Printed | Stack | Imported | Spans
FromZygote = Ready | Broken | Forked | NotForked | Exited | Left

TICKET_BYTES = 8
"""A ticket is the token of a job. The supervisor writes it to a pipe before it sends Run, and the child reads it before
it begins the job. The supervisor can read the pipe too. Each ticket is read once: so the supervisor knows which jobs
have begun, and can take back the others even if the child hangs."""


def write_tickets(tokens: Iterable[int]) -> bytes:
    return array("q", tokens).tobytes()


def read_tickets(data: bytes) -> list[int]:
    """Only whole tickets count: a job may have read half of one, or opened the pipe to write into it."""
    return array("q", data[: len(data) - len(data) % TICKET_BYTES]).tolist()


T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
# Making a decoder takes milliseconds, so these are made once, before any fork.
TO_CHILD: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
FROM_CHILD: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
FROM_ZYGOTE: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)


def answer_wait(number: int, waited: Waited) -> Reply:
    return Reply(number, _encoder.encode(waited))


def encode_frame(frame: Frame) -> bytes:
    body = _encoder.encode(frame)
    return len(body).to_bytes(4, "big") + body


class GarbledFrame(ValueError):
    """A frame can't be decoded. The frames before it could."""

    def __init__(self, error: Exception, before: list[Any]) -> None:
        super().__init__(str(error))
        self.before = before


class FrameReader(Generic[T]):
    """Turns a stream of bytes into frames."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T], max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder, self._max_bytes = decoder, max_bytes
        self._buffer = bytearray()
        self.unfinished_bytes = 0  # The length of the frame whose beginning has arrived, or 0.

    def feed(self, data: bytes) -> list[T]:
        """Add bytes that have arrived. Returns the frames that are complete now."""
        buffer = self._buffer
        buffer += data
        frames: list[T] = []
        start, end = 0, len(buffer)
        self.unfinished_bytes = 0
        try:
            with memoryview(buffer) as view:
                while end - start >= 4:
                    length = int.from_bytes(view[start : start + 4], "big")
                    if length > self._max_bytes:
                        raise ValueError(f"a frame of {length} bytes is over the limit of {self._max_bytes}")
                    if end - start - 4 < length:
                        self.unfinished_bytes = length
                        break
                    frames.append(self._decoder.decode(view[start + 4 : start + 4 + length]))
                    start += 4 + length
        except (ValueError, RecursionError) as error:
            raise GarbledFrame(error, frames) from None
        del buffer[:start]
        return frames

    def rest(self) -> bytes:
        """The beginning of a frame that is not complete yet."""
        return bytes(self._buffer)
