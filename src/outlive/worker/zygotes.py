"""The zygotes of a worker: the one that forks, those whose last jobs still run, and the one that is coming.

They make children ahead, are replaced when the app is imported anew, and revived when they die. What becomes of the
jobs of those that end is for `ChildEvents` to say. (It is longer than other files, because all that changes the tables
of children and parents is here.)
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import deque
from collections.abc import Collection
from typing import Protocol
from uuid import UUID

from outlive import kernel
from outlive.errors import AppNotFound
from outlive.protocol import Exited, Forked, Left, NotForked, Ready
from outlive.worker import cgroups
from outlive.worker.children import Assignment, Child
from outlive.worker.hearing import Hearing
from outlive.worker.nursery import SIGN, Heard, Nursery, listen
from outlive.worker.parents import Parent, Parents
from outlive.worker.strays import Strays, warn_of_unkillable

REVIVE_S = 1.0
ANSWER_S = 1.0
"""A zygote that takes longer than this to fork makes no promise of children."""
GONE_S = 4.0
"""How long the end of a worker waits for processes that were killed."""
WAKE_S = 0.3
"""How long a job that stops its zygote may keep its neighbours from beginning; asking costs one system call."""

_log = logging.getLogger("outlive.worker")


class ChildEvents(Protocol):
    """What zygotes report about children, and to whom children speak."""

    @property
    def hearing(self) -> Hearing: ...
    def imported(self, ready: Ready) -> None: ...
    def born(self) -> None: ...
    def gone(self, child: Child, exit: Exited) -> None: ...
    def fallen(self, child: Child, exit: Exited, *, only: bool) -> None: ...
    def orphaned(self, children: list[Child]) -> None: ...


class Zygotes:
    def __init__(
        self, target: str, worker: UUID, slots: int, *, hidden: Collection[str] = (), spare: Collection[int] = ()
    ) -> None:
        self.target, self.worker, self.slots, self.hidden = target, worker, slots, hidden
        """Variables of the environment that no job sees."""
        self.children: dict[int, Child] = {}
        self.by_pid: dict[int, Child] = {}
        self.parents = Parents()
        self.ready: deque[Child] = deque()
        """Those that wait for their first job."""
        self.closing = False
        self.fork_refused_at: float | None = None
        self._refused_because = ""
        self._not_imported = ""
        """Why the app could not be imported again."""
        self._heard_at = 0.0
        """When the zygote last answered, or was asked again after it had answered everything."""
        self._number = 0
        self._forking = 0
        self._coming: Nursery | None = None
        self._woken_at = time.monotonic()
        self._ending: set[Nursery] = set()
        self._strays = Strays()
        self._spare = spare
        """Other processes of the supervisor's, which the sweep leaves alone."""
        self._events: ChildEvents
        """Set by `open`, before the first child is made."""
        self.groups: cgroups.Groups | None = None

    def start(self) -> None:
        """Before any connection. What a dead worker has left on this machine goes first."""
        kernel.become_subreaper()
        if orphans := kernel.kill_orphans(SIGN):
            _log.warning("killed %d processes of workers that died on this machine", len(orphans))
        cgroups.remove_orphans()
        self.groups = cgroups.Groups.make(self.worker)
        way = f"{self.groups} and by measuring" if self.groups else "measuring: no cgroup can be written"
        _log.info("memory is limited by %s", way)
        self.nursery = self._new_nursery()
        self.nursery.start()

    def _new_nursery(self) -> Nursery:
        return Nursery(self.target, self.worker, self.groups.zygote if self.groups else None, self.hidden)

    def open(self, ready: Ready, events: ChildEvents) -> None:
        """The app was imported for the first time: from now on there are children, and `events` hears of them."""
        self._events = events
        self.settle_in(ready)

    def settle_in(self, ready: Ready) -> None:
        """The app is imported: make the first children."""
        if ready.threads:
            names = ", ".join(ready.threads)
            _log.warning("the app has started threads at import (%s): a forked job does not have them", names)
        self._not_imported = ""
        nursery = self.nursery
        listen(nursery.control, lambda message: self._hear(nursery, message))
        self._events.imported(ready)
        self.fork_ahead()

    async def reload(self) -> None:
        """Import the app anew in a new zygote; idle children of the old go, busy ones finish. If it fails, all stay."""
        new = self._new_nursery()
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
            self._end(new)
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
        self.settle_in(ready)

    def at_hand(self) -> int:
        """How many children are ready or about to be."""
        return len(self.ready) + (0 if self.trouble(time.monotonic()) else self._forking)

    def trouble(self, now: float) -> str | None:
        """Why no child can be made at present; None if one can."""
        if self.nursery.facts is None:
            return self._not_imported or "the zygote died, and the app is being imported again"
        if self.fork_refused_at is not None:
            return f"no process can be made for jobs: {self._refused_because}"
        if self._forking and now - self._heard_at > ANSWER_S:
            return "the zygote does not answer"
        return None

    def _hear(self, nursery: Nursery, message: Heard) -> None:
        """What the zygote says of parents, and of children whose parents have died."""
        match message:
            case Forked(number, pid):
                if (parent := self.parents.numbered(number)) is not None:
                    parent.pid = pid
            case NotForked(number, reason):
                if (parent := self.parents.numbered(number)) is not None:
                    self._end_parent(parent)
                if nursery is self.nursery:
                    self._refused(reason)
            case Exited(pid):
                if (child := self.by_pid.pop(pid, None)) is not None:
                    self._fell(child, message)
                elif (parent := self.parents.with_pid(pid)) is not None:
                    self._end_parent(parent)
                    self.fork_ahead()
                self._let_go(nursery)
            case Left(pid):
                warn_of_unkillable(pid)
            case None:
                self._died(nursery)

    def _hear_parent(self, parent: Parent, message: Heard) -> None:
        if parent.nursery is self.nursery:
            self._heard_at = time.monotonic()
        match message:
            case Forked(slot, pid):
                self._forked(self.children[slot], pid)
            case NotForked(slot, reason):
                self._unmade(self.children[slot])
                if parent.nursery is self.nursery:
                    self._refused(reason)
                self._let_go(parent.nursery)
            case Exited(pid):
                if (child := self.by_pid.pop(pid, None)) is not None:
                    self._exited(child, message)
                self._let_go(parent.nursery)
            case Left(pid):
                warn_of_unkillable(pid)
            case None:  # What becomes of its children, the zygote tells when they are gone.
                parent.dead = True

    def _end_parent(self, parent: Parent) -> None:
        """It is dead, or was never made. So is the child that it was asked for last."""
        self.parents.end(parent)
        for child in list(parent.children):
            if child.pid:  # It can't be reaped. Nothing waits for it.
                self.by_pid.pop(child.pid, None)
                self._fell(child, Exited(child.pid, signal.SIGKILL, 0, 0.0))
            else:
                self._unmade(child)

    def _unmade(self, child: Child) -> None:
        if child.nursery is self.nursery:
            self._forking -= 1
        del self.children[child.slot]
        child.parent.children.remove(child)
        self.discard(child)

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
        self._events.born()

    def _exited(self, child: Child, exit: Exited) -> None:
        self._hear_last(child)
        self._events.gone(child, exit)
        self._bury(child)

    def _fell(self, child: Child, exit: Exited) -> None:
        """Its parent died, and it with that: a job below the parent has done it, if no one from elsewhere has."""
        parent = child.parent
        parent.hear_last()
        parent.culprits = parent.culprits or sum(bool(one.served) for one in parent.children)
        self._hear_last(child)
        self._events.fallen(child, exit, only=parent.culprits == 1)
        self._bury(child)

    def _hear_last(self, child: Child) -> None:
        self._events.hearing.hear_all(child)
        child.read_output()
        child.exited = True
        self.children.pop(child.slot, None)
        child.parent.children.remove(child)
        if child in self.ready:
            self.ready.remove(child)

    def _bury(self, child: Child) -> None:
        self.discard(child)
        self.parents.spare(child.parent, self.slots)
        self._events.born()  # Its place is free.

    def take_ready(self) -> Child | None:
        """A child for a job, below a parent where no other has one."""
        for place, child in enumerate(self.ready):
            if not child.parent.engaged and not child.parent.dead:
                del self.ready[place]
                return child
        return None

    def _let_go(self, nursery: Nursery) -> None:
        """A zygote that was replaced ends with its last child."""
        if nursery is not self.nursery and all(child.nursery is not nursery for child in self.children.values()):
            self._end(nursery)

    def fork_ahead(self) -> None:
        """Have as many ready children as slots may need next."""
        if self.closing or self.nursery.facts is None:
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
        parent = self.parents.for_next(self.nursery)
        if parent is None:
            self._number += 1
            parent = self.parents.make(self._number, self.nursery, self._hear_parent)
        self._number += 1
        child = self.children[self._number] = parent.ask_for_child(self._number)
        if not self._forking:
            self._heard_at = time.monotonic()
        self._forking += 1
        loop = asyncio.get_running_loop()
        loop.add_reader(child.socket.fileno(), self._events.hearing.hear, child)
        loop.add_reader(child.output, self._events.hearing.hear_output, child)

    def _refused(self, reason: str) -> None:
        self.fork_refused_at = time.monotonic()
        self._refused_because = reason
        _log.error("no new child: %s; nothing is claimed until one can be made", reason)

    def _died(self, nursery: Nursery) -> None:
        """Its children are gone or going; their attempts are lost, at nobody's fault. A new one is made at once."""
        _log.error("the zygote died: its jobs are given up, and a new one is started")
        mine = [child for child in self.children.values() if child.nursery is nursery]
        for child in mine:
            self._events.hearing.hear_all(child)  # It may have ended its job before.
            child.signal(signal.SIGKILL)
            self.children.pop(child.slot)
            self.by_pid.pop(child.pid, None)
        self.ready = deque(child for child in self.ready if child.nursery is not nursery)
        self._end(nursery)
        nursery.process.kill()  # If it only closed its connection.
        for _ in range(3):  # What is forked meanwhile is found by the watch.
            self.sweep()
        self._events.orphaned(mine)
        for child in mine:
            self.discard(child)
        if nursery is self.nursery and not self.closing:
            self._forking = 0
            self._revival = asyncio.get_running_loop().create_task(self._revive(nursery))

    async def _revive(self, dead: Nursery) -> None:
        """A new zygote, as often as it takes: the app could be imported before. Unless a reload brings one first."""
        while not self.closing and self.nursery is dead:
            new = self._new_nursery()
            try:
                new.start()
                self.nursery = dead = new
                ready = await new.ready()
            except (AppNotFound, OSError) as error:
                not_imported = f"the app can't be imported again: {_last_line(str(error))}"
                if not_imported != self._not_imported:  # Once, and not every second.
                    _log.error("there is no new zygote yet: %s", error)
                self._not_imported = not_imported
                if dead is new:
                    self._end(new)
                await asyncio.sleep(REVIVE_S)
                continue
            if self.nursery is new:
                self.settle_in(ready)
            else:
                self._end(new)
            return

    def discard(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        child.exited = True
        self._events.hearing.forget(child)
        loop.remove_reader(child.socket.fileno())
        loop.remove_writer(child.socket.fileno())
        loop.remove_reader(child.output)
        child.close()
        if child.group and self.groups:
            self.groups.remove(child.group)

    def end(self) -> None:
        """Kill all that is left. They are gone after `gone`."""
        self.closing = True
        for child in list(self.children.values()):
            child.signal(signal.SIGKILL)
            self.discard(child)
        for nursery in {child.nursery for child in self.children.values()} | {self.nursery, self._coming}:
            if nursery is not None:
                self._end(nursery)
        self.children.clear()

    async def gone(self) -> None:
        """Wait until no process of theirs is left, but not for those that the kernel does not let go."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            if not self._living() and not self.sweep():
                break
            await asyncio.sleep(0.005)
        if self.groups:
            self.groups.end()

    def _end(self, nursery: Nursery) -> None:
        for parent in self.parents.of(nursery):
            self.parents.end(parent)
        nursery.hang_up()
        self._ending.add(nursery)

    def shelter(self, child: Child, current: Assignment) -> None:
        """Give a child whose job has a limit on memory a group to itself. Most jobs end before, and cost nothing."""
        if self.groups is None or child.group is not None or current.memory_bytes is None:
            return
        group = self.groups.new(child.slot)
        if group is not None:
            child.limit(current, group)
            try:
                asyncio.get_running_loop().run_in_executor(None, group.gather, child.pid)
                child.group = group
            except RuntimeError:  # No thread can be started.
                self.groups.remove(group)

    def _living(self) -> set[int]:
        """The one that forks, those whose last jobs still run, the one that is coming, and those that are ending."""
        self._ending = {one for one in self._ending if one.lives()}
        nurseries = {child.nursery for child in self.children.values()} | {self.nursery, self._coming} | self._ending
        return {one.process.pid for one in nurseries if one and one.lives()}

    def wake(self, now: float) -> None:
        """One that was stopped, as by a job that stops its parent, goes on; one that runs does not notice."""
        if now - self._woken_at > WAKE_S:
            self._woken_at = now
            for pid in (*self._living(), *self.parents.pids()):
                kernel.kill(pid, signal.SIGCONT)

    def sweep(self) -> bool:
        """Reap or kill what fell to the supervisor, a subreaper or PID 1; True if something is about to die."""
        return self._strays.sweep({*self._living(), *self._spare})


def _last_line(text: str) -> str:
    """Of a traceback, the error."""
    return text.strip().rpartition("\n")[2]
