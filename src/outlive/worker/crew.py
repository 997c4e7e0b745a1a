"""The crew: a worker's children and who does what. It forks ahead, hands out work, and turns every end into data.

It knows processes and no database; what it learns goes to the `Report` that it was given.

It is longer than other files: who belongs to whom, and what becomes of a job when one of them dies, is decided in
one place, because each of these changes the same few tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Collection
from typing import Protocol
from uuid import UUID

import msgspec

from outlive import kernel
from outlive.config import Config
from outlive.errors import AppNotFound
from outlive.model import Claimed, Ended, SourceLimits
from outlive.policy import SUSPECT_CLEARED_S
from outlive.states import Outcome
from outlive.talk import (
    MARK,
    Call,
    Completing,
    Done,
    Exited,
    Forked,
    NotForked,
    Progress,
    Ready,
    Stopping,
    TaskFacts,
)
from outlive.worker.children import Assignment, Child, died
from outlive.worker.nursery import SIGN, TREE, Nursery

AHEAD_S = 0.03
"""How much work a warm child is given ahead."""
MAX_AHEAD = 400
REVIVE_S = 1.0
WAKE_S = 5.0
_OUTCOMES = frozenset(Outcome)

_log = logging.getLogger("outlive.worker")


class Report(Protocol):
    """Who is told what happened to attempts."""

    def ended(self, job: Claimed, end: Ended, *, completing: bool = False) -> None: ...
    def called(self, child: Child, call: Call) -> None: ...
    def progressed(self, progress: Progress) -> None: ...
    def free(self) -> None: ...
    def renewed_app(self) -> None: ...


class Crew:
    def __init__(self, target: str, worker: UUID, config: Config, slots: int, report: Report) -> None:
        self.target, self.worker, self.config, self.slots, self.report = target, worker, config, slots, report
        self.children: dict[int, Child] = {}
        self.by_pid: dict[int, Child] = {}
        self.ready: deque[Child] = deque()
        self.unplaced: deque[Assignment] = deque()
        self.checkpoints: dict[UUID, bytes] = {}
        self.tasks: dict[str, TaskFacts] = {}
        self.sources: list[SourceLimits] = []
        self.pace_s: dict[str, float] = {}
        self.draining = False
        self.fork_refused_at: float | None = None
        self._number = 0
        self._forking = 0
        self._oom_kills = _oom_kills()
        self._coming: Nursery | None = None
        self._woken_at = time.monotonic()
        self.mark = f"{TREE}={worker}"

    # The zygote

    def start(self) -> None:
        """Before any connection. What a dead worker has left on this machine goes first."""
        kernel.become_subreaper()
        if orphans := kernel.kill_orphans(SIGN):
            _log.warning("killed %d processes of workers that died on this machine", len(orphans))
        self.nursery = Nursery(self.target, self.worker)
        self.nursery.start()

    async def prepare(self) -> None:
        """Wait for the app to be imported, and make the first children."""
        self._settle_in(await self.nursery.ready())

    def _settle_in(self, ready: Ready) -> None:
        self.tasks = {facts.limits.name: facts for facts in ready.tasks}
        self.sources = ready.sources
        if ready.threads:
            names = ", ".join(ready.threads)
            _log.warning("the app has started threads at import (%s): a forked job does not have them", names)
        nursery = self.nursery
        nursery.listen(lambda message: self._hear(nursery, message))
        self.report.renewed_app()
        self.fork_ahead()

    async def reload(self) -> None:
        """Import the app anew in a new zygote; idle children of the old go, busy ones finish. If it fails, all stay."""
        new = Nursery(self.target, self.worker)
        try:
            new.start()
        except OSError as error:
            _log.error("the app can't be imported anew, and the old one stays: %s", error)
            return
        self._coming = new
        try:
            ready = await new.ready()
        except (AppNotFound, OSError) as error:
            _log.error("the app can't be imported anew, and the old one stays: %s", error)
            new.end()
            return
        finally:
            self._coming = None
        self.nursery = new
        for child in list(self.children.values()):
            child.retiring = True
            if not child.given:
                child.dismiss()
        self.ready.clear()
        self._forking = 0
        _log.info("the app is imported anew: %d tasks", len(ready.tasks))
        self._settle_in(ready)

    def _hear(self, nursery: Nursery, message: Forked | NotForked | Exited | None) -> None:
        match message:
            case Forked(slot, pid):
                self._forked(self.children[slot], pid)
            case NotForked(slot, reason):
                self._discard(self.children.pop(slot))
                if nursery is self.nursery:
                    self._forking -= 1
                    self._refused(reason)
                self._let_go(nursery)
            case Exited():
                self._exited(message)
                self._let_go(nursery)
            case None:
                self._zygote_died(nursery)

    def _forked(self, child: Child, pid: int) -> None:
        child.pid = pid
        self.by_pid[pid] = child
        if child.nursery is not self.nursery:
            child.retiring = True
            child.dismiss()
            return
        self._forking -= 1
        if self.fork_refused_at is not None:
            _log.info("children can be made again")
            self.fork_refused_at = None
        self.ready.append(child)
        self._place()
        self.report.free()

    def _let_go(self, nursery: Nursery) -> None:
        """A zygote that was replaced ends with its last child."""
        if nursery is not self.nursery and all(child.nursery is not nursery for child in self.children.values()):
            nursery.end()

    def fork_ahead(self) -> None:
        """Have as many ready children as slots may need next."""
        if self.draining or self.nursery.facts is None:
            return
        if self.fork_refused_at and time.monotonic() - self.fork_refused_at < 1.0:
            return
        for _ in range(self.slots - len(self.ready) - self._forking):
            try:
                self._ask_for_child()
            except OSError as error:  # No descriptors are left, or the zygote does not listen.
                self._refused(str(error))
                return

    def _ask_for_child(self) -> None:
        self._number += 1
        with contextlib.ExitStack() as opened:
            ours, theirs = socket.socketpair()
            opened.callback(ours.close)
            with theirs:
                read, write = os.pipe2(os.O_CLOEXEC)
                opened.callback(os.close, read)
                with open(write, "wb", buffering=0):
                    stack = os.memfd_create("outlive-stack")
                    opened.callback(os.close, stack)
                    self.nursery.fork(self._number, [theirs.fileno(), write, stack])
            opened.pop_all()
        ours.setblocking(False)
        os.set_blocking(read, False)
        child = Child(self._number, self.nursery, ours, read, stack)
        self.children[child.slot] = child
        self._forking += 1
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._read, child)
        loop.add_reader(read, self._read_output, child)

    def _refused(self, reason: str) -> None:
        self.fork_refused_at = time.monotonic()
        _log.error("no new child: %s; nothing is claimed until one can be made", reason)

    # Work

    @property
    def busy(self) -> list[Child]:
        return [child for child in self.children.values() if child.given]

    def capacity(self) -> int:
        """How many more jobs could begin at once."""
        if self.draining or self.fork_refused_at or self.has_suspect():
            return 0
        return max(0, self.slots - len(self.busy) - len(self.unplaced))

    def idle(self) -> bool:
        """Nothing is under way, and something could be."""
        return self.capacity() == self.slots

    def has_suspect(self) -> bool:
        """Whether a job that may kill workers runs here: then it runs alone, until it has lived long enough."""
        jobs = [*self.unplaced, *(child.given[0] for child in self.busy)]
        return any(one.job.alone and time.monotonic() - one.taken < SUSPECT_CLEARED_S for one in jobs)

    def room(self) -> dict[str, int]:
        """How many jobs of which warm tasks could be given ahead to children that are at it."""
        room: dict[str, int] = {}
        if self.draining or self.has_suspect():
            return room
        for child in self.children.values():
            if child.open_to_more and child.given and child.task in self.tasks:
                facts = self.tasks[child.task]
                left = min(self.ahead(child.task) - len(child.given), facts.recycle_after - child.served)
                if left > 0:
                    room[child.task] = room.get(child.task, 0) + left
        return room

    def ahead(self, task: str) -> int:
        """How many jobs of a warm task make up the work that its child should have before it; 1 for all others."""
        facts = self.tasks[task]
        if facts.recycle_after == 1 or facts.limits.source:
            return 1
        return max(1, min(MAX_AHEAD, facts.recycle_after, int(AHEAD_S / max(self.pace_s.get(task, AHEAD_S), 1e-6))))

    def well_fed(self) -> bool:
        """Every slot is taken, and every child has enough before it: nothing is urgent."""
        busy = self.busy
        return len(busy) >= self.slots and all(
            child.task in self.tasks and len(child.given) > max(1, self.ahead(child.task) // 2) for child in busy
        )

    def take(self, jobs: list[Claimed]) -> None:
        """Give claimed jobs to children; what has no child yet waits for one that is being made."""
        if self.draining:
            for job in jobs:
                self.report.ended(job, Ended(job.token, Outcome.RELEASED, error="its worker stops"))
            return
        given: dict[int, list[Assignment]] = {}
        taken = len(self.busy) + len(self.unplaced)
        for job in jobs:
            _log.info("Starting job %s", job.id)
            facts = self.tasks.get(job.task)
            if facts is None:
                end = Ended(job.token, Outcome.RELEASED, error="this worker has not its task", after_s=5.0)
                self.report.ended(job, end)
                continue
            child, before = (None, 0) if job.losses else self._bound(job.task, facts, given)
            if child is None or (before and taken < self.slots):  # A free slot is better than a place in a line.
                self.unplaced.append(_assignment(job, facts))
                taken += 1
            else:
                given.setdefault(child.slot, []).append(_assignment(job, facts))
                taken += not before
        for slot, assignments in given.items():
            self.children[slot].give(assignments, self.config.max_result_bytes, self.checkpoints)
        self._place()

    def _bound(self, task: str, facts: TaskFacts, given: dict[int, list[Assignment]]) -> tuple[Child | None, int]:
        """The warm child of this task that has the least to do, and how many jobs are before it."""
        best: Child | None = None
        least = 0
        for child in self.children.values() if facts.recycle_after > 1 else ():
            if child.task == task and child.open_to_more and child.pid:
                more = len(given.get(child.slot, ()))
                load = len(child.given) + more
                if child.served + more < facts.recycle_after and (best is None or load < least):
                    best, least = child, load
        return best, least

    def _place(self) -> None:
        if self.draining:
            return
        while self.unplaced and self.ready and (free := self.slots - len(self.busy)) > 0:
            first = self.unplaced[0]
            share = 1 if first.facts.recycle_after == 1 else -(-len(self.unplaced) // free)
            # Nothing is put before or behind a job with losses: if it kills its worker again, it alone is to blame.
            mine = [one for one in self.unplaced if one.job.task == first.job.task and not one.job.losses]
            mine = [first] if first.job.losses else mine
            mine = mine[: min(share, self.ahead(first.job.task))]
            placed = {one.job.token for one in mine}
            self.unplaced = deque(one for one in self.unplaced if one.job.token not in placed)
            self.ready.popleft().give(mine, self.config.max_result_bytes, self.checkpoints)
        self._retire_surplus()
        self.fork_ahead()

    def _retire_surplus(self) -> None:
        """A warm child that has nothing to do gives its slot to others."""
        bound = [child for child in self.children.values() if child.task and child.pid and not child.retiring]
        for child in bound:
            if len(bound) <= self.slots:
                return
            if not child.given:
                child.retiring = True
                child.dismiss()
                bound.remove(child)

    # What children say

    def _read(self, child: Child) -> bool:
        """Hear what it says; False when there is nothing more to hear now."""
        try:
            data = child.socket.recv(65536)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(child.socket.fileno())
            return False
        try:
            messages = child.frames.feed(data)
        except Exception as error:
            self._distrust(child, f"says what nobody understands ({error})")
            return False
        for message in messages:
            match message:
                case Done():
                    self._done(child, message)
                case Call():
                    self.report.called(child, message)
                case Progress():
                    if child.given:
                        child.given[0].moved = time.monotonic()
                    self.report.progressed(message)
                case Completing():
                    if child.given:
                        child.given[0].completing = True
        if child.unsent:
            child.flush()
        return True

    def _read_all(self, child: Child) -> None:
        """All that it said before it died."""
        while not child.distrusted and self._read(child):
            pass

    def _distrust(self, child: Child, reason: str) -> None:
        """Nothing more is heard from it but its end."""
        _log.error("child %d %s: it is killed", child.pid, reason)
        asyncio.get_running_loop().remove_reader(child.socket.fileno())
        child.retiring = child.distrusted = True
        if child.given and child.given[0].verdict is None:
            child.given[0].verdict = (Outcome.CRASHED, f"its process {reason}")
        child.signal(signal.SIGKILL)

    def _read_output(self, child: Child) -> None:
        self._read_quietly(child)
        if not child.read_output():
            asyncio.get_running_loop().remove_reader(child.output)

    def _read_quietly(self, child: Child) -> None:
        """Hear what it said before reading what it printed since."""
        if child.socket.fileno() >= 0 and not child.distrusted:
            self._read(child)

    def _done(self, child: Child, done: Done) -> None:
        if not child.given or child.given[0].job.token != done.token:
            self._distrust(child, "answers for a job that it does not have")
            return
        if done.outcome not in _OUTCOMES:
            self._distrust(child, "ends its job in a way that there is not")
            return
        assignment = child.given.popleft()
        now = time.monotonic()
        took_s = now - assignment.started
        pace_s = self.pace_s.get(assignment.job.task, took_s)
        self.pace_s[assignment.job.task] = pace_s + (took_s - pace_s) * 0.1
        if child.given:
            child.begin()
        if done.marked:  # Else all that it printed was read before.
            child.read_output()
        outcome, error, killed_by = Outcome(done.outcome), done.error, None
        if assignment.verdict is not None:
            outcome, error = assignment.verdict
        elif outcome is Outcome.RELEASED and done.after_s is None and not self.draining:
            # Nobody here told it to stop: a signal from elsewhere is a kill, or it would come back for ever.
            outcome, error, killed_by = (
                Outcome.CRASHED,
                "the process got a SIGTERM that its worker did not send",
                "SIGTERM",
            )
        end = Ended(
            token=done.token,
            outcome=outcome,
            error=error,
            exit_code=1 if outcome is Outcome.FAILED else None,
            signal=killed_by,
            peak_memory_bytes=max(done.peak_memory_bytes or 0, assignment.peak_bytes) or None,
            cpu_s=done.cpu_s,
            output=child.take_output(MARK if done.marked else None) if child.tail else None,
            stack=done.stack or (child.take_stack() if assignment.verdict is not None else None),
            result=done.result if outcome is Outcome.SUCCEEDED else None,
            final=done.final,
            after_s=done.after_s,
            source_ok=False if outcome is Outcome.TIMED_OUT else done.source_ok if assignment.verdict is None else None,
            records=done.records if outcome is Outcome.SUCCEEDED else None,
            spawns=done.spawns if outcome is Outcome.SUCCEEDED else None,
        )
        self.report.ended(assignment.job, end, completing=assignment.completing)
        if child.retiring and not child.given and child.served < assignment.facts.recycle_after:
            child.dismiss()  # It was told of no last job; it has become surplus since.

    def _exited(self, exit: Exited) -> None:
        child = self.by_pid.pop(exit.pid, None)
        if child is None:
            return
        self._read_all(child)
        child.read_output()
        child.exited = True
        self.children.pop(child.slot, None)
        if child in self.ready:
            self.ready.remove(child)
        if child.given:
            culprit, *others = child.given
            self._blame_memory(culprit, exit.status)
            end = died(
                culprit,
                exit.status,
                peak_bytes=exit.peak_memory_bytes,
                cpu_s=exit.cpu_s,
                output=child.take_output(None),
                stack=child.take_stack(),
            )
            child.given.clear()
            self.report.ended(culprit.job, end, completing=culprit.completing)
            for other in others:
                self.report.ended(other.job, Ended(other.job.token, Outcome.RELEASED, error="it had not begun"))
        self._discard(child)
        self._place()
        self.report.free()

    def _blame_memory(self, culprit: Assignment, status: int) -> None:
        """A SIGKILL that nobody here sent, while the kernel counted an OOM kill, was the kernel's."""
        kills = _oom_kills()
        if (
            culprit.verdict is None
            and os.WIFSIGNALED(status)
            and os.WTERMSIG(status) == signal.SIGKILL
            and kills > self._oom_kills
        ):
            culprit.verdict = (Outcome.OUT_OF_MEMORY, "the kernel killed the process: out of memory")
        self._oom_kills = kills

    def _zygote_died(self, nursery: Nursery) -> None:
        """Its children are gone or going; their attempts are lost, at nobody's fault. A new one is made at once."""
        _log.error("the zygote died: its jobs are given up, and a new one is started")
        mine = [child for child in self.children.values() if child.nursery is nursery]
        for child in mine:
            self._read_all(child)  # It may have ended its job before.
            child.signal(signal.SIGKILL)
            self._discard(child)
            self.children.pop(child.slot)
            self.by_pid.pop(child.pid, None)
        self.ready = deque(child for child in self.ready if child.nursery is not nursery)
        nursery.end()
        kernel.kill_tree(self.mark, spare=self._zygotes())
        for child in mine:
            for n, assignment in enumerate(child.given):
                end = Ended(assignment.job.token, Outcome.LOST, error="Worker died unexpectedly")
                if n > 0:
                    end = Ended(assignment.job.token, Outcome.RELEASED, error="it had not begun")
                self.report.ended(assignment.job, end, completing=assignment.completing)
        if nursery is self.nursery and not self.draining:
            self._forking = 0
            self._revival = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        """A new zygote, as often as it takes: the app could be imported before."""
        while not self.draining:
            new = Nursery(self.target, self.worker)
            try:
                new.start()
                self.nursery = new
                await self.prepare()
                return
            except (AppNotFound, OSError) as error:
                _log.error("there is no new zygote yet: %s", error)
                if new is self.nursery:
                    new.end()
                await asyncio.sleep(REVIVE_S)

    def _discard(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        child.exited = True
        loop.remove_reader(child.socket.fileno())
        loop.remove_writer(child.socket.fileno())
        loop.remove_reader(child.output)
        child.close()

    # The end

    def tell_to_stop(self) -> None:
        self.draining = True
        while self.unplaced:
            one = self.unplaced.popleft()
            self.report.ended(one.job, Ended(one.job.token, Outcome.RELEASED, error="its worker stops"))
        for child in self.busy:
            child.send(Stopping())
            child.flush()

    def end(self) -> list[Assignment]:
        """Kill all that is left, and say what had not ended."""
        left = [assignment for child in self.children.values() for assignment in child.given] + list(self.unplaced)
        self.draining = True
        for child in list(self.children.values()):
            child.signal(signal.SIGKILL)
            self._discard(child)
        for nursery in {child.nursery for child in self.children.values()} | {self.nursery, self._coming}:
            if nursery is not None:
                nursery.end()
        self.children.clear()
        kernel.kill_tree(self.mark)
        return left

    def _zygotes(self) -> set[int]:
        """Those that live: the one that forks, those whose last jobs still run, and the one that is coming."""
        nurseries = {child.nursery for child in self.children.values()} | {self.nursery, self._coming}
        return {one.process.pid for one in nurseries if one and one.process.returncode is None}

    def wake_zygotes(self, now: float) -> None:
        """One that was stopped, as by a job that stops its parent, goes on; one that runs does not notice."""
        if now - self._woken_at > WAKE_S:
            self._woken_at = now
            for pid in self._zygotes():
                kernel.kill(pid, signal.SIGCONT)

    def reap_adopted(self, spare: Collection[int]) -> None:
        """Processes that fell to us, as the nearest subreaper or as PID 1, are not left as zombies."""
        zygotes = self._zygotes()
        try:
            while seen := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if seen.si_pid in zygotes or seen.si_pid in spare:
                    return  # Somebody waits for it.
                os.waitpid(seen.si_pid, os.WNOHANG)
        except ChildProcessError:
            pass


class _Overrides(msgspec.Struct):
    """The limits that a job has of its own; unset ones are its task's."""

    timeout_s: float | msgspec.UnsetType | None = msgspec.UNSET
    stall_s: float | msgspec.UnsetType = msgspec.UNSET
    memory_bytes: int | msgspec.UnsetType = msgspec.UNSET


def _assignment(job: Claimed, facts: TaskFacts) -> Assignment:
    own = _Overrides() if job.options is None else msgspec.json.decode(job.options, type=_Overrides)
    return Assignment(
        job,
        facts,
        timeout_s=facts.timeout_s if own.timeout_s is msgspec.UNSET else own.timeout_s,
        stall_s=facts.stall_s if own.stall_s is msgspec.UNSET else own.stall_s,
        memory_bytes=facts.memory_bytes if own.memory_bytes is msgspec.UNSET else own.memory_bytes,
    )


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
