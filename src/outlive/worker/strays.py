"""Processes that fall to the supervisor: what jobs have left behind when their zygote died. They are reaped, or killed.

The supervisor is the subreaper of its tree, so a daemon falls to it whatever session or environment it has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection

from outlive import kernel
from outlive.embedded import keeper

OWN = "_OUTLIVE_OWN"
"""The variable by which the supervisor's own commands are known, as the keeper of an embedded server. No job has it."""
_KEEPER = keeper.__file__.encode()

_log = logging.getLogger("outlive.worker")


class Strays:
    def __init__(self) -> None:
        self._mark = f"{OWN}={kernel.sign_of_life(os.getpid())}".encode()
        os.environ[OWN] = self._mark.decode().partition("=")[2]
        self._command = kernel.read("/proc/self/cmdline")
        self._older = set(kernel.children_of(os.getpid()))
        """What was there before: a script may start something else and then become the worker with exec."""
        self._unkillable: set[int] = set()

    def sweep(self, spare: Collection[int]) -> bool:
        """Reap or kill what fell to this process; True if something is left that is about to die."""
        fallen = [pid for pid in kernel.children_of(os.getpid()) if pid not in spare and not kernel.reaped(pid)]
        strays = [pid for pid in fallen if not self._is_ours(pid)]
        self._unkillable.intersection_update(strays)
        dying = False
        for pid in strays:
            if pid not in self._unkillable:
                dying = self._kill(pid) or dying
        return dying

    def _is_ours(self, pid: int) -> bool:
        """Whether the supervisor has started it: one that was forked a moment ago has its command still."""
        if pid in self._older:
            return True
        command = kernel.read(f"/proc/{pid}/cmdline")
        if command == self._command or _KEEPER in command.split(b"\0"):  # The environment of a keeper may be hidden.
            return True
        return kernel.has_variable(pid, self._mark)

    def _kill(self, pid: int) -> bool:
        below = kernel.descendants_of(pid)
        if kernel.kill(pid):
            for one in below:
                kernel.kill(one)
            return True
        self._unkillable.add(pid)
        tell_of(pid)
        return False


def tell_of(pid: int) -> None:
    _log.warning("process %d, which a job has left behind, can't be killed: end it by hand (another user's?)", pid)
