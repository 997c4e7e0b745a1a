"""Jobs that wait: they leave their slots, and their processes are kept for a while, or not."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING
from uuid import UUID

from outlive import linux
from outlive.model import Claimed
from outlive.protocol import Waited
from outlive.worker.processes.assignments import Assignment
from outlive.worker.processes.children import Child, Shared

if TYPE_CHECKING:
    from outlive.worker.processes.slots import Slots


class Parking:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._may_have_parked = False

    def park(self, child: Child, one: Assignment, call: int, *, keep: bool) -> None:
        """Its job is suspended, so its slot is free. Its process stays, or ends if that is of no use.

        It ends too if it was about to be stopped: what was decided about this attempt must not be done to the next.
        """
        if child.shared:
            self._leave(child, child.shared, one)
        else:
            self._slots.place_again(child.recall())
            self._slots.report.suspended(one)
            child.park(call)
            self._may_have_parked = True
            if not keep or one.verdict or not child.may_park:
                self.end(child)
        self._slots.child_ready()

    def _leave(self, child: Child, shared: Shared, one: Assignment) -> None:
        """A job that is suspended in a shared child never goes on there. A child with many of them is replaced."""
        del child.given[one.job.token]
        self._slots.report.suspended(one)
        child.halt(one, suspended=True)
        shared.suspended.add(one.job.token)
        if len(shared.suspended) >= shared.seats:
            child.retire()

    def resume(self, job: Claimed, waited: Waited) -> bool:
        """A job that waited was claimed again: its process goes on. False if that is gone."""
        for child in self._slots.children:
            if child.parked and child.parked.job.id == job.id and linux.lives(child.pid):
                child.resume(job, waited).trace = self._slots.report.starting(job)
                return True
        return False

    def end_outdated(self, jobs: Collection[Claimed]) -> None:
        """These jobs begin again: their parked processes don't know what happened meanwhile."""
        if self._may_have_parked:
            ids = {job.id for job in jobs}
            parked = [child for child in self._slots.children if child.parked]
            for child in parked:
                if child.parked and child.parked.job.id in ids:
                    self.end(child)
            self._may_have_parked = bool(parked)

    def end(self, child: Child) -> UUID:
        """End a parked process: its job goes on in another one. Returns the id of the job."""
        assert child.parked is not None
        id = child.parked.job.id
        child.retire()
        return id
