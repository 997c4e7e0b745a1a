"""Strays: processes that jobs left behind and that fall to the supervisor, the subreaper of its tree. It ends them."""

from __future__ import annotations

import os
from collections.abc import Collection

from outlive import linux
from outlive.embedded import keeper
from outlive.worker import log

OWN = "_OUTLIVE_OWN"
"""This variable marks the supervisor's own commands, such as the keeper of an embedded server. No job has it."""
_KEEPER = keeper.__file__.encode()


class Strays:
    def __init__(self) -> None:
        self._mark = f"{OWN}={linux.sign_of_life(os.getpid())}".encode()
        os.environ[OWN] = self._mark.decode().partition("=")[2]
        self._command = linux.read("/proc/self/cmdline")
        self._older = set(linux.children_of(os.getpid()))
        """Children from before: a script may start a process, and then become the worker by exec."""
        self._unkillable: set[int] = set()

    def sweep(self, spare: Collection[int]) -> bool:
        """Reap or kill strays; True if one of them is about to die."""
        fallen = [pid for pid in linux.children_of(os.getpid()) if pid not in spare and not linux.reaped(pid)]
        strays = [pid for pid in fallen if not self._is_ours(pid)]
        self._unkillable.intersection_update(strays)
        killed = [self._kill(pid) for pid in strays if pid not in self._unkillable]
        return any(killed)

    def _is_ours(self, pid: int) -> bool:
        """Whether the supervisor has started it. A process that was forked a moment ago still has its command line."""
        if pid in self._older:
            return True
        command = linux.read(f"/proc/{pid}/cmdline")
        if command == self._command or _KEEPER in command.split(b"\0"):  # A keeper may hide its environment.
            return True
        return self._mark in linux.read(f"/proc/{pid}/environ").split(b"\0")

    def _kill(self, pid: int) -> bool:
        below = linux.descendants_of(pid)
        if linux.kill(pid):
            for one in below:
                linux.kill(one)
            return True
        self._unkillable.add(pid)
        warn_of_unkillable(pid)
        return False


def warn_of_unkillable(pid: int) -> None:
    log.warning("process %d, left behind by a job, can't be killed: end it by hand (it may run as another user)", pid)
