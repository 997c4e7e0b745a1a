"""A child as the supervisor sees it: its socket, its output, its jobs, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, NamedTuple

from outlive import linux, luggage, protocol, stacks
from outlive.model import Claimed
from outlive.protocol import Reply, Run, encode_frame
from outlive.worker.limits import running_time
from outlive.worker.limits.cgroups import Group
from outlive.worker.limits.memory import Survey
from outlive.worker.processes.assignments import Assignment
from outlive.worker.processes.job_output import ChildOutput, JobOutput

if TYPE_CHECKING:
    from outlive.worker.processes.zygote_handle import Parent, ZygoteHandle

STACK_BYTES = 64 * 1024
MOST_TICKETS_BYTES = 64 * 1024
KILL_AFTER_S = 5.0
"""How long a job may take to end after SIGTERM. `Stopped` and pages name this figure."""
LEAVE_S = 2.0
"""How long a child may take to exit after its last job."""
AHEAD_S = 0.03
"""How much work a warm child is given ahead."""
OVER_S = 2 * AHEAD_S


_frames = partial(protocol.FrameReader, protocol.FROM_CHILD, protocol.MAX_CHILD_FRAME_BYTES)


class Pulse(NamedTuple):
    """What a shared child shows of itself: see `protocol.PULSE`."""

    ticks: int
    running: int
    ran_last: int


@dataclass(slots=True)
class Shared:
    """What is known of a child that runs many jobs at once."""

    seats: int
    """How many it may run."""
    output: ChildOutput = field(default_factory=ChildOutput)
    ticks: int = 0
    turned_at: float = field(default_factory=running_time.now)
    """How often its event loop has ticked, and when (running time) that was seen to change."""
    looked_at: float = 0.0
    others_cpu_s: float | None = None
    """The CPU time of its other threads when the loop was first seen to stand still."""
    used_bytes: int = 0
    aborted_at: float | None = None
    blocker: int = 0
    """The token of the attempt whose code ran when the loop was last seen to stand still."""
    grower: int = 0
    """The token of the job that has made it grow beyond its limit, if that is known."""
    suspended: set[int] = field(default_factory=set)
    """The jobs that have begun to wait in it, by token. What they had stays in its memory."""


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
    given: dict[int, Assignment] = field(default_factory=dict)
    """Its jobs by token, in the order in which it runs them."""
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
    may_park: bool = True
    """False once it was retired: if its job waits then, its process ends."""
    parked: Assignment | None = None
    """The job that waits in its process: another worker may claim it at any time."""
    parked_at: float = 0.0
    parked_call: int = 0
    """The number of the call in which it waits."""
    weighed: tuple[int, int] | None = None
    """How much memory it had at most when it was parked and weighed, and how much of that was its own."""
    shared: Shared | None = None
    """Set if it runs all of its jobs at once."""

    @property
    def survey(self) -> Survey:
        self._survey = self._survey or Survey(self.pid)
        return self._survey

    @property
    def zygote(self) -> ZygoteHandle:
        return self.parent.zygote

    @property
    def running(self) -> list[Assignment]:
        """The jobs that it runs or is about to begin."""
        return list(self.given.values()) if self.shared else [self.current] if self.given else []

    def seats_left(self, crowd: int) -> int:
        """How many more jobs it may run at once, if it is for `crowd` in all."""
        fits = self.shared is not None and self.shared.seats == crowd and self.bound and self.pid
        return crowd - len(self.given) if fits else 0

    @property
    def current(self) -> Assignment:
        """The first of its jobs, which it runs or is about to begin."""
        return next(iter(self.given.values()))

    @property
    def measured(self) -> bool:
        """Whether the memory of its job is limited."""
        return self.shared is None and (self.group is not None or self.current.memory_bytes is not None)

    @property
    def bound(self) -> bool:
        """Whether it may run more jobs of its task after those that it has."""
        return self.task is not None and not self.retiring and self.parked is None

    @property
    def held_up(self) -> bool:
        """Whether no job should wait behind its own: one of them has losses, or is being stopped."""
        return any(one.job.losses or one.verdict for one in self.given.values())

    def find(self, token: int) -> Assignment | None:
        """The attempt with this token, if it runs that."""
        one = self.given.get(token)
        return one if one is not None and (self.shared or one is self.current) else None

    def give(self, assignments: list[Assignment], max_result_bytes: int) -> bool:
        """Send it jobs, which it runs in order. False if its tickets are full: then it has none of them."""
        data = protocol.write_tickets(one.job.token for one in assignments)
        if self.tickets.write(data) != len(data):  # A job has opened the pipe and written into it.
            return False
        idle, first = not self.given, assignments[0]
        self.given |= {one.job.token: one for one in assignments}
        if first.shares and self.shared is None:
            self.shared = Shared(first.crowd)
        if idle or self.shared:
            self.begin(assignments)
        self.task = first.job.task
        for one in assignments:
            job = one.job
            self.served += 1
            last = self.served >= one.facts.max_jobs or one.apart
            limits = (last, max_result_bytes, job.source, one.trace, one.kept, one.shares, job.failures, job.queue)
            texts = luggage.of(job.options)
            ready_at = 0.0 if one.trace is None else job.ready_at.timestamp()
            more = (one.decisive, texts, ready_at)
            self.send(Run(job.token, job.id.bytes, job.task, job.attempt, job.args, *limits, *more))
        self.retiring = self.retiring or last
        self.flush()
        return True

    def park(self, call: int) -> None:
        """Its job is suspended. The process waits for the answer to this call."""
        self.parked, self.parked_at, self.parked_call = self.given.pop(self.current.job.token), time.monotonic(), call
        self.weighed = None

    def resume(self, job: Claimed, waited: protocol.Waited) -> Assignment:
        """Its job was claimed again and goes on. Its limits count from now."""
        assert self.parked is not None
        one, self.parked = self.parked, None
        one.job, one.started = job, time.monotonic()
        one.counted_from = one.moved = running_time.now()
        self.given[job.token] = one
        self.answer(protocol.answer_wait(self.parked_call, waited))
        return one

    def recall(self) -> list[Assignment]:
        """Take back the jobs that it did not begin."""
        tokens = set(protocol.read_tickets(self.tickets.read(MOST_TICKETS_BYTES) or b""))
        back = [self.given.pop(token) for token in list(self.given) if token in tokens]
        if back:
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

    def begin(self, given: list[Assignment]) -> None:
        """The first of these jobs begins, or all of them, with the memory that the child has now."""
        began, counted_from = time.monotonic(), running_time.now()
        for one in given if self.shared else given[:1]:
            one.started, one.counted_from, one.moved = began, counted_from, counted_from
        assignment = given[0]
        if self.shared and self.inherited_bytes is not None:
            return
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
        """Set the kernel's limit, on top of what the child has: the kernel counts copied pages of the zygote too."""
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

    def read_output(self, job: Claimed | None) -> None:
        """Read once what it has printed since this job began. A flood waits in the pipe."""
        if data := self.pipe.read(65536):
            if self.shared:
                self.shared.output.add(data, self.pid, self.task)
            else:
                self.output.add(data, job)

    def read_rest(self, job: Claimed | None) -> None:
        """Read what a job that has ended has left in the pipe. What comes after its mark may be of any later job."""
        for _ in range(4):
            if self.output.add(b"", job):
                return
            self.read_output(job)

    def output_of(self, one: Assignment, *, marked: bool = False) -> str | None:
        """What a job has printed that has just ended."""
        shared = one.output.end(one.job) if one.output else None
        if self.shared:
            return shared
        own = self.output.end(one.job, marked=marked)
        return own if shared is None else shared + (own or "")

    def pulse(self) -> Pulse:
        return Pulse(*protocol.PULSE.unpack(os.pread(self.stack.fileno(), protocol.PULSE.size, 0)))

    def halt(self, one: Assignment, *, suspended: bool = False, asks_stack: bool = False) -> None:
        """Let a job of a shared child be cancelled, or what it has left running beside its wait."""
        self.send(protocol.Halt(one.job.token, suspended, asks_stack))
        self.flush()

    def stack_of_ended(self) -> str | None:
        """The stack that faulthandler wrote for the job that has just ended, as text that Postgres accepts."""
        start, self.stack_bytes = self.stack_bytes, os.fstat(self.stack.fileno()).st_size
        data = os.pread(self.stack.fileno(), STACK_BYTES, max(start, self.stack_bytes - STACK_BYTES))
        return stacks.evidence(data.decode("utf-8", "replace").replace("\0", "")) or None

    def steps_under_way(self) -> str:
        """The steps that it is in, or was in when it died."""
        if self.shared:
            return ""
        data = os.pread(self.stack.fileno(), protocol.STEPS_UNDER_WAY_BYTES, 0)
        return data.partition(b"\0")[0].decode("utf-8", "replace")

    def signal(self, number: int) -> None:
        if not self.pid or self.exited:
            return
        if not linux.kill_group(self.pid, number):  # It has no process group of its own yet.
            linux.kill(self.pid, number)

    def ask_stack(self) -> None:
        """Let it write the stack of its job, unless it has done so since the job began."""
        if self.pid and not self.exited and os.fstat(self.stack.fileno()).st_size <= self.stack_bytes:
            linux.kill(self.pid, protocol.STACK_SIGNAL)

    def stop(self) -> None:
        """Tell its jobs to end at once."""
        if self.shared:
            for one in self.given.values():
                self.halt(one)
        else:
            self.signal(signal.SIGTERM)

    def retire(self) -> None:
        """Let it finish the jobs that it has, and give it no more.

        A parked process is killed: its job goes on elsewhere, and the code that waits in it must not see an error.
        """
        self.retiring, self.may_park = True, False
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
