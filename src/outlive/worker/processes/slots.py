"""The slots of a worker: they give claimed jobs to children, and turn every end into data. They know no database."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from outlive.config import Config
from outlive.model import Claimed, Ended
from outlive.policy import TaskRow
from outlive.protocol import Done, Ready, Stopping
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.attempts.leases import Leases
from outlive.worker.claiming.room import Room
from outlive.worker.ending.ends import DeferredEnds, Unclean, answered
from outlive.worker.ending.process_deaths import Deaths
from outlive.worker.processes.assignments import Assignment, Verdict, assignment
from outlive.worker.processes.child_reader import ChildReader
from outlive.worker.processes.children import Child
from outlive.worker.processes.placement import Pace, spread
from outlive.worker.processes.zygotes import Zygotes
from outlive.worker.reporting import job_log

if TYPE_CHECKING:
    from outlive.worker.services import Services

WAIT_FOR_CHILD_S = 1.0
"""How long a claimed job waits for a child before it goes back to the queue."""
WAIT_FOR_SLOT_S = 0.1
"""The same for a job of a fresh task that was claimed while every slot was busy."""
MOVE_S = 0.04
"""The same for a job behind one that takes long: another worker may have room for it."""
MAX_PAUSE_S = 30.0
NO_TASK = ("this worker does not have the task", 5.0)
"""Why a job is released, and for how many seconds."""


class Slots:
    def __init__(self, config: Config, size: int, zygotes: Zygotes, leases: Leases, report: Services) -> None:
        self.config, self.size, self.zygotes, self.leases, self.report = config, size, zygotes, leases, report
        self.queues = config.queues
        """Those that this worker serves; None: all."""
        self.reader = ChildReader(report, self._done)
        self.unplaced: deque[Assignment] = deque()
        """Claimed jobs that wait for a child."""
        self.tasks: dict[str, TaskRow] = {}
        self.pace, self.room = Pace(), Room(self)
        self.closed = False
        """No more jobs are accepted."""
        self.stopping = False
        """This worker stops, and its jobs with it."""
        self.deferred = DeferredEnds(report)
        self.trouble: str | None = None
        """Why this worker can't begin jobs at present."""
        self.unclean = Unclean()
        self.deaths = Deaths(self)
        self._may_have_suspect = False

    @property
    def children(self) -> Collection[Child]:
        return self.zygotes.children

    @property
    def busy(self) -> list[Child]:
        return [child for child in self.children if child.given]

    @property
    def running(self) -> list[tuple[Child, Assignment]]:
        """The jobs that run or are about to begin, each with its child. A shared child has many."""
        return [(child, one) for child in self.busy for one in child.running]

    @property
    def free(self) -> int:
        return self.size - len(self.busy) - len(self.unplaced)

    def capacity(self) -> int:
        """How many more jobs can begin now: those with a free slot, and a child that is ready or being forked."""
        if self.closed or self.suspect() is not None:
            return 0
        return max(0, min(self.free, self.zygotes.at_hand() - len(self.unplaced)))

    def shares(self, task: str) -> bool:
        """Whether many jobs of this task run in one process."""
        return task in self.tasks and self.tasks[task].share > 1

    def idle(self) -> bool:
        """Whether all slots are free."""
        return self.capacity() == self.size

    def suspect(self) -> Assignment | None:
        """The suspect that runs alone for now, or one of those that do so together."""
        found = next(self.suspects(), None) if self._may_have_suspect else None
        self._may_have_suspect = found is not None
        return found

    def suspects(self) -> Iterator[Assignment]:
        """The suspect that runs alone for now, or all that do so together."""
        return (one for one in chain(self.unplaced, (one for _, one in self.running)) if one.alone)

    # What the zygotes report

    def app_imported(self, ready: Ready) -> None:
        """The app was imported or reloaded."""
        labels = {*self.config.labels}
        self.tasks = {one.name: one for one in ready.tasks if labels >= {*one.needs}}
        for one in self.withdraw(lambda one: one.job.task not in self.tasks):
            self.release(one.job, *NO_TASK)
        self.report.app_imported(self.tasks, ready)

    def resize(self, size: int) -> None:
        """Have other slots. If they are fewer than jobs run, none begins until enough of these have ended."""
        self.size = size
        self.child_ready()

    def child_ready(self) -> None:
        """A child is ready for a job, or a slot is free."""
        self.place()
        self.report.slot_freed()

    def look_for_trouble(self, now: float) -> None:
        """Report once that no job can begin here, and once that jobs can begin again."""
        if (trouble := self.zygotes.trouble(now)) == self.trouble:
            return
        if trouble is not None:
            log.error("this worker can't begin any job: %s; it claims nothing meanwhile", trouble)
        else:
            log.info("this worker can begin jobs again")
        self.trouble = trouble
        self.report.trouble_changed()

    # From the claim to the child

    def accept(self, jobs: list[Claimed], kept: Mapping[UUID, bytes | None], *, marked: bool = True) -> None:
        """Accept claimed jobs, and place them."""
        if self.closed:
            for job in jobs:
                self.release(job, "its worker stops")
            return
        for job in jobs:
            job_log.starting(job)
            if (facts := self.tasks.get(job.task)) is None:
                self.release(job, *NO_TASK)
                continue
            try:
                one = assignment(job, facts, kept.get(job.id, b"") if kept else b"", marked=marked)
            except (msgspec.MsgspecError, RecursionError) as error:
                reason = f"its options can't be read: {error}"
                self.report.ended(job, Ended(job.token, Outcome.FAILED, error=reason, final=True))
                continue
            one.crowd = min(one.crowd, self.deaths.crowd(job.id, facts.share))
            behind = facts.max_jobs == 1 and self.free <= 0
            one.trace = self.report.starting(job)
            one.waits_until = one.taken + (WAIT_FOR_SLOT_S if behind else WAIT_FOR_CHILD_S)
            self._may_have_suspect = self._may_have_suspect or one.alone
            self.unplaced.append(one)
        self.place()

    def place(self) -> None:
        """Give jobs to warm children that have room, and to free slots whose next child is ready. The others wait."""
        if self.stopping:
            return
        if self.unplaced:
            self._place_all()
        # Idle warm children that are more than there are slots make room for other tasks.
        bound = [child for child in self.children if child.bound and child.pid]
        idle = [child for child in bound if not child.given]
        for child in idle[: max(0, len(bound) - self.size)]:
            child.retire()
        self.zygotes.fork_ahead()

    def _place_all(self) -> None:
        for one in self.withdraw(lambda one: one.job.task not in self.tasks):
            self.release(one.job, *NO_TASK)  # A child from before the last reload returned it.
        now = time.monotonic()
        for one in self.withdraw(lambda one: self.leases.expired(one.job.token, now)):
            self.release(one.job)  # This process stood still: others may run it.
        share, ahead = cache(partial(self.room.share, len(self.unplaced))), cache(self.room.ahead)
        free, at_hand = self.size - len(self.busy), self.zygotes.at_hand()
        placed: set[int] = set()
        for load in spread(self.unplaced, self.children, free=free, at_hand=at_hand, share=share, ahead=ahead):
            if load.jobs and (child := load.child or self.zygotes.next_ready()) is not None:
                if child.give(load.jobs, self.config.max_result_bytes):
                    placed.update(one.job.token for one in load.jobs)
                else:
                    self.reader.distrust(child, "has written tickets")
        if placed:
            self.withdraw(lambda one: one.job.token in placed)

    def place_again(self, returned: list[Assignment], wait_s: float = MOVE_S) -> None:
        """Place jobs that a child has returned."""
        for one in returned:
            one.waits_until = time.monotonic() + wait_s
        self.unplaced.extendleft(reversed(returned))
        self.place()

    def drop_unplaced(self, now: float) -> None:
        """Release jobs that waited too long for a child, soon if the job of every slot takes long.

        Those that may share with few others or none come back a second later, one after the other: this worker would
        claim all of them again at once.
        """
        if self.unplaced and len(busy := self.busy) >= self.size and all(child.runs_over(now) for child in busy):
            for one in self.unplaced:
                one.waits_until = min(one.waits_until, now + MOVE_S)
        late = self.withdraw(lambda one: now > one.waits_until)
        for number, one in enumerate(late):
            pause_s = min(MAX_PAUSE_S, 1.0 + number / (self.size * one.crowd)) if one.crowd < one.facts.share else None
            self.release(one.job, after_s=pause_s)

    def withdraw(self, condition: Callable[[Assignment], bool]) -> list[Assignment]:
        """Remove the jobs for which this is true from those that wait for a child."""
        withdrawn, left = list[Assignment](), deque[Assignment]()
        for one in self.unplaced:
            (withdrawn if condition(one) else left).append(one)
        self.unplaced = left
        return withdrawn

    # Jobs that a child has and did not begin

    def relieve(self, child: Child) -> None:
        """Its job takes long: the jobs behind it begin elsewhere."""
        self.reader.read_answers(child)  # Its answer may not be read yet.
        if len(child.given) > 1 and child.runs_over(time.monotonic()):
            self.isolate(child)

    def give_up_on(self, child: Child) -> None:
        """A child does not begin its job: it is stopped, or stuck."""
        log.warning("child %d does not begin its job: it is killed, and another child runs the job", child.pid)
        child.retiring = True
        self.place_again(child.recall(), WAIT_FOR_CHILD_S)
        if not child.given:  # Otherwise it has just begun it.
            child.signal(signal.SIGKILL)

    def isolate(self, child: Child, verdict: Verdict | None = None) -> bool:
        """Place the jobs behind its current one elsewhere, and decide how that one ends. False if it has just ended.

        A child sends the answer of a job before it takes the ticket of the next one. If there is no answer, the job has
        taken the others' tickets.
        """
        current, returned = child.current, child.recall()
        if len(child.given) > 1:
            self.reader.read_sent(child)
        if len(child.given) > 1 and not child.distrusted:
            self.reader.distrust(child, "took the tickets of jobs that it does not run")
        alone = child.given.keys() == {current.job.token}
        if alone and verdict is not None:
            current.decide(verdict)  # First, so that the others are not given to this child again.
        self.place_again(returned)
        return alone

    def release_behind(self, child: Child) -> None:
        """Release the jobs of a child that did not begin."""
        for one in child.recall():
            self.release(one.job)

    def cancel(self, tokens: Collection[int]) -> None:
        """Cancel jobs before they begin. The watch stops running ones."""
        back = self.withdraw(lambda one: one.job.token in tokens)
        for child in self.busy:
            self.reader.read_answers(child)  # The answer of the job before it may not be read yet.
            asked = [one for token, one in child.given.items() if token in tokens]
            if asked and (child.shared or asked[-1] is not child.current or not child.has_begun()):
                back += child.recall()
        for one in back:
            if one.job.token in tokens:
                end = Ended(one.job.token, Outcome.CANCELLED, error="cancelled on request, before it began")
                self.report.ended(one.job, end)
        self.place_again([one for one in back if one.job.token not in tokens], WAIT_FOR_CHILD_S)

    def release(self, job: Claimed, why: str = "it had not begun", after_s: float | None = None) -> None:
        self.report.ended(job, Ended(job.token, Outcome.RELEASED, error=why, after_s=after_s))

    # Ends

    def _done(self, child: Child, done: Done) -> None:
        """A child reports the end of its job."""
        if len(done.result or b"") > self.config.max_result_bytes:
            self.reader.distrust(child, "sends a result over the limit")
            return
        ended = child.given.pop(done.token)
        if self.unclean.concerns(child, ended, done.changed):
            self.place_again(child.recall(), WAIT_FOR_CHILD_S)
        fresh = ended.facts.max_jobs == 1
        took_s = self.pace.note(ended.job.task, done.took_s, time.monotonic() - ended.started, fresh=fresh)
        child.cpu_s += done.cpu_s or 0.0
        verdict = ended.verdict
        if done.outcome is Outcome.FAILED and verdict is None:
            verdict = self.deaths.by_kernel(child, ended)
        if child.given and not child.shared:
            child.begin([child.current])
        end, stopped = answered(child, ended, done, verdict, took_s, self.deferred)
        self.report_end(ended, end, verdict, stopped=stopped)
        if child.shared:
            self._seat_freed(child, ended.facts.share)
        elif child.retiring and not child.given and child.served < ended.facts.max_jobs:
            child.dismiss()  # It was retired after its last job was sent.
        elif self.unplaced and not child.given:
            self.place()

    def _seat_freed(self, child: Child, share: int) -> None:
        """A job of a shared child has ended. If that was its last, it ends, unless it is the only one of its task."""
        if not child.given and not child.retiring:
            others = [one for one in self.children if one.task == child.task and one is not child]
            child.retiring = not child.seats_left(share) or any(one.seats_left(share) for one in others)
        if not child.given and child.retiring:
            child.dismiss()
        elif self.unplaced:
            self.place()
        self.report.slot_freed()

    def report_end(self, ended: Assignment, end: Ended, verdict: Verdict | None, *, stopped: bool) -> None:
        """Report an end. An attempt that was stopped waits until it is known why."""
        if verdict is None:
            self.deaths.forget(ended)
        if stopped:
            self.deferred.add(ended.job, end, completing=ended.completing)
        else:
            self.report.ended(ended.job, end, completing=ended.completing)

    # The end of this worker

    def close(self) -> None:
        """Accept no more jobs, and give back those that still wait here. Jobs that have begun go on."""
        self.closed = True
        back = self.withdraw(lambda one: True)
        for child in self.busy:
            back += child.recall()
        for one in back:
            self.release(one.job, "its worker stops")

    def stop_jobs(self) -> None:
        """This worker stops: release the jobs that did not begin, and ask running jobs to end soon."""
        if self.stopping:
            return
        self.stopping = self.zygotes.closing = True
        self.deferred.release()
        self.close()
        for child in self.busy:
            child.send(Stopping())
            child.flush()

    def leaving(self) -> bool:
        """Whether children that have run jobs are about to exit. Those that wait for another job are dismissed now, and
        parked ones end."""
        served = [child for child in self.children if child.pid and child.task is not None and not child.given]
        for child in served:
            if child.parked or not child.retiring:
                child.retire()
        return bool(served)

    def end(self) -> list[Assignment]:
        """Place no more jobs, and return those that are left."""
        self.stopping = True
        return [assignment for child in self.children for assignment in child.given.values()] + list(self.unplaced)
