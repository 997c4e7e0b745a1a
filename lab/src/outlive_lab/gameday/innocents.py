"""No innocent is charged: what a stranger, the kernel, an outage or a frozen machine did counts against no job.

A game knows which of its faults hit which process. It kills the processes of most jobs, which may be charged with a
crash (`checker._crashed` finds the kill of each), and it kills workers, which may cost a loss: a job could have done
that. All else is charged to no job, and only jobs that kill their own process go into quarantine.
"""

from __future__ import annotations

from collections import defaultdict

from outlive_lab.gameday.facts import Broken, Facts
from outlive_lab.gameday.history import GOODBYE_S, TAKEN_OVER, Attempt, Fault, History

BY_OTHERS = frozenset({"timed_out", "out_of_memory"})
"""Outcomes that no fault of a game causes."""
SLACK_S = 0.01
CLAIM_S = 1.0
"""A claim that a worker has sent is carried out after the worker was killed."""


def broken(facts: Facts) -> Broken:
    killed: dict[str, list[Fault]] = defaultdict(list)
    for fault in facts.history.faults:
        if fault.kind in TAKEN_OVER:
            killed[fault.worker].append(fault)
    for id, attempts in facts.lives.items():
        guilty = facts.found.fates.get(facts.found.jobs.get(id, "")) == "quarantined"
        losses = 0
        for one in attempts:
            if one.outcome in BY_OTHERS:
                yield "innocent charged", id, f"attempt {one.number} was {one.outcome}, and no job of a game earns that"
            counts = one.outcome == "lost" and one.losses > losses
            if counts and not any(_explains(fault, one, facts.history) for fault in killed[one.worker]):
                words = f"the loss of attempt {one.number} counts, although its worker {one.worker} was not killed"
                yield "innocent charged", id, words
            if one.state == "quarantined" and not guilty:
                yield "innocent charged", id, f"it is quarantined after attempt {one.number}"
            losses = one.losses


def _explains(fault: Fault, attempt: Attempt, history: History) -> bool:
    """Whether the worker was taken over while it ran the attempt, or before it could take the loss back.

    A worker that wakes when its leases are over says that it lives. If it is killed before that, the database can't
    know that the job did neither freeze nor kill it.
    """
    if fault.at_s < (attempt.started_s or 0.0) - CLAIM_S:
        return False
    return fault.at_s <= attempt.ended_s + SLACK_S or _silent(attempt.ended_s, fault.at_s, history)


def _silent(since_s: float, until_s: float, history: History) -> bool:
    """Whether workers had no two seconds in this time in which they ran and the database took what they wrote."""
    free_s = since_s
    for start_s, end_s in history.breaks():
        if start_s < until_s and start_s - free_s < GOODBYE_S:
            free_s = max(free_s, end_s)
    return until_s - free_s < GOODBYE_S
