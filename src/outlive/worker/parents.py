"""Parents: forks of the zygote, each of which forks the children of one slot.

Below a parent, one child at a time has work. A job that kills its parent harms no other job, and is known by that.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from outlive.protocol import Fork, ForkParent
from outlive.worker import tickets
from outlive.worker.children import Child
from outlive.worker.nursery import Heard, Nursery, ask, close, listen


@dataclass(slots=True, eq=False)
class Parent:
    number: int
    nursery: Nursery
    control: socket.socket
    read: Callable[[], None] = lambda: None
    pid: int = 0
    children: list[Child] = field(default_factory=list)
    dead: bool = False
    culprits: int = 0
    """How many of its children had been given work when it died, and so may have killed it."""

    @property
    def engaged(self) -> bool:
        """One of its children has a job, or waits for the next of its task."""
        return any(child.given or child.bound for child in self.children)

    @property
    def may_have_another(self) -> bool:
        """Whether it may fork the child that has the next job: the last may still have work, unless that has no end."""
        return not self.dead and all(child.task and not child.bound for child in self.children)

    def ask_for_child(self, number: int) -> Child:
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
            ask(self.control, Fork(number), [theirs.fileno(), write, stack, queued])
            kept.pop_all()
        ours.setblocking(False)
        os.set_blocking(read, False)
        child = Child(number, self, ours, read, stack, queue)
        self.children.append(child)
        return child

    def hear_last(self) -> None:
        """What it said before it died: children of its own may have ended before."""
        if not self.dead:
            self.dead = True
            self.read()

    def hang_up(self) -> None:
        """It kills what is below it and exits."""
        self.dead = True
        close(self.control)


class Parents:
    def __init__(self) -> None:
        self._all: dict[int, Parent] = {}

    def make(self, number: int, zygote: Nursery, hear: Callable[[Parent, Heard], None]) -> Parent:
        """It can be asked for children at once, and forks them as soon as it is there."""
        with contextlib.ExitStack() as opened:
            ours, theirs = socket.socketpair()
            opened.callback(ours.close)
            with theirs:
                ask(zygote.control, ForkParent(number), [theirs.fileno()])
            opened.pop_all()
        ours.setblocking(False)
        parent = self._all[number] = Parent(number, zygote, ours)
        parent.read = listen(ours, lambda message: hear(parent, message))
        return parent

    def for_next(self, zygote: Nursery) -> Parent | None:
        """The one that forks the next child: rather one that has nothing to do."""
        able = [one for one in self.of(zygote) if one.may_have_another]
        return min(able, key=lambda one: one.engaged, default=None)

    def of(self, zygote: Nursery) -> list[Parent]:
        return [one for one in self._all.values() if one.nursery is zygote]

    def numbered(self, number: int) -> Parent | None:
        return self._all.get(number)

    def with_pid(self, pid: int) -> Parent | None:
        return next((one for one in self._all.values() if one.pid == pid), None)

    def pids(self) -> list[int]:
        return [one.pid for one in self._all.values() if one.pid and not one.dead]

    def spare(self, parent: Parent, most: int) -> None:
        """End a parent that is left over. Children that wait for jobs of their task have parents to themselves."""
        if not parent.children and len(self.of(parent.nursery)) > most:
            self.end(parent)

    def end(self, parent: Parent) -> None:
        parent.hang_up()
        self._all.pop(parent.number, None)
