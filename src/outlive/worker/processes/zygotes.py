"""All processes below a worker: zygotes, the parents that they fork, and the parents' children.

Children are forked ahead of the jobs. Each fork and each death is reported here. A zygote is replaced on a reload and
when it dies; its jobs outlive it, below their parents.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from outlive import linux
from outlive.errors import AppNotFound, ConfigError
from outlive.protocol import Exited, Forked, Left, NotForked, Ready
from outlive.worker import log
from outlive.worker.ending.ends import last_line
from outlive.worker.limits import cgroups
from outlive.worker.processes.children import Child
from outlive.worker.processes.strays import Strays, warn_of_unkillable
from outlive.worker.processes.zygote_handle import SUPERVISOR, Parent, Report, ZygoteHandle

if TYPE_CHECKING:
    from outlive.worker.processes.slots import Slots

RESTART_S = 1.0
ANSWER_S = 1.0
"""A parent that takes longer than this to fork counts as stuck: its children are not promised to jobs."""
REFUSED_S = 1.0
"""How long no child is asked for after a fork was refused."""
MOST_LEAVING = 64
"""How many children, beside two for each slot, may be about to exit before no others are forked. One that takes long
over it holds memory and descriptors until then."""
GONE_S = 4.0
"""How long a worker that stops waits for killed processes to be gone."""
CONTINUE_S = 0.3
"""How often stopped zygotes and parents are continued. It costs one system call each."""
NOT_IMPORTED = (AppNotFound, ConfigError, OSError)


class Zygotes:
    def __init__(
        self,
        target: str,
        worker: UUID,
        *,
        hidden: Collection[str] = (),
        spare: Collection[int] = (),
        log_level: str = "info",
    ) -> None:
        self.target, self.worker = target, worker
        self._hidden, self._log_level = hidden, log_level
        """Environment variables that no job sees; the level of the log records that are kept."""
        self._spare = spare
        """Other children of the supervisor, which the sweep leaves alone."""
        self.current: ZygoteHandle
        self.all: set[ZygoteHandle] = set()
        """Also the next one, and replaced or dead ones with processes below them."""
        self.children: list[Child] = []
        self.groups: cgroups.Groups | None = None
        self.closing = False
        self._refused: tuple[float, str] | None = None
        """Since when no child can be forked, and why."""
        self._not_imported = ""
        """Why the last import of the app failed."""
        self.reload_error: str | None = None
        """Why the last reload failed: the old code is in use."""
        self._answered_at = 0.0
        """When a parent last answered, or was asked for a child while no other answer was due."""
        self._continued_at = time.monotonic()
        self._strays = Strays()
        self._slots: Slots
        """Set by `open`, before the first child is made."""

    def start(self) -> None:
        """Kill what dead workers left on this machine, and start the zygote, before any connection is open."""
        linux.become_subreaper()
        if orphans := linux.kill_orphans(SUPERVISOR):
            log.warning("killed %d processes of workers that died on this machine", len(orphans))
        cgroups.remove_orphans()
        self.groups = cgroups.Groups.make(self.worker)
        self.current = self._start_zygote()

    def open(self, ready: Ready, slots: Slots) -> None:
        """The app was imported for the first time: fork children for these slots."""
        self._slots = slots
        self._use(self.current, ready)

    # Zygotes

    def _start_zygote(self) -> ZygoteHandle:
        zygote = ZygoteHandle(self.target, self.worker, self._hidden, self._log_level)
        self.all.add(zygote)
        if self.groups:
            self.groups.zygote.add(zygote.process.pid)
        return zygote

    async def _import_app(self) -> tuple[ZygoteHandle, Ready]:
        new = self._start_zygote()
        try:
            return new, await new.ready()
        except NOT_IMPORTED:
            if (new.process.returncode or 0) < 0:  # A job may kill each one while it imports.
                self._slots.deaths.zygote_died()
            self._end(new)
            raise

    def _use(self, zygote: ZygoteHandle, ready: Ready) -> None:
        """Fork children from this zygote, which has imported the app."""
        if ready.threads:
            names = ", ".join(ready.threads)
            log.warning("the app started threads at import (%s): forked jobs do not have them", names)
        if ready.sentry_is_silent:
            how = "App(sentry=True) or OUTLIVE_SENTRY=true"
            log.warning("the app calls sentry_sdk.init, but failed jobs make no event: set %s", how)
        for unused in ready.unused_results:
            log.warning("%s", unused)
        self._not_imported, self.reload_error = "", None
        self.current = zygote
        zygote.control.listen(partial(self._handle, zygote, None))
        self._slots.app_imported(ready)
        self.fork_ahead()

    async def reload(self) -> None:
        """Import the app again, in a new zygote. Children of the old one finish their jobs. It stays if that fails."""
        try:
            new, ready = await self._import_app()
        except NOT_IMPORTED as error:
            log.error("the reload failed, and the worker goes on with the old app: %s", error)
            self.reload_error = last_line(str(error))
            return
        for child in self.children:
            child.retire()
        log.info("the app was reloaded: %d tasks", len(ready.tasks))
        self._use(new, ready)

    async def _restart(self) -> None:
        """Start a new zygote. Retry while the app can't be imported, unless a reload succeeds first."""
        dead = self.current
        while not self.closing and self.current is dead:
            try:
                new, ready = await self._import_app()
            except NOT_IMPORTED as error:
                not_imported = f"the app can't be imported again: {last_line(str(error))}"
                if not_imported != self._not_imported:  # Log it once, not every second.
                    log.error("the new zygote can't import the app yet: %s", error)
                self._not_imported = not_imported
                await asyncio.sleep(RESTART_S)
                continue
            if self.current is dead:
                self._use(new, ready)
            else:
                self._end(new)

    def _in_use(self, zygote: ZygoteHandle) -> bool:
        """Whether new jobs run below this zygote: it lives, and no reload has replaced it."""
        return zygote is self.current and zygote.facts is not None

    def _end(self, zygote: ZygoteHandle) -> None:
        for parent in list(zygote.parents):
            parent.end()
        zygote.hang_up()

    def trouble(self, now: float) -> str | None:
        """Why no child can be forked at present; None if one can."""
        if self.current.facts is None:
            return self._not_imported or "the zygote died, and the app is being imported again"
        if self._refused is not None:
            return f"no process can be forked for jobs: {self._refused[1]}"
        if self._forking() and now - self._answered_at > ANSWER_S:
            return "the zygote does not answer"
        return None

    # Children ahead of the jobs

    @property
    def ready(self) -> list[Child]:
        """Children that wait for their first job."""
        return [one for one in self.children if one.pid and one.task is None and not one.retiring]

    def _forking(self) -> int:
        return sum(not one.pid and not one.retiring for one in self.children)

    def _leaving(self) -> int:
        return sum(one.retiring and one.task is not None and not one.given and not one.parked for one in self.children)

    def at_hand(self) -> int:
        """How many children are ready, or will be in a moment."""
        return len(self.ready) + (0 if self.trouble(time.monotonic()) else self._forking())

    def next_ready(self) -> Child | None:
        """A ready child whose parent has no other child with work."""
        return next((one for one in self.ready if not one.parent.engaged and not one.parent.dead), None)

    def fork_ahead(self) -> None:
        """Have a ready child for each slot, unless too many children take long to exit after their last job."""
        if self.closing or self.current.facts is None:
            return
        if self._leaving() > MOST_LEAVING + 2 * self._slots.size:
            return
        if self._refused and time.monotonic() - self._refused[0] < REFUSED_S:
            return
        try:
            for _ in range(self._slots.size - len(self.ready) - self._forking()):
                self._ask_for_child()
        except OSError as error:  # This process is out of descriptors, or the zygote does not read.
            self._refuse(str(error))

    def _ask_for_child(self) -> None:
        if not self._forking():
            self._answered_at = time.monotonic()
        able = [one for one in self.current.parents if one.may_have_another]
        parent = min(able, key=lambda one: one.engaged, default=None)
        if parent is None:
            parent = Parent.ask_for(self.current)
            parent.control.listen(partial(self._handle, parent.zygote, parent))
        child = parent.ask_for_child()
        self.children.append(child)
        self._slots.reader.listen(child)

    def _refuse(self, reason: str) -> None:
        self._refused = (time.monotonic(), reason)
        log.error("a child could not be forked: %s; this worker claims nothing until one can be", reason)

    # Reports of forks and deaths

    def _handle(self, zygote: ZygoteHandle, parent: Parent | None, message: Report) -> None:
        """A parent reports on its children, a zygote on its parents and on children whose parents have died."""
        if self._in_use(zygote):
            self._answered_at = time.monotonic()
        match message:
            case Forked(pid):
                asked = _first_asked_for(zygote if parent is None else parent)
                asked.pid = pid
                if isinstance(asked, Child) and not asked.retiring:  # Otherwise it was dismissed before it was there.
                    if self._refused is not None:
                        log.info("children can be forked again")
                        self._refused = None
                    self._slots.child_ready()
            case NotForked(reason):
                asked = _first_asked_for(zygote if parent is None else parent)
                self._remove(asked) if isinstance(asked, Child) else self._end_parent(asked)
                if self._in_use(zygote):
                    self._refuse(reason)
            case Exited(pid):
                if (child := self._child(pid)) is not None:
                    self._end_child(child, message, with_parent=parent is None)
                for one in [one for one in zygote.parents if one.pid == pid]:
                    one.note_death()
                    if not one.culprits:
                        self._slots.deaths.idle_parent_died()
                    self._end_parent(one)
                    self.fork_ahead()
            case Left(pid):
                warn_of_unkillable(pid)
            case None if parent is None:
                self._zygote_died(zygote)
            case None:  # The zygote reports the children when they are gone.
                parent.dead = True
                if zygote.hung_up_at is not None:
                    self._end_orphan(parent)
        if not self._in_use(zygote) and all(child.zygote is not zygote for child in self.children):
            self._end(zygote)  # It ends with its last child, and its parents with it.

    def _child(self, pid: int) -> Child | None:
        return next((one for one in self.children if one.pid == pid), None)

    def _zygote_died(self, zygote: ZygoteHandle) -> None:
        """Its jobs go on below their parents, which report to the supervisor. A new zygote replaces the current one."""
        zygote.hang_up()
        zygote.process.kill()  # It may only have closed its control socket.
        for parent in list(zygote.parents):
            if parent.dead or not parent.pid:  # It died first, or its fork was not reported.
                self._end_orphan(parent)
        for child in self.children:
            if child.zygote is zygote:
                child.retire()
        which = "the zygote" if zygote is self.current else "a replaced zygote"
        log.error("%s died%s: the jobs below it go on", which, self._slots.deaths.zygote_died())
        if zygote is self.current and not self.closing:
            self._restarting = asyncio.get_running_loop().create_task(self._restart())

    def _end_orphan(self, parent: Parent) -> None:
        """A parent has died after its zygote: what was below it falls to the supervisor, which kills it."""
        if parent not in parent.zygote.parents:
            return
        for child in parent.children:
            child.signal(signal.SIGKILL)
        for _ in range(3):  # Processes that are forked meanwhile are found by the watch.
            self.sweep()
        self._end_parent(parent)

    def _end_parent(self, parent: Parent) -> None:
        """A parent is dead, or was never forked, and so are its children."""
        parent.end()
        for child in list(parent.children):
            if child.pid:  # It can't be reaped, so the zygote does not report it.
                self._end_child(child, Exited(child.pid, signal.SIGKILL, 0, 0.0), with_parent=True)
            else:
                self._remove(child)

    def _end_child(self, child: Child, exit: Exited, *, with_parent: bool) -> None:
        """A child is dead. What it sent before counts first, then its jobs end."""
        self.children.remove(child)
        parent = child.parent
        if with_parent:
            parent.note_death()
        self._slots.reader.read_sent(child)
        child.read_rest(child.current.job if child.given else None)
        child.exited = True
        self._slots.deaths.child_died(child, exit, with_parent=with_parent)
        self._remove(child)
        # A slot needs two: beside the parent of a warm child, another one forks the next child ahead.
        if not parent.children and parent.pid and len(parent.zygote.parents) > 2 * self._slots.size:
            parent.end()
        self._slots.child_ready()

    def _remove(self, child: Child) -> None:
        """Close all that the supervisor has of a child."""
        if child in self.children:
            self.children.remove(child)
        child.parent.children.remove(child)
        child.exited = True
        self._slots.reader.forget(child)
        child.close()
        if child.group and self.groups:
            self.groups.remove(child.group)

    # The end of all processes

    def end(self) -> None:
        """Kill all processes. `gone` waits until they are gone."""
        self.closing = True
        for child in self.children[:]:
            child.signal(signal.SIGKILL)
            self._remove(child)
        for zygote in self.all:
            self._end(zygote)

    async def gone(self) -> None:
        """Wait until all processes are gone, for a few seconds at most: some can't be killed."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            if not [one for one in self.all if one.lives()] and not self.sweep():
                break
            await asyncio.sleep(0.005)
        if self.groups:
            self.groups.end()

    def _pids(self) -> Iterator[int]:
        """The pids of all zygotes and parents that live."""
        self.all = {one for one in self.all if one.lives() or one.parents}
        for zygote in self.all:
            if zygote.process.returncode is None:
                yield zygote.process.pid
            yield from (parent.pid for parent in zygote.parents if parent.pid and not parent.dead)

    def continue_stopped(self, now: float) -> None:
        """Continue zygotes and parents that a job has stopped. Running ones do not notice."""
        if now - self._continued_at > CONTINUE_S:
            self._continued_at = now
            for pid in self._pids():
                linux.kill(pid, signal.SIGCONT)

    def sweep(self) -> bool:
        """Reap or kill orphans that the kernel gave to the supervisor; True if one of them is about to die."""
        return self._strays.sweep({*self._pids(), *self._spare})

    def sent_by_a_job(self, name: str, sender: int) -> bool:
        """Whether a process of a job has sent this signal to the supervisor. The job is killed: it has crashed."""
        parents = {parent.pid for zygote in self.all for parent in zygote.parents}
        for pid in linux.lineage_of(sender):
            if pid in parents or self._child(pid):
                for one in self.children[:]:
                    if (one.pid == pid or (one.parent.pid == pid and one.given)) and not one.distrusted:
                        self._slots.reader.distrust(one, f"sent {name} to its worker")
                return True
        return False


def _first_asked_for(above: ZygoteHandle | Parent) -> Parent | Child:
    """The process that Forked or NotForked is about: these come in the order of the requests."""
    below = above.children if isinstance(above, Parent) else above.parents
    return next(one for one in below if not one.pid)
