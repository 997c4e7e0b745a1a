"""What becomes of the jobs of a shared child that has died.

A job about which something was decided ends so: it was cancelled and ignored that, or has blocked the loop. All others
begin again at once, in the same attempt and at no cost, because one death says little about who is to blame:

- The job whose code ran when the process died, or that made it grow beyond its limit, gets a process of its own. There
  its next death is its own, and is charged as that of any job.
- The others share a process again. Those that are there when it dies a second time share in small groups, and those
  of a group that dies get processes of their own too.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

from outlive.humanize import counted
from outlive.model import Ended
from outlive.protocol import Exited
from outlive.states import Outcome
from outlive.worker.ending.ends import MAX_LINE_CHARS
from outlive.worker.ending.process_deaths import BEGINS_AGAIN, signal_name, unanswered
from outlive.worker.processes.assignments import Assignment
from outlive.worker.processes.children import Child
from outlive.worker.processes.job_output import JobOutput

if TYPE_CHECKING:
    from outlive.worker.processes.slots import Slots

WAIT_S = 10.0
"""How long a job that begins again may wait for a child. It may need one of its own."""

_log = logging.getLogger("outlive.worker")


def child_died(slots: Slots, child: Child, exit: Exited) -> None:
    """A shared child died. Jobs that it had not begun are placed again as they are."""
    suspect = _suspect(child)
    waiting, begun = child.recall(), list(child.given.values())
    child.given.clear()
    decided = [one for one in begun if one.verdict is not None]
    for one in decided:
        slots.report_end(one, unanswered(child, one, exit, one.verdict), one.verdict, stopped=False)
    how = _how(child, exit)
    again = [one for one in begun if one.verdict is None]
    if again and not slots.stopping:
        alone = None if suspect is None or suspect.verdict else suspect
        _log.error(
            "child %d of %s %s with %s in it%s: %s",
            child.pid, child.task, how, counted(len(begun), "job"),
            "" if alone is None else f", while job {alone.job.id} ran", "they begin again, at no cost",
        )  # fmt: skip
        for one in again:
            if not decided:
                slots.deaths.suspect(one, surely=one is alone)
            _begin_again(slots, one, how)
    for one in again:
        if slots.stopping or one.may_be_over:
            end = Ended(one.job.token, Outcome.RELEASED, error=f"its shared process {how}", output=child.output_of(one))
            slots.report.ended(one.job, end, completing=one.completing)
    slots.place_again([one for one in (*again, *waiting) if not slots.stopping and not one.may_be_over], WAIT_S)
    for one in waiting if slots.stopping else []:
        slots.release(one.job)


def _suspect(child: Child) -> Assignment | None:
    """The job that made the process grow beyond its limit, or else the one whose code ran at the death."""
    grower = child.shared.grower if child.shared else 0
    return child.given.get(grower or child.pulse().running)


def _how(child: Child, exit: Exited) -> str:
    code = os.waitstatus_to_exitcode(exit.status)
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    if exit.status == signal.SIGKILL and child.group is not None and child.group.kills():
        how += " for lack of memory"
    last = child.shared.output.last[:MAX_LINE_CHARS] if child.shared else ""
    return f"{how} ({last})" if last else how


def _begin_again(slots: Slots, one: Assignment, how: str) -> None:
    """Forget what the attempt was until now, but not what it has kept. Its output says what happened."""
    one.crowd = slots.deaths.crowd(one.job.id, one.facts.share)
    one.begun, one.term_sent = False, None
    one.steps = one.steps_bytes = one.grown_bytes = 0
    one.output = one.output or JobOutput()
    where = "in a process of its own" if one.apart else f"beside {one.crowd - 1} others at most"
    one.output.add(f"{BEGINS_AGAIN}{how}: it begins again, {where}]\n".encode(), one.job)
