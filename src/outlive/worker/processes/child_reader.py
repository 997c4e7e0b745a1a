"""The frames of children: they are read in bounded pieces, and checked before they count.

A job has its child's socket, so every frame may be forged. A frame counts only for the attempt that its child runs. A
child that sends what outlive's own code never sends is killed. No child keeps the worker from reading the others.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from outlive import linux, protocol
from outlive.errors import StaleAttempt
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.limits import running_time
from outlive.worker.processes.assignments import Assignment, Verdict
from outlive.worker.processes.children import Child
from outlive.worker.processes.job_output import JobOutput

if TYPE_CHECKING:
    from outlive.worker.services import Services

READ_BYTES = 64 * 1024
LARGE_BYTES = 256 * 1024
BUDGET_BYTES = 24 * 1024 * 1024
"""How much data of large frames and of steps may wait in memory to be written."""
STEPS = ("step", protocol.CHECKPOINT)
PAUSE_S = 0.003
"""How long reading pauses for a child that has jobs ahead and sends only answers: many at once cost less than one by
one."""
PAUSE_AHEAD = 4
PAUSE_ANSWERS = 64
"""How many jobs such a child has at least, and how many of the last frames of its task were answers. A child that calls
its worker must not wait for the reply. An end must not be read late if memory is limited: it would be charged for the
next job."""
MOST_PIECES = 4
"""How much is read of one child before it is the turn of others."""
MAX_CALLS = 8
"""How many calls of one child may wait for their answers. A child makes one at a time, unless a signal of the job's own
interrupts it."""


class _Name(msgspec.Struct, array_like=True):
    """The beginning of a `protocol.KeptStep`."""

    name: str


class ChildReader:
    def __init__(self, report: Services, done: Callable[[Child, protocol.Done], None]) -> None:
        self._report, self._done = report, done
        self._turns: deque[Child] = deque()
        """Children that have begun a large frame. Only that of the first one is read."""
        self._answers: Counter[str | None] = Counter()
        """How many of the last frames of each task were answers of jobs, without another one in between."""

    def listen(self, child: Child) -> None:
        self._listen(child)
        asyncio.get_running_loop().add_reader(child.pipe, self.read_output, child)

    def read(self, child: Child) -> bool:
        """Read a piece; False if there is no more to read now."""
        if child.distrusted:
            return False
        try:
            data = child.socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self._stop_reading(child)
            return False
        garbled: protocol.GarbledFrame | None = None
        try:
            messages = child.frames.feed(data)
        except protocol.GarbledFrame as error:  # The frames before it count: an earlier job may have answered.
            messages, garbled = error.before, error
        for message in messages:
            self._handle(child, message)
            if child.distrusted:
                return False
        if garbled is not None:
            self.distrust(child, f"sends a frame that can't be decoded ({garbled})")
            return False
        if child.unsent:
            child.flush()
        large = child.frames.unfinished_bytes > LARGE_BYTES or child in self._turns
        has_step = any(type(one) is protocol.Call and one.verb in STEPS for one in messages)
        if large or (has_step and self._report.pending_bytes() > BUDGET_BYTES):
            self._take_turns(child)
        elif len(child.given) >= PAUSE_AHEAD and self._answers[child.task] >= PAUSE_ANSWERS and not child.measured:
            self._stop_reading(child)
            asyncio.get_running_loop().call_later(PAUSE_S, self._read_on, child)
        return True

    def _handle(self, child: Child, message: protocol.FromChild) -> None:
        if type(message) is protocol.Done:
            self._answers[child.task] += 1
            self._end(child, message)
            return
        self._answers[child.task] = 0
        match message:
            case protocol.Call():
                self._call(child, message)
            case protocol.Progress():
                self._progress(child, message)
            case protocol.Printed(token, data):
                if (one := child.find(token)) and child.shared and len(data) <= protocol.MAX_PRINTED_BYTES:
                    one.output = one.output or JobOutput()
                    one.output.add(data, one.job)
            case protocol.Stack(token, stack):
                if (one := child.find(token)) and child.shared and len(stack) <= protocol.MAX_STACK_CHARS:
                    one.stack = stack
            case protocol.Spans(spans, to_sentry):
                if len(spans) <= protocol.MAX_SPANS_BYTES:
                    self._report.traced(spans, to_sentry=to_sentry)
            case protocol.Imported(token):
                if one := child.find(token):
                    one.imported = True

    def _read_on(self, child: Child) -> None:
        if child not in self._turns:
            self._listen(child)

    def _listen(self, child: Child) -> None:
        if not (child.exited or child.distrusted):
            asyncio.get_running_loop().add_reader(child.socket, self.read, child)

    def _stop_reading(self, child: Child) -> None:
        asyncio.get_running_loop().remove_reader(child.socket)

    def read_sent(self, child: Child) -> None:
        """Read the frames that it has sent so far. If it is dead, a process that it left behind may go on writing."""
        left_bytes = linux.unread_bytes(child.socket.fileno())
        while left_bytes > 0 and self.read(child):
            left_bytes -= READ_BYTES

    def read_answers(self, child: Child) -> None:
        """Read the frames that it has sent so far, unless it waits for its turn."""
        if child.socket.fileno() >= 0 and child not in self._turns:
            self.read(child)

    def read_output(self, child: Child) -> None:
        """Read what it has printed, when it is known which job has done so.

        A job begins after the end of the one before it was sent, and that one has marked its output if some was unread.
        So if the pipe is not empty, and then there is no frame, the pipe begins with output of the current job.
        """
        for _ in range(MOST_PIECES):
            if child in self._turns or not linux.unread_bytes(child.pipe.fileno()):
                return
            if not self.read(child):
                child.read_output(child.current.job if child.given else None)
                return

    def distrust(self, child: Child, reason: str) -> None:
        """Kill a child that breaks the protocol, and ignore what else it sends."""
        log.error("child %d %s: it is killed", child.pid, reason)
        self._stop_reading(child)
        child.retiring = child.distrusted = True
        if child.given and not child.shared:
            child.current.decide(Verdict(Outcome.CRASHED, f"its process {reason}"))
        child.signal(signal.SIGKILL)
        self.forget(child)

    def _end(self, child: Child, done: protocol.Done) -> None:
        if child.shared and done.token in child.shared.suspended:
            return  # It did not know yet that this job waits.
        if not child.find(done.token):
            self.distrust(child, "answers for a job that it does not run")
        elif len(done.error or "") > protocol.MAX_ERROR_CHARS or len(done.stack or "") > protocol.MAX_STACK_CHARS:
            self.distrust(child, "sends an error over the limit")
        else:
            self._done(child, done)

    def _call(self, child: Child, call: protocol.Call) -> None:
        most = MAX_CALLS * (child.shared.seats if child.shared else 1)
        if child.asking + child.unread >= most:
            self.distrust(child, f"has {most} calls under way and reads no answer")
            return
        if call.number:
            child.asking += 1
        elif call.verb not in STEPS:
            self.distrust(child, "makes a call without a number")
            return
        one = child.find(call.token)
        if call.verb in ("complete", "secret"):
            child.answer(self._prove(one, call))
        elif call.verb == protocol.CHECKPOINT and not _is_checkpoint(call.body):
            self.distrust(child, "sends a checkpoint under another name")
        elif call.verb in STEPS and not self._may_keep(child, one, call):
            self.distrust(child, "sends more than a job can keep")
        else:
            self._report.called(child, call)

    def _may_keep(self, child: Child, one: Assignment | None, call: protocol.Call) -> bool:
        """Whether the steps of this attempt are within the limits of a job. Each has a name and arguments beside its
        value. One of no attempt counts too: it may be one of many that are forged. A checkpoint replaces the last."""
        if call.verb == protocol.CHECKPOINT:
            return len(call.body) <= protocol.MAX_CHECKPOINT_BYTES + protocol.MAX_STEP_CHARS
        if (job := one or next(iter(child.given.values()), None)) is None:
            return True
        job.steps += 1
        job.steps_bytes += len(call.body)
        return job.steps <= protocol.MAX_STEPS and job.steps_bytes <= 2 * protocol.MAX_STEP_BYTES

    def _prove(self, one: Assignment | None, call: protocol.Call) -> protocol.Reply:
        if one is None:
            return protocol.Reply.refusing(call.number, StaleAttempt("the attempt is no longer under way"))
        one.completing = one.completing or call.verb == "complete"
        return protocol.Reply(call.number, self._report.secret_of(call.token).encode())

    def _progress(self, child: Child, progress: protocol.Progress) -> None:
        """Progress counts only for the current job: a thread of an earlier job in a warm child may report too."""
        if len(progress.message or "") > protocol.MAX_PROGRESS_CHARS:
            self.distrust(child, "sends progress over the limit")
        elif one := child.find(progress.token):
            one.moved = running_time.now()
            self._report.progressed(progress)

    def _take_turns(self, child: Child) -> None:
        """Read one large frame at a time: this child's goes on, or waits until those of others are written."""
        if child not in self._turns:
            self._turns.append(child)
            self._stop_reading(child)
            asyncio.get_running_loop().remove_reader(child.pipe)  # The frame may be the end of a job.
            self.resume()
        elif child.frames.unfinished_bytes <= LARGE_BYTES:
            self.forget(child)

    def resume(self) -> None:
        """Read the next large frame, if it fits beside the data that is not written yet."""
        if self._turns:
            pending_bytes = self._report.pending_bytes()
            if not pending_bytes or pending_bytes + self._turns[0].frames.unfinished_bytes <= BUDGET_BYTES:
                self._listen(self._turns[0])

    def forget(self, child: Child) -> None:
        """The child has no large frame any more, or is gone: read the next one."""
        if child in self._turns:
            self._turns.remove(child)
            if not child.exited:
                asyncio.get_running_loop().add_reader(child.pipe, self.read_output, child)
            self.resume()


def _is_checkpoint(body: bytes) -> bool:
    """A checkpoint counts for no limit of steps, because it replaces the last one: it must have its name."""
    try:
        return msgspec.msgpack.decode(body, type=_Name).name == protocol.CHECKPOINT
    except msgspec.MsgspecError:
        return False
