"""The zygotes of a worker: the one that forks, those whose last jobs still run, and the one that is coming.

They make children ahead, are replaced when the app is imported anew, and revived when they die. What becomes of the
jobs of those that end is for `ChildEvents` to say.
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

from outlive import kernel
from outlive.errors import AppNotFound
from outlive.protocol import Exited, Forked, Left, NotForked, Ready
from outlive.worker import cgroups, tickets
from outlive.worker.children import Assignment, Child
from outlive.worker.hearing import Hearing
from outlive.worker.nursery import SIGN, Nursery
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
    def orphaned(self, children: list[Child]) -> None: ...


class Zygotes:
    def __init__(
        self, target: str, worker: UUID, slots: int, *, hidden: Collection[str] = (), spare: Collection[int] = ()
    ) -> None:
        self.target, self.worker, self.slots, self.hidden = target, worker, slots, hidden
        """Variables of the environment that no job sees."""
        self.children: dict[int, Child] = {}
        self.by_pid: dict[int, Child] = {}
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
        nursery.listen(lambda message: self._hear(nursery, message))
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

    def _hear(self, nursery: Nursery, message: Forked | NotForked | Exited | Left | None) -> None:
        if nursery is self.nursery:
            self._heard_at = time.monotonic()
        match message:
            case Forked(slot, pid):
                self._forked(self.children[slot], pid)
            case NotForked(slot, reason):
                self.discard(self.children.pop(slot))
                if nursery is self.nursery:
                    self._forking -= 1
                    self._refused(reason)
                self._let_go(nursery)
            case Exited(pid):
                if (child := self.by_pid.pop(pid, None)) is not None:
                    self._exited(child, message)
                self._let_go(nursery)
            case Left(pid):
                warn_of_unkillable(pid)
            case None:
                self._died(nursery)

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
        self._events.hearing.hear_all(child)
        child.read_output()
        child.exited = True
        self.children.pop(child.slot, None)
        if child in self.ready:
            self.ready.remove(child)
        self._events.gone(child, exit)
        self.discard(child)
        self._events.born()  # Its place is free.

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
        self._number += 1
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as given:
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            given.callback(theirs.close)
            read, write = os.pipe2(os.O_CLOEXEC)
            kept.callback(os.close, read)
            given.callback(os.close, write)
            stack = os.memfd_create("outlive-stack")
            kept.callback(os.close, stack)
            queue, queued = tickets.make()
            kept.callback(os.close, queue)
            given.callback(os.close, queued)
            self.nursery.fork(self._number, [theirs.fileno(), write, stack, queued])
            kept.pop_all()
        ours.setblocking(False)
        os.set_blocking(read, False)
        child = Child(self._number, self.nursery, ours, read, stack, queue)
        self.children[child.slot] = child
        if not self._forking:
            self._heard_at = time.monotonic()
        self._forking += 1
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._events.hearing.hear, child)
        loop.add_reader(read, self._events.hearing.hear_output, child)

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
            for pid in self._living():
                kernel.kill(pid, signal.SIGCONT)

    def sweep(self) -> bool:
        """Reap or kill what fell to the supervisor, a subreaper or PID 1; True if something is about to die."""
        return self._strays.sweep({*self._living(), *self._spare})


def _last_line(text: str) -> str:
    """Of a traceback, the error."""
    return text.strip().rpartition("\n")[2]
