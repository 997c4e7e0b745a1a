"""Parents: forks of the zygote. Each forks the children of one slot.

One child at a time has work below a parent. A job that kills its parent harms no other job, and is the known culprit.
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
from outlive.worker.zygote_handle import Report, ZygoteHandle, ask, close, listen


@dataclass(slots=True, eq=False)
class Parent:
    number: int
    zygote: ZygoteHandle
    control: socket.socket
    read: Callable[[], None] = lambda: None
    pid: int = 0
    children: list[Child] = field(default_factory=list)
    dead: bool = False
    culprits: int = 0
    """How many of its children had work when it died: any of them may have killed it."""

    @property
    def engaged(self) -> bool:
        """Whether one of its children has a job, or waits for the next job of its task."""
        return any(child.given or child.bound for child in self.children)

    @property
    def may_have_another(self) -> bool:
        """Whether it may fork another child ahead. It may not beside a warm child, which may stay forever."""
        return not self.dead and all(child.task and not child.bound for child in self.children)

    def ask_for_child(self, number: int) -> Child:
        ours, theirs = socket.socketpair()
        kept, given = list[int](), list[int]()  # Not ExitStack, which takes as long as the system calls.
        try:
            read, write = os.pipe2(os.O_CLOEXEC)
            kept.append(read)
            given.append(write)
            stack = os.memfd_create("outlive-stack")
            kept.append(stack)
            queue, queued = tickets.make()
            kept.append(queue)
            given.append(queued)
            ask(self.control, Fork(number), [theirs.fileno(), write, stack, queued])
        except BaseException:
            ours.close()
            _close(kept)
            raise
        finally:
            theirs.close()
            _close(given)
        ours.setblocking(False)
        os.set_blocking(read, False)
        child = Child(number, self, ours, read, stack, queue)
        self.children.append(child)
        return child

    def read_last(self) -> None:
        """Read what it reported before it died: some of its children may have ended before."""
        if not self.dead:
            self.dead = True
            self.read()

    def hang_up(self) -> None:
        """Close its control socket: it kills its children and exits."""
        self.dead = True
        close(self.control)


class Parents:
    def __init__(self) -> None:
        self._all: dict[int, Parent] = {}

    def make(self, number: int, zygote: ZygoteHandle, handle: Callable[[Parent, Report], None]) -> Parent:
        """Ask the zygote for a parent. It can be asked for children at once, and forks them when it is there."""
        with contextlib.ExitStack() as opened:
            ours, theirs = socket.socketpair()
            opened.callback(ours.close)
            with theirs:
                ask(zygote.control, ForkParent(number), [theirs.fileno()])
            opened.pop_all()
        ours.setblocking(False)
        parent = self._all[number] = Parent(number, zygote, ours)
        parent.read = listen(ours, lambda message: handle(parent, message))
        return parent

    def for_next(self, zygote: ZygoteHandle) -> Parent | None:
        """The parent that forks the next child: preferably one without work."""
        able = [one for one in self.of(zygote) if one.may_have_another]
        return min(able, key=lambda one: one.engaged, default=None)

    def of(self, zygote: ZygoteHandle) -> list[Parent]:
        return [one for one in self._all.values() if one.zygote is zygote]

    def numbered(self, number: int) -> Parent | None:
        return self._all.get(number)

    def with_pid(self, pid: int) -> Parent | None:
        return next((one for one in self._all.values() if one.pid == pid), None)

    def pids(self) -> list[int]:
        return [one.pid for one in self._all.values() if one.pid and not one.dead]

    def end_surplus(self, parent: Parent, slots: int) -> None:
        """End a parent without children if there are more than slots need: two for each, beside a warm child.

        One is the parent of the warm child, the other forks the next child ahead.
        """
        if not parent.children and len(self.of(parent.zygote)) > 2 * slots:
            self.end(parent)

    def end(self, parent: Parent) -> None:
        parent.hang_up()
        self._all.pop(parent.number, None)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
