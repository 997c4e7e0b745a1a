"""The crew: a worker's children and who does what. It hands out work, and turns every end into data.

It knows processes and no database; what it learns goes to the `Report` that it was given.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Collection
from typing import Protocol
from uuid import UUID

import msgspec

from outlive.config import Config
from outlive.model import Claimed, Ended, SourceLimits
from outlive.states import Outcome
from outlive.talk import MARK, Done, Exited, Ready, Stopping, TaskFacts
from outlive.worker import weighing
from outlive.worker.children import Assignment, Child, died
from outlive.worker.hearing import Hearing, Listener
from outlive.worker.zygotes import Zygotes

AHEAD_S = 0.03
"""How much work a warm child is given ahead."""
MAX_AHEAD = 400
POSSIBLY_FOR_MEMORY = (
    "the process was killed by SIGKILL; the kernel killed a process for want of memory at that time, possibly this one"
)
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}

_log = logging.getLogger("outlive.worker")


class Report(Listener, Protocol):
    """Who is told what happened to attempts."""

    def ended(self, job: Claimed, end: Ended, *, completing: bool = False) -> None: ...
    def free(self) -> None: ...
    def renewed_app(self) -> None: ...


class Crew:
    def __init__(self, target: str, worker: UUID, config: Config, slots: int, report: Report) -> None:
        self.config, self.slots, self.report = config, slots, report
        self.hearing = Hearing(report, self._done)
        self.zygotes = Zygotes(target, worker, slots, self)
        self.unplaced: deque[Assignment] = deque()
        self.checkpoints: dict[UUID, bytes] = {}
        self.tasks: dict[str, TaskFacts] = {}
        self.sources: list[SourceLimits] = []
        self.pace_s: dict[str, float] = {}
        self.draining = False
        self._oom_kills = _oom_kills()

    @property
    def children(self) -> Collection[Child]:
        return self.zygotes.children.values()

    def imported(self, ready: Ready) -> None:
        """The app is there, or is there anew."""
        self.tasks = {facts.limits.name: facts for facts in ready.tasks}
        self.sources = ready.sources
        for one in [one for one in self.unplaced if one.job.task not in self.tasks]:
            self.unplaced.remove(one)
            self._give_back(one.job)
        self.report.renewed_app()

    def born(self) -> None:
        """There is a child that has nothing to do, or room for one."""
        self._place()
        self.report.free()

    # Work

    @property
    def busy(self) -> list[Child]:
        return [child for child in self.children if child.given]

    def capacity(self) -> int:
        """How many more jobs could begin at once."""
        if self.draining or self.zygotes.fork_refused_at or self.has_suspect():
            return 0
        return max(0, self.slots - len(self.busy) - len(self.unplaced))

    def idle(self) -> bool:
        """Nothing is under way, and something could be."""
        return self.capacity() == self.slots

    def has_suspect(self) -> bool:
        """Whether a job that may kill workers has this one to itself."""
        return self.suspect() is not None

    def suspect(self) -> Assignment | None:
        """The job that nothing else may run beside, for now."""
        given = (child.given[0] for child in self.children if child.given)
        return next((one for one in (*self.unplaced, *given) if one.alone), None)

    def room(self) -> dict[str, int]:
        """How many jobs of which warm tasks could be given ahead to children that are at it."""
        room: dict[str, int] = {}
        if self.draining or self.has_suspect():
            return room
        for child in self.children:
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

    def content(self) -> bool:
        """Nothing is urgent: most slots are taken, or all, by children that have enough before them."""
        free = self.capacity()
        if free:
            return 2 * free < self.slots - 1
        return all(
            child.task in self.tasks and len(child.given) > max(1, self.ahead(child.task) // 2) for child in self.busy
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
                self._give_back(job)
                continue
            try:
                assignment = _assignment(job, facts)
            except msgspec.MsgspecError as error:
                words = f"its options can't be read: {error}"
                self.report.ended(job, Ended(job.token, Outcome.FAILED, error=words, final=True))
                continue
            child, before = (None, 0) if job.losses else self._bound(job.task, facts, given)
            if child is None or (before and taken < self.slots):  # A free slot is better than a place in a line.
                self.unplaced.append(assignment)
                taken += 1
            else:
                given.setdefault(child.slot, []).append(assignment)
                taken += not before
        for slot, assignments in given.items():
            self.zygotes.children[slot].give(assignments, self.config.max_result_bytes, self.checkpoints)
        self._place()

    def _give_back(self, job: Claimed) -> None:
        self.report.ended(job, Ended(job.token, Outcome.RELEASED, error="this worker has not its task", after_s=5.0))

    def _bound(self, task: str, facts: TaskFacts, given: dict[int, list[Assignment]]) -> tuple[Child | None, int]:
        """The warm child of this task that has the least to do, and how many jobs are before it."""
        best: Child | None = None
        least = 0
        for child in self.children if facts.recycle_after > 1 else ():
            if child.task == task and child.open_to_more and child.pid:
                more = len(given.get(child.slot, ()))
                load = len(child.given) + more
                if child.served + more < facts.recycle_after and (best is None or load < least):
                    best, least = child, load
        return best, least

    def _place(self) -> None:
        if self.draining:
            return
        while self.unplaced and self.zygotes.ready and (free := self.slots - len(self.busy)) > 0:
            first = self.unplaced[0]
            share = 1 if first.facts.recycle_after == 1 else -(-len(self.unplaced) // free)
            # Nothing is put before or behind a job with losses: if it kills its worker again, it alone is to blame.
            mine = [one for one in self.unplaced if one.job.task == first.job.task and not one.job.losses]
            mine = [first] if first.job.losses else mine
            mine = mine[: min(share, self.ahead(first.job.task))]
            placed = {one.job.token for one in mine}
            self.unplaced = deque(one for one in self.unplaced if one.job.token not in placed)
            self.zygotes.ready.popleft().give(mine, self.config.max_result_bytes, self.checkpoints)
        self._retire_surplus()
        self.zygotes.fork_ahead()

    def _retire_surplus(self) -> None:
        """A warm child that has nothing to do gives its slot to others."""
        bound = [child for child in self.children if child.task and child.pid and not child.retiring]
        for child in bound:
            if len(bound) <= self.slots:
                return
            if not child.given:
                child.retiring = True
                child.dismiss()
                bound.remove(child)

    # What children say

    def _done(self, child: Child, done: Done) -> None:
        """The job that it runs has ended, it says."""
        outcome = _OUTCOMES.get(done.outcome)
        if outcome is None:
            self.hearing.distrust(child, "ends its job in a way that there is not")
            return
        if len(done.result or b"") > self.config.max_result_bytes:
            self.hearing.distrust(child, "gives a result that is larger than it may be")
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
        error, killed_by = done.error, None
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

    def gone(self, child: Child, exit: Exited) -> None:
        """A child has ended, and what it left behind: the first that it had not answered for is to blame."""
        if not child.given:
            return
        culprit, *others = child.given
        self._blame_memory(culprit, exit.status)
        end = died(
            culprit,
            exit.status,
            peak_bytes=weighing.peak_bytes(child, culprit, exit.peak_memory_bytes),
            cpu_s=exit.cpu_s,
            output=child.take_output(None),
            stack=child.take_stack(),
        )
        child.given.clear()
        self.report.ended(culprit.job, end, completing=culprit.completing)
        for other in others:
            self.report.ended(other.job, Ended(other.job.token, Outcome.RELEASED, error="it had not begun"))

    def orphaned(self, children: list[Child]) -> None:
        """Their zygote died, and they with it: their attempts are lost, at nobody's fault."""
        for child in children:
            for n, assignment in enumerate(child.given):
                end = Ended(assignment.job.token, Outcome.LOST, error="Worker died unexpectedly")
                if n > 0:
                    end = Ended(assignment.job.token, Outcome.RELEASED, error="it had not begun")
                self.report.ended(assignment.job, end, completing=assignment.completing)

    def _blame_memory(self, culprit: Assignment, status: int) -> None:
        """A SIGKILL that this worker did not send, while the kernel counted an OOM kill, may have been the kernel's.

        The kernel counts for the whole machine, so this is a hint for people and no verdict.
        """
        kills = _oom_kills()
        if (
            culprit.verdict is None
            and os.WIFSIGNALED(status)
            and os.WTERMSIG(status) == signal.SIGKILL
            and kills > self._oom_kills
        ):
            culprit.verdict = (Outcome.CRASHED, POSSIBLY_FOR_MEMORY)
        self._oom_kills = kills

    # The end

    def tell_to_stop(self) -> None:
        self.draining = self.zygotes.closing = True
        while self.unplaced:
            one = self.unplaced.popleft()
            self.report.ended(one.job, Ended(one.job.token, Outcome.RELEASED, error="its worker stops"))
        for child in self.busy:
            child.send(Stopping())
            child.flush()

    def end(self) -> list[Assignment]:
        """Kill all that is left, and say what had not ended."""
        left = [assignment for child in self.children for assignment in child.given] + list(self.unplaced)
        self.draining = True
        self.zygotes.end()
        return left


class _Overrides(msgspec.Struct):
    """The limits that a job has of its own; unset ones are its task's, and null is none."""

    timeout_s: float | msgspec.UnsetType | None = msgspec.UNSET
    stall_s: float | msgspec.UnsetType | None = msgspec.UNSET
    memory_bytes: int | msgspec.UnsetType | None = msgspec.UNSET


def _assignment(job: Claimed, facts: TaskFacts) -> Assignment:
    own = _Overrides() if job.options is None else msgspec.json.decode(job.options, type=_Overrides)
    return Assignment(
        job,
        facts,
        timeout_s=facts.timeout_s if own.timeout_s is msgspec.UNSET else own.timeout_s,
        stall_s=facts.stall_s if own.stall_s is msgspec.UNSET else own.stall_s,
        memory_bytes=facts.memory_bytes if own.memory_bytes is msgspec.UNSET else own.memory_bytes,
        alone=job.alone_s > 0,
    )


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
