"""Parents: forks of the zygote. Each forks the children of one slot.

One child at a time has work below a parent. A job that kills its parent harms no other job, and is the known culprit.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field

from outlive.protocol import Fork, ForkParent
from outlive.worker import tickets
from outlive.worker.children import Child
from outlive.worker.zygote_handle import Control, ZygoteHandle


@dataclass(slots=True, eq=False)
class Parent:
    number: int
    zygote: ZygoteHandle
    control: Control
    pid: int = 0
    children: list[Child] = field(default_factory=list)
    dead: bool = False
    culprits: int = 0
    """How many of its children had work when it died: any of them may have killed it."""

    @classmethod
    def ask_for(cls, number: int, zygote: ZygoteHandle) -> Parent:
        """Ask the zygote for a parent. It can be asked for children at once, and forks them when it is there."""
        with ExitStack() as kept:
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            with theirs:
                zygote.control.ask(ForkParent(number), [theirs.fileno()])
            kept.pop_all()
        parent = zygote.parents[number] = cls(number, zygote, Control(ours))
        return parent

    @property
    def engaged(self) -> bool:
        """Whether one of its children has a job, or waits for the next job of its task."""
        return any(child.given or child.bound for child in self.children)

    @property
    def may_have_another(self) -> bool:
        """Whether it may fork another child ahead. It may not beside a warm child, which may stay forever."""
        return not self.dead and all(child.task and not child.bound for child in self.children)

    def ask_for_child(self, number: int) -> Child:
        with ExitStack() as kept, ExitStack() as passed:
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            passed.callback(theirs.close)
            read, write = os.pipe2(os.O_CLOEXEC)
            kept.callback(os.close, read)
            passed.callback(os.close, write)
            stack = os.memfd_create("outlive-stack")
            kept.callback(os.close, stack)
            queue, queued = tickets.make()
            kept.callback(os.close, queue)
            passed.callback(os.close, queued)
            self.control.ask(Fork(number), [theirs.fileno(), write, stack, queued])
            kept.pop_all()
        ours.setblocking(False)
        os.set_blocking(read, False)
        child = Child(number, self, ours, read, stack, queue)
        self.children.append(child)
        return child

    def note_death(self) -> None:
        """Read what it reported before it died, some of which may be ends of its children, and count the culprits."""
        if not self.dead:
            self.dead = True
            self.control.read()
        self.culprits = self.culprits or sum(bool(one.served) for one in self.children)

    def end(self) -> None:
        """Tell it to end. It kills its children first."""
        self.dead = True
        self.control.close()
        self.zygote.parents.pop(self.number, None)
