"""A child as the supervisor sees it: its socket, its output, its jobs, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import msgspec

from outlive import linux, protocol
from outlive.model import Claimed, Kept, MemoryCourse
from outlive.protocol import Reply, Run, TaskFacts, encode_frame
from outlive.states import Outcome
from outlive.worker.limits import running_time
from outlive.worker.limits.cgroups import Group
from outlive.worker.limits.memory import MemorySeries, Survey
from outlive.worker.processes.job_output import JobOutput

if TYPE_CHECKING:
    from outlive.worker.processes.zygote_handle import Parent, ZygoteHandle

STACK_BYTES = 64 * 1024
MOST_TICKETS_BYTES = 64 * 1024
KILL_AFTER_S = 5.0
LEAVE_S = 2.0
"""How long a child may take to exit after its last job."""
AHEAD_S = 0.03
"""How much work a warm child is given ahead."""
OVER_S = 2 * AHEAD_S


class Verdict(NamedTuple):
    """The supervisor's decision to end an attempt, and why."""

    outcome: Outcome
    error: str
    again_s: float | None = None
    """After how many seconds the job may begin again, if it is released."""


LEASE_LOST = Verdict(Outcome.RELEASED, "its lease could not be renewed in time")
GIVEN_UP = Verdict(Outcome.LOST, "given up by others")


class Assignment(msgspec.Struct, eq=False, gc=False):
    """An attempt on its way through a slot."""

    job: Claimed
    facts: TaskFacts
    timeout_s: float | None
    stall_s: float | None
    memory_bytes: int | None
    kept: Kept
    marked: bool
    """The database has it as begun: it was claimed for a free slot, or was marked since."""
    alone: bool = False
    """A suspect: no other job may run in this worker until the database has recorded that one does."""
    taken: float = msgspec.field(default_factory=time.monotonic)
    waits_until: float = 0.0
    """When it is released if no child has taken it."""
    started: float = 0.0
    """By the monotonic clock, like `taken` and `waits_until`."""
    counted_from: float = 0.0
    """When it began and when it last moved, by running time: limits are judged by that."""
    moved: float = 0.0
    begun: bool = False
    imported: bool = False
    """With `preload=False`: its own interpreter has imported the app."""
    steps: int = 0
    steps_bytes: int = 0
    """How many steps it has sent in this attempt, and how much that was."""
    completing: bool = False
    verdict: Verdict | None = None
    """Only `decide` sets it."""
    term_sent: float | None = None
    """By running time."""
    peak_bytes: int = 0
    base_bytes: int = 0
    """The memory of its child when it began."""
    begun_at: float = 0.0
    """Wall-clock time, which files are stamped with."""
    trace: tuple[str, str] | None = None
    """The context of its span, if it has one."""
    kills_before: int = 0
    """How many processes of its child the kernel had killed for lack of memory before it began."""
    series: MemorySeries | None = None
    """None until its memory is measured."""

    def decide(self, verdict: Verdict) -> None:
        """Decide how it ends. The first decision stays, unless the lease is lost: then it is charged with nothing."""
        if self.verdict is None or verdict is LEASE_LOST:
            self.verdict = verdict

    def memory(self, outcome: Outcome, took_s: float) -> bytes | None:
        """How its memory changed, if that is worth keeping."""
        return None if self.series is None else self.series.kept(outcome, took_s, self.memory_bytes)

    def memory_so_far(self) -> MemoryCourse | None:
        return None if self.series is None else self.series.course(self.memory_bytes)


_frames = partial(protocol.FrameReader, protocol.FROM_CHILD, protocol.MAX_CHILD_FRAME_BYTES)


@dataclass(slots=True, eq=False)
class Child:
    parent: Parent
    socket: socket.socket
    pipe: FileIO
    stack: FileIO
    tickets: FileIO
    """Both ends of the pipe, of which the child has one: see `protocol.TICKET_BYTES`."""
    pid: int = 0
    group: Group | None = None
    task: str | None = None
    served: int = 0
    given: deque[Assignment] = field(default_factory=deque)
    frames: protocol.FrameReader[protocol.FromChild] = field(default_factory=_frames)
    output: JobOutput = field(default_factory=JobOutput)
    unsent: bytearray = field(default_factory=bytearray)
    waiting_to_send: bool = False
    asking: int = 0
    """How many of its calls wait for an answer."""
    unread: int = 0
    """How many answers it may not have read."""
    retiring: bool = False
    distrusted: bool = False
    leaving_since: float | None = None
    """Since when (running time) it should have exited."""
    exited: bool = False
    inherited_bytes: int | None = None
    """The memory inherited from its parent when its first limited job began; 0 for a new interpreter."""
    executed: bool = False
    """Whether it runs a new interpreter by now: until then its memory is its parent's."""
    born_at: float = field(default_factory=time.time)
    _survey: Survey | None = None
    stack_bytes: int = protocol.STEPS_UNDER_WAY_BYTES
    """How much of its stack file belongs to earlier jobs."""
    cpu_s: float = 0.0
    """The CPU time of its earlier jobs."""
    parked: Assignment | None = None
    """The job that waits in its process: another worker may claim it at any time."""
    parked_at: float = 0.0
    parked_call: int = 0
    """The number of the call in which it waits."""

    @property
    def survey(self) -> Survey:
        self._survey = self._survey or Survey(self.pid)
        return self._survey

    @property
    def zygote(self) -> ZygoteHandle:
        return self.parent.zygote

    @property
    def current(self) -> Assignment:
        """The first of its jobs, which it runs or is about to begin."""
        return self.given[0]

    @property
    def measured(self) -> bool:
        """Whether the memory of its job is limited."""
        return self.group is not None or self.current.memory_bytes is not None

    @property
    def bound(self) -> bool:
        """Whether it may run more jobs of its task after those that it has."""
        return self.task is not None and not self.retiring and self.parked is None

    @property
    def held_up(self) -> bool:
        """Whether no job should wait behind its own: one of them has losses, or is being stopped."""
        return any(one.job.losses or one.verdict for one in self.given)

    def runs(self, token: int) -> bool:
        return bool(self.given) and self.given[0].job.token == token

    def give(self, assignments: list[Assignment], max_result_bytes: int) -> bool:
        """Send it jobs, which it runs in order. False if its tickets are full: then it has none of them."""
        data = protocol.write_tickets(one.job.token for one in assignments)
        if self.tickets.write(data) != len(data):  # A job has opened the pipe and written into it.
            return False
        idle = not self.given
        self.given.extend(assignments)
        if idle:
            self.begin()
        self.task = assignments[0].job.task
        for one in assignments:
            job = one.job
            self.served += 1
            last = self.served >= one.facts.max_jobs
            limits = (last, max_result_bytes, one.kept.checkpoint, job.source, one.trace, one.kept.steps)
            self.send(Run(job.token, job.id.bytes, job.task, job.attempt, job.args, *limits))
        self.retiring = self.retiring or last
        self.flush()
        return True

    def park(self, call: int) -> None:
        """Its job is suspended. The process waits for the answer to this call."""
        self.parked, self.parked_at, self.parked_call = self.given.popleft(), time.monotonic(), call

    def resume(self, job: Claimed, waited: protocol.Waited) -> Assignment:
        """Its job was claimed again and goes on. Its limits count from now."""
        assert self.parked is not None
        one, self.parked = self.parked, None
        one.job, one.started = job, time.monotonic()
        one.counted_from = one.moved = running_time.now()
        self.given.append(one)
        self.answer(protocol.answer_wait(self.parked_call, waited))
        return one

    def recall(self) -> list[Assignment]:
        """Take back the jobs that it did not begin."""
        tokens = set(protocol.read_tickets(self.tickets.read(MOST_TICKETS_BYTES) or b""))
        back = [one for one in self.given if one.job.token in tokens]
        if back:
            self.given = deque(one for one in self.given if one.job.token not in tokens)
            self.served -= len(back)
            if self.retiring and not self.given:
                self.dismiss()  # It was waiting for its last job.
        return back

    def has_begun(self) -> bool:
        current = self.current
        left_bytes = 0 if current.begun else linux.unread_bytes(self.tickets.fileno())
        current.begun = current.begun or left_bytes < len(self.given) * protocol.TICKET_BYTES
        return current.begun

    def runs_over(self, now: float) -> bool:
        """Whether its job takes longer than all the work that a child is given ahead: no job should wait behind it."""
        return bool(self.given) and now - self.current.started > OVER_S

    def begin(self) -> None:
        """Its first job begins, with the memory that the child has now."""
        assignment = self.current
        assignment.started = time.monotonic()
        assignment.counted_from = assignment.moved = running_time.now()
        if assignment.memory_bytes is not None:
            assignment.begun_at = time.time()
            preloaded = assignment.facts.preload
            if preloaded or self.served:
                self.survey.look()
                assignment.base_bytes = sum(self.survey.resident_bytes())
            if self.inherited_bytes is None:
                self.inherited_bytes = assignment.base_bytes if preloaded else 0
            if self.group is not None:
                assignment.kills_before = self.group.kills()
                self.group.forget_peak()
        if self.group is not None:
            self.limit(assignment, self.group)

    def limit(self, assignment: Assignment, group: Group) -> None:
        """Set the kernel's limit. The kernel counts copied pages of the zygote, and the watch does not: so the limit
        comes on top of what the child has already.
        """
        limit_bytes = assignment.memory_bytes
        group.limit(None if limit_bytes is None else limit_bytes + max(assignment.base_bytes, group.used_bytes()))

    def send(self, message: protocol.Frame) -> None:
        self.unsent += encode_frame(message)

    def answer(self, reply: Reply) -> None:
        if not reply.number:
            return  # It does not wait for one.
        self.asking -= 1
        if not self.exited:
            self.send(reply)
            self.unread += 1
            self.flush()

    def flush(self) -> None:
        """Send as much as the socket takes, and the rest later."""
        try:
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.unsent.clear()  # It is dead, and its exit is reported.
        if not self.unsent:
            self.unread = 0
        if bool(self.unsent) != self.waiting_to_send:
            self.waiting_to_send = bool(self.unsent)
            loop = asyncio.get_running_loop()
            loop.add_writer(self.socket, self.flush) if self.unsent else loop.remove_writer(self.socket)

    def read_output(self, job: Claimed | None = None) -> bool:
        """Read what it has printed in this job, or in its current one. A flood waits in the pipe. False at the end."""
        for _ in range(4):
            if not (data := self.pipe.read(65536)):
                return data is None  # There is no more for now.
            self.output.add(data, job or (self.given[0].job if self.given else None))
        return True

    def stack_of_ended(self) -> str | None:
        """The stack that faulthandler wrote for the job that has just ended, as text that Postgres accepts."""
        start, self.stack_bytes = self.stack_bytes, os.fstat(self.stack.fileno()).st_size
        data = os.pread(self.stack.fileno(), STACK_BYTES, max(start, self.stack_bytes - STACK_BYTES))
        return data.decode("utf-8", "replace").replace("\0", "") or None

    def steps_under_way(self) -> str:
        """The steps that it is in, or was in when it died."""
        data = os.pread(self.stack.fileno(), protocol.STEPS_UNDER_WAY_BYTES, 0)
        return data.partition(b"\0")[0].decode("utf-8", "replace")

    def signal(self, number: int) -> None:
        if not self.pid or self.exited:
            return
        if not linux.kill_group(self.pid, number):  # It has no process group of its own yet.
            linux.kill(self.pid, number)

    def retire(self) -> None:
        """Let it finish the jobs that it has, and give it no more.

        A parked process is killed: its job goes on elsewhere, and the code that waits in it must not see an error.
        """
        self.retiring = True
        if self.parked:
            self.parked = None
            self.signal(signal.SIGKILL)
        elif not self.given:
            self.dismiss()

    def dismiss(self) -> None:
        """Tell it to exit after the jobs that it has."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.socket)
        loop.remove_writer(self.socket)
        loop.remove_reader(self.pipe)
        for one in (self.socket, self.pipe, self.stack, self.tickets):
            one.close()


class _Limits(TypedDict, total=False):
    """The limits of a task, or those that a job has in place of them. None means no limit."""

    timeout_s: float | None
    stall_s: float | None
    memory_bytes: int | None


def assignment(job: Claimed, facts: TaskFacts, kept: Kept, *, marked: bool) -> Assignment:
    limits = _Limits(timeout_s=facts.timeout_s, stall_s=facts.stall_s, memory_bytes=facts.memory_bytes)
    if job.options is not None:
        limits.update(msgspec.json.decode(job.options, type=_Limits))
    begun = marked or job.attempt > 1  # The database always has a second attempt as begun.
    return Assignment(job, facts, kept=kept, marked=begun, alone=job.alone_s > 0, **limits)
