"""What an app runs once in each child, before the child's first job: the functions under `@app.on_process_start`."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType

from outlive.child import stops
from outlive.child.copies import CopiesExit
from outlive.child.raised import Raised, guarded


class ProcessStart:
    __slots__ = ("due", "lifespans")

    def __init__(self, hooks: Iterable[FunctionType], lifespans: Iterable[FunctionType] = ()) -> None:
        self.due = list(hooks)
        """What is still to run in this process."""
        self.lifespans = list(lifespans)
        """What surrounds the jobs that share it."""

    def run(self, pid: int) -> Raised | None:
        """Run what is due. What it raises ends the job that has begun, and the next one tries again.

        A signal that stops this job may come here, or between here and the job's code.
        """
        while self.due:
            hook = self.due[0]
            if isinstance(ran := guarded(_call, hook, pid), Raised):
                return Raised(ran.error, f" (in {hook.__qualname__}, before the first job of its process)")
            del self.due[0]
        stops.job_has_begun()
        return None


def _call(hook: FunctionType, pid: int) -> None:
    with CopiesExit(pid), stops.let_through:
        hook()
