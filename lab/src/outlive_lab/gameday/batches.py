"""The rules of batches: when all jobs have ended, each callback that applies is enqueued once, and no other one."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from outlive_lab.gameday.facts import Broken, Facts
from outlive_lab.gameday.history import Answer


def broken(facts: Facts) -> Broken:
    members: dict[UUID, list[UUID]] = defaultdict(list)
    for job, batch in facts.found.members.items():
        members[batch].append(job)
    called: dict[UUID, dict[str, list[UUID]]] = defaultdict(lambda: defaultdict(list))
    for one in facts.found.callbacks:
        called[one.batch][one.event].append(one.job)
    for asked in facts.history.batches:
        events = called[asked.id]
        for event, jobs in events.items():
            if len(jobs) > 1:
                yield "called back twice", asked.id, f"on_{event} was enqueued {len(jobs)} times: {_list(jobs)}"
        ends = {job: facts.end(job) for job in members[asked.id]}
        ended = [end for end in ends.values() if end is not None]
        if len(ended) < len(ends):
            going_on = [job for job, end in ends.items() if end is None]
            if events:
                yield "called back too early", asked.id, f"some of its jobs go on: {_list(going_on)}"
            continue
        right = {"done", "success" if all(end.state == "succeeded" for end in ended) else "failure"}
        for event in events.keys() - right:
            yield "called back wrongly", asked.id, f"on_{event} was enqueued, and its jobs ended otherwise"
        for event in right - events.keys() if asked.answer is Answer.OK else ():
            yield "not called back", asked.id, f"all its jobs have ended, and on_{event} does not exist"
        last_s = max((end.ended_s for end in ended), default=0.0)
        for event, jobs in events.items():
            if any(facts.begun.get(job, last_s) < last_s for job in jobs):
                yield "called back too early", asked.id, f"on_{event} began before the last of its jobs had ended"


def _list(jobs: list[UUID]) -> str:
    return ", ".join(map(str, jobs))
