"""The zygotes of a worker: the current one, the next one, and replaced or dead ones whose jobs still run.

They fork children ahead of the jobs, and are replaced on a reload and when they die. Jobs outlive their zygote, below
their parents. `ChildEvents` decides what becomes of the jobs. This file is longer than others, because all that changes
the table of children is here.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import Protocol
from uuid import UUID

from outlive import kernel
from outlive.errors import AppNotFound, ConfigError
from outlive.protocol import Exited, Forked, Left, NotForked, Ready
from outlive.worker import cgroups
from outlive.worker.child_reader import ChildReader
from outlive.worker.children import Assignment, Child
from outlive.worker.ends import last_line
from outlive.worker.parents import Parent, Parents
from outlive.worker.strays import Strays, warn_of_unkillable
from outlive.worker.zygote_handle import SIGN, Report, ZygoteHandle, listen

RESTART_S = 1.0
ANSWER_S = 1.0
"""A parent that takes longer than this to fork counts as stuck: its children are not promised to jobs."""
GONE_S = 4.0
"""How long a worker that stops waits for killed processes to be gone."""
CONTINUE_S = 0.3
"""How often stopped zygotes and parents are continued. It costs one system call each."""

_log = logging.getLogger("outlive.worker")


class ChildDeaths(Protocol):
    def child_exited(self, child: Child, exit: Exited) -> None: ...
    def parent_died(self, child: Child, exit: Exited, *, only: bool) -> None: ...
    def zygote_died(self) -> str: ...


class ChildEvents(Protocol):
    """What zygotes report about children, and who reads what children send."""

    @property
    def reader(self) -> ChildReader: ...
    @property
    def deaths(self) -> ChildDeaths: ...
    def app_imported(self, ready: Ready) -> None: ...
    def child_ready(self) -> None: ...


class Zygotes:
    def __init__(
        self,
        target: str,
        worker: UUID,
        slots: int,
        *,
        hidden: Collection[str] = (),
        spare: Collection[int] = (),
        log_level: str = "info",
    ) -> None:
        self.target, self.worker, self.slots = target, worker, slots
        self.hidden = hidden
        """Environment variables that no job sees."""
        self._log_level = log_level
        self.children: dict[int, Child] = {}
        self.by_pid: dict[int, Child] = {}
        self.parents = Parents()
        self.ready: deque[Child] = deque()
        """Children that wait for their first job."""
        self.closing = False
        self.fork_refused_at: float | None = None
        self._refused_because = ""
        self._not_imported = ""
        """Why the last import of the app failed."""
        self._heard_at = 0.0
        """When a parent last answered, or was asked for a child while no other answer was due."""
        self._number = 0
        self._forking = 0
        self._next: ZygoteHandle | None = None
        self._continued_at = time.monotonic()
        self._ending: set[ZygoteHandle] = set()
        self._strays = Strays()
        self._spare = spare
        """Other children of the supervisor, which the sweep leaves alone."""
        self._events: ChildEvents
        """Set by `open`, before the first child is made."""
        self.groups: cgroups.Groups | None = None

    def start(self) -> None:
        """Kill what dead workers left on this machine, and start the zygote, before any connection is open."""
        kernel.become_subreaper()
        if orphans := kernel.kill_orphans(SIGN):
            _log.warning("killed %d processes of workers that died on this machine", len(orphans))
        cgroups.remove_orphans()
        self.groups = cgroups.Groups.make(self.worker)
        self.current = self._new_zygote()
        self.current.start()

    def _new_zygote(self) -> ZygoteHandle:
        group = self.groups.zygote if self.groups else None
        return ZygoteHandle(self.target, self.worker, group, self.hidden, self._log_level)

    def open(self, ready: Ready, events: ChildEvents) -> None:
        """The app was imported for the first time: fork children, and report to `events`."""
        self._events = events
        self._use_current(ready)

    def _use_current(self, ready: Ready) -> None:
        """The current zygote has imported the app: listen to it, and fork the first children."""
        if ready.threads:
            names = ", ".join(ready.threads)
            _log.warning("the app started threads at import (%s): forked jobs do not have them", names)
        self._not_imported = ""
        zygote = self.current
        listen(zygote.control, lambda message: self._handle(zygote, message))
        self._events.app_imported(ready)
        self.fork_ahead()

    async def reload(self) -> None:
        """Import the app again, in a new zygote. Idle children of the old one exit, busy ones finish their jobs.

        If the import fails, the old zygote stays.
        """
        new = self._new_zygote()
        try:
            new.start()
            self._next = new
            ready = await new.ready()
        except (AppNotFound, ConfigError, OSError) as error:
            _log.error("the reload failed, and the worker goes on with the old app: %s", error)
            if self._next is not None:
                self._end(new)
            return
        finally:
            self._next = None
        self.current = new
        self._retire(self.children.values())
        self.ready.clear()
        self._forking = 0
        _log.info("the app was reloaded: %d tasks", len(ready.tasks))
        self._use_current(ready)

    def _retire(self, children: Iterable[Child]) -> None:
        """Let these children finish the jobs that they have. Idle ones exit."""
        for child in children:
            child.retiring = True
            if not child.given:
                child.dismiss()

    def at_hand(self) -> int:
        """How many children are ready, or will be in a moment."""
        return len(self.ready) + (0 if self.trouble(time.monotonic()) else self._forking)

    def trouble(self, now: float) -> str | None:
        """Why no child can be forked at present; None if one can."""
        if self.current.facts is None:
            return self._not_imported or "the zygote died, and the app is being imported again"
        if self.fork_refused_at is not None:
            return f"no process can be forked for jobs: {self._refused_because}"
        if self._forking and now - self._heard_at > ANSWER_S:
            return "the zygote does not answer"
        return None

    def _handle(self, zygote: ZygoteHandle, message: Report) -> None:
        """A zygote reports on its parents, and on children whose parents have died."""
        match message:
            case Forked(number, pid):
                if (parent := self.parents.numbered(number)) is not None:
                    parent.pid = pid
            case NotForked(number, reason):
                if (parent := self.parents.numbered(number)) is not None:
                    self._end_parent(parent)
                if zygote is self.current:
                    self._refused(reason)
            case Exited(pid):
                if (child := self.by_pid.pop(pid, None)) is not None:
                    self._end_with_parent(child, message)
                elif (parent := self.parents.with_pid(pid)) is not None:
                    self._end_parent(parent)
                    self.fork_ahead()
                self._end_if_replaced(zygote)
            case Left(pid):
                warn_of_unkillable(pid)
            case None:
                self._died(zygote)

    def _handle_parent(self, parent: Parent, message: Report) -> None:
        if self._in_use(parent.zygote):
            self._heard_at = time.monotonic()
        match message:
            case Forked(number, pid):
                self._forked(self.children[number], pid)
            case NotForked(number, reason):
                self._discard_unforked(self.children[number])
                if self._in_use(parent.zygote):
                    self._refused(reason)
                self._end_if_replaced(parent.zygote)
            case Exited(pid):
                if (child := self.by_pid.pop(pid, None)) is not None:
                    self._exited(child, message)
                self._end_if_replaced(parent.zygote)
            case Left(pid):
                warn_of_unkillable(pid)
            case None:  # The zygote reports the children when they are gone.
                parent.dead = True
                if parent.zygote.hung_up_at is not None:
                    self._end_orphan(parent)

    def _in_use(self, zygote: ZygoteHandle) -> bool:
        """Whether new jobs run below this zygote: it lives, and no reload has replaced it."""
        return zygote is self.current and zygote.facts is not None

    def _end_parent(self, parent: Parent) -> None:
        """A parent is dead, or was never forked, and so are its children."""
        self.parents.end(parent)
        for child in list(parent.children):
            if child.pid:  # It can't be reaped, so the zygote does not report it.
                self.by_pid.pop(child.pid, None)
                self._end_with_parent(child, Exited(child.pid, signal.SIGKILL, 0, 0.0))
            else:
                self._discard_unforked(child)

    def _end_orphan(self, parent: Parent) -> None:
        """A parent has died after its zygote: what was below it falls to the supervisor, which kills it."""
        if self.parents.numbered(parent.number) is not parent:
            return
        for child in parent.children:
            child.signal(signal.SIGKILL)
        for _ in range(3):  # Processes that are forked meanwhile are found by the watch.
            self.sweep()
        self._end_parent(parent)
        self._end_if_replaced(parent.zygote)

    def _discard_unforked(self, child: Child) -> None:
        if self._in_use(child.zygote):
            self._forking -= 1
        del self.children[child.number]
        child.parent.children.remove(child)
        self.discard(child)

    def _forked(self, child: Child, pid: int) -> None:
        child.pid = pid
        self.by_pid[pid] = child
        if not self._in_use(child.zygote):
            child.retiring = True
            child.dismiss()
            return
        self._forking -= 1
        if self.fork_refused_at is not None:
            _log.info("children can be forked again")
            self.fork_refused_at = None
        self.ready.append(child)
        self._events.child_ready()

    def _exited(self, child: Child, exit: Exited) -> None:
        self._read_last(child)
        self._events.deaths.child_exited(child, exit)
        self._remove(child)

    def _end_with_parent(self, child: Child, exit: Exited) -> None:
        """A child died with its parent. Its job has killed the parent, unless another child may have done so."""
        parent = child.parent
        parent.read_last()
        parent.culprits = parent.culprits or sum(bool(one.served) for one in parent.children)
        self._read_last(child)
        self._events.deaths.parent_died(child, exit, only=parent.culprits == 1)
        self._remove(child)

    def _read_last(self, child: Child) -> None:
        self._events.reader.hear_all(child)
        child.read_output()
        child.exited = True
        self.children.pop(child.number, None)
        child.parent.children.remove(child)
        if child in self.ready:
            self.ready.remove(child)

    def _remove(self, child: Child) -> None:
        self.discard(child)
        self.parents.end_surplus(child.parent, self.slots)
        self._events.child_ready()  # Its slot is free.

    def take_ready(self) -> Child | None:
        """A ready child whose parent has no other child with work."""
        for place, child in enumerate(self.ready):
            if not child.parent.engaged and not child.parent.dead:
                del self.ready[place]
                return child
        return None

    def _end_if_replaced(self, zygote: ZygoteHandle) -> None:
        """A zygote that is not in use any more, and its parents, end with its last child."""
        if not self._in_use(zygote) and all(child.zygote is not zygote for child in self.children.values()):
            self._end(zygote)

    def fork_ahead(self) -> None:
        """Have a ready child for each slot."""
        if self.closing or self.current.facts is None:
            return
        if self.fork_refused_at and time.monotonic() - self.fork_refused_at < 1.0:
            return
        for _ in range(self.slots - len(self.ready) - self._forking):
            try:
                self._ask_for_child()
            except OSError as error:  # This process is out of descriptors, or the zygote does not read.
                self._refused(str(error))
                return

    def _ask_for_child(self) -> None:
        parent = self.parents.for_next(self.current)
        if parent is None:
            self._number += 1
            parent = self.parents.make(self._number, self.current, self._handle_parent)
        self._number += 1
        child = self.children[self._number] = parent.ask_for_child(self._number)
        if not self._forking:
            self._heard_at = time.monotonic()
        self._forking += 1
        loop = asyncio.get_running_loop()
        loop.add_reader(child.socket.fileno(), self._events.reader.hear, child)
        loop.add_reader(child.output, self._events.reader.hear_output, child)

    def _refused(self, reason: str) -> None:
        self.fork_refused_at = time.monotonic()
        self._refused_because = reason
        _log.error("a child could not be forked: %s; this worker claims nothing until one can be", reason)

    def _died(self, zygote: ZygoteHandle) -> None:
        """Its jobs go on below their parents, which report to the supervisor. A new zygote replaces the current one."""
        who = "the zygote" if zygote is self.current else "a replaced zygote"
        zygote.hang_up()
        zygote.process.kill()  # It may only have closed its control socket.
        self._ending.add(zygote)
        self.ready = deque(child for child in self.ready if child.zygote is not zygote)
        for parent in self.parents.of(zygote):
            if parent.dead or not parent.pid:  # It died first, or its fork was not reported.
                self._end_orphan(parent)
        self._retire(child for child in self.children.values() if child.zygote is zygote)
        self._end_if_replaced(zygote)
        _log.error("%s died%s: the jobs below it go on", who, self._events.deaths.zygote_died())
        if zygote is self.current and not self.closing:
            self._forking = 0
            self._restarting = asyncio.get_running_loop().create_task(self._restart(zygote))

    async def _restart(self, dead: ZygoteHandle) -> None:
        """Start a new zygote. Retry while the app can't be imported, unless a reload succeeds first."""
        while not self.closing and self.current is dead:
            new = self._new_zygote()
            try:
                new.start()
                self.current = dead = new
                ready = await new.ready()
            except (AppNotFound, ConfigError, OSError) as error:
                not_imported = f"the app can't be imported again: {last_line(str(error))}"
                if not_imported != self._not_imported:  # Log it once, not every second.
                    _log.error("the new zygote can't import the app yet: %s", error)
                self._not_imported = not_imported
                if dead is new:
                    if (new.process.returncode or 0) < 0:  # A job may kill each one while it imports.
                        self._events.deaths.zygote_died()
                    self._end(new)
                await asyncio.sleep(RESTART_S)
                continue
            if self.current is new:
                self._use_current(ready)
            else:
                self._end(new)
            return

    def discard(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        child.exited = True
        self._events.reader.forget(child)
        if not child.hung_up:
            loop.remove_reader(child.socket.fileno())
        if child.waiting_to_send:
            loop.remove_writer(child.socket.fileno())
        loop.remove_reader(child.output)
        child.close()
        if child.group and self.groups:
            self.groups.remove(child.group)

    def end(self) -> None:
        """Kill all processes. `gone` waits until they are gone."""
        self.closing = True
        for child in list(self.children.values()):
            child.signal(signal.SIGKILL)
            self.discard(child)
        for zygote in {child.zygote for child in self.children.values()} | {self.current, self._next}:
            if zygote is not None:
                self._end(zygote)
        self.children.clear()

    async def gone(self) -> None:
        """Wait until all processes are gone, for a few seconds at most: some can't be killed."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            if not self._living() and not self.sweep():
                break
            await asyncio.sleep(0.005)
        if self.groups:
            self.groups.end()

    def _end(self, zygote: ZygoteHandle) -> None:
        for parent in self.parents.of(zygote):
            self.parents.end(parent)
        zygote.hang_up()
        self._ending.add(zygote)

    def give_cgroup(self, child: Child, current: Assignment) -> None:
        """Move a child whose job has a memory limit into its own group. Most jobs end before that, and cost nothing."""
        if self.groups is None or child.group is not None or current.memory_bytes is None:
            return
        group = self.groups.new(child.number)
        if group is not None:
            child.limit(current, group)
            try:
                asyncio.get_running_loop().run_in_executor(None, group.gather, child.pid)
                child.group = group
            except RuntimeError:  # No thread can be started.
                self.groups.remove(group)

    def sent_by_a_job(self, name: str, sender: int) -> bool:
        """Whether a process of a job has sent this signal to the supervisor. The job is killed, and counts as crashed.

        A process that a job has left behind is below the job's parent, where one job runs at a time.
        """
        for pid in kernel.lineage_of(sender):
            child, parent = self.by_pid.get(pid), self.parents.with_pid(pid)
            if child is None and parent is None:
                continue
            for one in [child] if child else [one for one in parent.children if one.given] if parent else ():
                if not one.distrusted:
                    self._events.reader.distrust(one, f"sent {name} to its worker")
            return True
        return False

    def _living(self) -> set[int]:
        """The pids of all zygotes: current, replaced, next, and ending ones."""
        self._ending = {one for one in self._ending if one.lives()}
        zygotes = {child.zygote for child in self.children.values()} | {self.current, self._next} | self._ending
        return {one.process.pid for one in zygotes if one and one.lives()}

    def continue_stopped(self, now: float) -> None:
        """Continue zygotes and parents that a job has stopped. Running ones do not notice."""
        if now - self._continued_at > CONTINUE_S:
            self._continued_at = now
            for pid in (*self._living(), *self.parents.pids()):
                kernel.kill(pid, signal.SIGCONT)

    def sweep(self) -> bool:
        """Reap or kill orphans that the kernel gave to the supervisor; True if one of them is about to die."""
        return self._strays.sweep({*self._living(), *self.parents.pids(), *self._spare})
