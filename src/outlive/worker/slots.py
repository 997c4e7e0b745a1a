"""The slots of a worker: they give claimed jobs to children, and turn every end into data.

They know processes and no database. What happens to attempts goes to `AttemptEvents`.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from outlive.config import Config
from outlive.model import Claimed, Ended
from outlive.protocol import Done, Ready, Stopping, TaskFacts
from outlive.states import Outcome
from outlive.worker import job_log, running_time
from outlive.worker.child_reader import ChildReader
from outlive.worker.children import Assignment, Child, assignment
from outlive.worker.deaths import Deaths
from outlive.worker.deferred_ends import DeferredEnds, released
from outlive.worker.ends import Unclean, answered
from outlive.worker.leases import Leases
from outlive.worker.room import Room
from outlive.worker.warm_children import Pace, WarmChildren
from outlive.worker.zygotes import Zygotes

if TYPE_CHECKING:
    from outlive.worker.reports import AttemptEvents

WAIT_FOR_CHILD_S = 1.0
"""How long a claimed job waits for a child before it goes back to the queue."""
WAIT_FOR_SLOT_S = 0.1
"""The same for a job of a fresh task that was claimed while every slot was busy."""
MOVE_S = 0.04
"""The same for a job behind one that takes long: another worker may have room for it."""
NO_TASK = ("this worker does not have the task", 5.0)
"""Why a job is released, and for how many seconds."""
UNREAD_S = 1.0
"""How long the answer of a job may be unread while the next one has begun."""

_log = logging.getLogger("outlive.worker")


class Slots:
    def __init__(self, config: Config, size: int, zygotes: Zygotes, report: AttemptEvents) -> None:
        self.config, self.size, self.zygotes, self.report = config, size, zygotes, report
        self.reader = ChildReader(report, self._done)
        self.unplaced: deque[Assignment] = deque()
        self.tasks: dict[str, TaskFacts] = {}
        self.pace, self.room = Pace(), Room(self)
        self.closed = False
        """No more jobs are taken."""
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
        return self.zygotes.children.values()

    def app_imported(self, ready: Ready) -> None:
        """The app was imported or reloaded."""
        self.tasks = {facts.limits.name: facts for facts in ready.tasks}
        for one in self.take_unplaced(lambda one: one.job.task not in self.tasks):
            self.release(one.job, *NO_TASK)
        self.report.app_imported(self.tasks, ready.sources, ready.schedules)

    def child_ready(self) -> None:
        """A child is ready for a job, or a slot is free."""
        self._place()
        self.report.slot_freed()

    def look_for_trouble(self, now: float) -> None:
        """Report once that no job can begin here, and once that jobs can begin again."""
        if (trouble := self.zygotes.trouble(now)) == self.trouble:
            return
        if trouble is not None:
            _log.error("this worker can't begin any job: %s; it claims nothing meanwhile", trouble)
        else:
            _log.info("this worker can begin jobs again")
        self.trouble = trouble
        self.report.trouble_changed(trouble)

    @property
    def busy(self) -> list[Child]:
        return [child for child in self.children if child.given]

    @property
    def free(self) -> int:
        return self.size - len(self.busy) - len(self.unplaced)

    def capacity(self) -> int:
        """How many more jobs can begin now: those with a free slot, and a child that is ready or being forked."""
        if self.closed or self.suspect() is not None:
            return 0
        return max(0, min(self.free, self.zygotes.at_hand() - len(self.unplaced)))

    def idle(self) -> bool:
        """Whether all slots are free."""
        return self.capacity() == self.size

    def suspect(self) -> Assignment | None:
        """The suspect that runs alone for now."""
        if not self._may_have_suspect:
            return None
        given = (child.current for child in self.children if child.given)
        found = next((one for one in (*self.unplaced, *given) if one.alone), None)
        self._may_have_suspect = found is not None
        return found

    def take(self, jobs: list[Claimed], checkpoints: Mapping[UUID, bytes], *, marked: bool = True) -> None:
        """Take claimed jobs in. `hand_out` gives them to children."""
        if self.closed:
            for job in jobs:
                self.release(job, "its worker stops")
            return
        now = time.monotonic()
        for job in jobs:
            job_log.starting(job)
            if (facts := self.tasks.get(job.task)) is None:
                self.release(job, *NO_TASK)
                continue
            try:
                one = assignment(job, facts, checkpoints.get(job.id), marked=marked)
            except (msgspec.MsgspecError, RecursionError) as error:
                words = f"its options can't be read: {error}"
                self.report.ended(job, Ended(job.token, Outcome.FAILED, error=words, final=True))
            else:
                behind = facts.max_jobs == 1 and self.free <= 0
                one.trace = self.report.starting(job)
                self._may_have_suspect = self._may_have_suspect or one.alone
                one.waits_until = now + (WAIT_FOR_SLOT_S if behind else WAIT_FOR_CHILD_S)
                self.unplaced.append(one)

    def hand_out(self) -> None:
        """Give jobs to warm children that have room. The others wait for a ready child."""
        if not self.unplaced:
            return
        taken, self.unplaced = self.unplaced, deque()
        warm, free = WarmChildren(self.children, cache(partial(self.room.share, len(taken)))), self.free
        for one in taken:
            if one.job.task not in self.tasks:  # A child from before the last reload returned it.
                self.release(one.job, *NO_TASK)
                continue
            shares = None if one.job.task in warm.full else warm.fewest(one)
            if shares is None or (shares and free > 0):  # A free slot is better than a place behind other jobs.
                self.unplaced.append(one)
                free -= 1
            else:
                free -= warm.add(one)
        for child, left in warm.give(self.config.max_result_bytes):
            self._refused(child, left)
        self._place()

    def _hand_on(self, returned: list[Assignment], wait_s: float) -> None:
        """Give jobs that a child has returned to others."""
        for one in returned:
            one.waits_until = time.monotonic() + wait_s
        self.unplaced.extendleft(reversed(returned))
        self.hand_out()

    def _refused(self, child: Child, jobs: list[Assignment]) -> None:
        """A child can't be given these jobs, because its job has written into its tickets."""
        self.unplaced.extendleft(reversed(jobs))
        self.reader.distrust(child, "has written tickets")

    def _place(self) -> None:
        if self.stopping:
            return
        while self.unplaced and (free := self.size - len(self.busy)) > 0:
            if (child := self._for(self.unplaced[0])) is None:
                break
            self._give_share(child, free)
        self._retire_surplus()
        self.zygotes.fork_ahead()

    def _give_share(self, child: Child, free: int) -> None:
        """Give a child the first unplaced job and, if its task is warm, a fair share of the others of that task."""
        first = self.unplaced[0]
        task, waiting = first.job.task, len(self.unplaced)
        share = max(-(-waiting // free), self.room.share(waiting, task))
        most = 1 if first.job.losses else min(share, self.room.ahead(task), first.facts.max_jobs - child.served)
        mine, others = [self.unplaced.popleft()], list[Assignment]()
        while self.unplaced and len(mine) < most:
            one = self.unplaced.popleft()
            # A job with losses is given alone: if it kills its worker again, no other job is suspected.
            (others if one.job.task != task or one.job.losses else mine).append(one)
        self.unplaced.extendleft(reversed(others))
        if not child.give(mine, self.config.max_result_bytes):
            self._refused(child, mine)

    def _for(self, first: Assignment) -> Child | None:
        """An idle child of the same task, or one without a task."""
        if first.facts.max_jobs > 1 and not first.job.losses:
            for child in self.children:
                if child.task == first.job.task and child.bound and child.pid and not child.given:
                    return child
        return self.zygotes.take_ready()

    def relieve(self, child: Child) -> None:
        """Its job takes long: the jobs behind it begin elsewhere."""
        self.reader.hear_output(child)  # Its answer may not be read yet.
        if len(child.given) > 1 and child.runs_over(time.monotonic()):
            self.isolate(child)

    def give_up_on(self, child: Child) -> None:
        """A child does not begin its job: it is stopped, or stuck."""
        _log.warning("child %d does not begin its job: it is killed, and another child runs the job", child.pid)
        child.retiring = True
        self._hand_on(self._take_back(child), WAIT_FOR_CHILD_S)
        if not child.given:  # Otherwise it has just begun it.
            child.signal(signal.SIGKILL)

    def isolate(self, child: Child) -> bool:
        """Take back the jobs behind its current one. False if the next has begun, and the answer is not read yet.

        The answer is sent before the next job begins. If it does not arrive, the job has taken the others' tickets.
        """
        self._hand_on(self._take_back(child), MOVE_S)
        if len(child.given) <= 1:
            return True
        now, token = running_time.now(), child.current.job.token
        if child.unread_answer is None or child.unread_answer[0] != token:
            child.unread_answer = (token, now)
        elif now - child.unread_answer[1] > UNREAD_S:
            self.reader.distrust(child, "took the tickets of jobs that it does not run")
        return False

    def release_behind(self, child: Child) -> None:
        """Release the jobs of a child that did not begin."""
        for one in self._take_back(child):
            self.release(one.job)

    def cancel(self, tokens: Collection[int]) -> None:
        """Cancel jobs before they begin. The watch stops running ones."""
        back = self.take_unplaced(lambda one: one.job.token in tokens)
        for child in self.busy:
            self.reader.hear_output(child)  # The answer of the job before it may not be read yet.
            asked = [one for one in child.given if one.job.token in tokens]
            if asked and child.given and (asked[-1] is not child.current or not child.has_begun()):
                back += self._take_back(child)
        for one in back:
            if one.job.token in tokens:
                end = Ended(one.job.token, Outcome.CANCELLED, error="cancelled on request, before it began")
                self.report.ended(one.job, end)
        self._hand_on([one for one in back if one.job.token not in tokens], WAIT_FOR_CHILD_S)

    def drop_unplaced(self, now: float, leases: Leases) -> None:
        """Release jobs that waited too long for a child, soon if the job of every slot takes long."""
        if self.unplaced and len(busy := self.busy) >= self.size and all(child.runs_over(now) for child in busy):
            for one in self.unplaced:
                one.waits_until = min(one.waits_until, now + MOVE_S)
        for one in self.take_unplaced(lambda one: now > one.waits_until or leases.expired(one.job.token, now)):
            self.release(one.job)

    def take_unplaced(self, condition: Callable[[Assignment], bool]) -> list[Assignment]:
        """Take back the jobs for which this is true from those that wait for a child."""
        taken, left = list[Assignment](), deque[Assignment]()
        for one in self.unplaced:
            (taken if condition(one) else left).append(one)
        self.unplaced = left
        return taken

    def unmarked(self) -> list[Assignment]:
        """Jobs that run and are not marked as begun in the database."""
        return [child.current for child in self.busy if not child.current.marked and child.has_begun()]

    def _take_back(self, child: Child) -> list[Assignment]:
        back = child.take_back()
        if back and child.retiring and not child.given:
            child.dismiss()  # It was waiting for its last job.
        return back

    def release(self, job: Claimed, why: str = "it had not begun", after_s: float | None = None) -> None:
        self.report.ended(job, Ended(job.token, Outcome.RELEASED, error=why, after_s=after_s))

    def _retire_surplus(self) -> None:
        """Retire idle warm children that are more than there are slots."""
        bound = [child for child in self.children if child.bound and child.pid]
        idle = [child for child in bound if not child.given]
        for child in idle[: max(0, len(bound) - self.size)]:
            child.retiring = True
            child.dismiss()

    def _done(self, child: Child, done: Done) -> None:
        """A child reports the end of its job."""
        if len(done.result or b"") > self.config.max_result_bytes:
            self.reader.distrust(child, "sends a result over the limit")
            return
        ended = child.given.popleft()
        if self.unclean.concerns(child, ended, done.changed):
            self._hand_on(self._take_back(child), WAIT_FOR_CHILD_S)
        fresh = ended.facts.max_jobs == 1
        took_s = self.pace.note(ended.job.task, done.took_s, time.monotonic() - ended.started, fresh=fresh)
        child.cpu_s += done.cpu_s or 0.0
        if done.outcome is Outcome.FAILED and child.group is not None and ended.verdict is None:
            ended.verdict = self.deaths.by_kernel(child, child.group, ended)
        if child.given:
            child.begin()
        end, stopped = answered(child, ended, done, took_s, self.deferred, stopping=self.stopping)
        self.report_end(ended, end, stopped=stopped)
        if child.retiring and not child.given and child.served < ended.facts.max_jobs:
            child.dismiss()  # It was retired after its last job was sent.
        elif self.unplaced and not child.given:
            self._place()

    def report_end(self, ended: Assignment, end: Ended, *, stopped: bool) -> None:
        """Report an end. An attempt that was stopped waits until it is known why."""
        if ended.verdict is None:
            self.deaths.unproven.forget(ended)
        if stopped and not self.stopping:
            self.deferred.defer(ended.job, end, completing=ended.completing)
            return
        self.report.ended(ended.job, released(end) if stopped else end, completing=ended.completing)

    def close(self) -> None:
        """Take no more jobs, and give back those that still wait here. Jobs that have begun go on."""
        self.closed = True
        back = self.take_unplaced(lambda one: True)
        for child in self.busy:
            back += self._take_back(child)
        for one in back:
            self.release(one.job, "its worker stops")

    def tell_to_stop(self) -> None:
        if self.stopping:
            return
        self.stopping = self.zygotes.closing = True
        self.deferred.release()
        self.close()
        for child in self.busy:
            child.send(Stopping())
            child.flush()

    def leaving(self) -> bool:
        """Whether children that have run jobs are about to exit. Those that wait for another job are dismissed now."""
        served = [child for child in self.children if child.pid and child.task is not None and not child.given]
        for child in served:
            if not child.retiring:
                child.retiring = True
                child.dismiss()
        return bool(served)

    def end(self) -> list[Assignment]:
        """Stop handing out work, and return the jobs that are left."""
        self.stopping = True
        return [assignment for child in self.children for assignment in child.given] + list(self.unplaced)
