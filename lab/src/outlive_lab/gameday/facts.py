"""Both sides of a game by job: what its client asked for, when it first began, and how it ended. Rules read this."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from outlive_lab.gameday.history import UNLINKED, Attempt, Found, History, Links

FINAL = frozenset({"succeeded", "failed", "cancelled"})
ENDED = FINAL | {"quarantined"}
"""The states that other jobs and batches wait for."""

Broken = Iterator[tuple[str, object, str]]
"""The rule, the subject and the words of each breach."""


class Facts:
    def __init__(self, history: History, found: Found) -> None:
        self.history, self.found = history, found
        self.links: dict[UUID, Links] = {ask.id: ask.links for ask in history.asks}
        self.lives: dict[UUID, list[Attempt]] = defaultdict(list)
        for attempt in sorted(found.attempts, key=lambda one: one.number):
            self.lives[attempt.job].append(attempt)
        self.begun: dict[UUID, float] = {}
        """When the first attempt of each job began, as the job itself wrote it."""
        for start in sorted(found.starts, key=lambda one: one.at_s):
            self.begun.setdefault(start.job, start.at_s)
        self.cancelled = {batch.id for batch in history.batches if batch.cancelled}
        """The batches that were cancelled."""

    def end(self, id: UUID) -> Attempt | None:
        """The attempt that ended a job, or put it into quarantine. None if the job goes on."""
        return next((one for one in self.lives.get(id, ()) if one.state in ENDED), None)

    def kept_back(self, id: UUID) -> str | None:
        """What the jobs that a job waits for make of it: it is cancelled, it stays blocked, or, with None, it runs."""
        links = self.links.get(id, UNLINKED)
        ends = [self.end(needed) for needed in links.after]
        failed = any(end is not None and end.state != "succeeded" for end in ends)
        if failed and links.on_failure == "cancel":
            return "cancelled"
        return "blocked" if None in ends or (failed and links.on_failure == "block") else None

    def ends_right(self, id: UUID, state: str) -> bool:
        """Whether a job may end in this state."""
        if state == "cancelled" and self.found.members.get(id) in self.cancelled:
            return True
        task = self.found.jobs.get(id, "")
        return state == (self.kept_back(id) or self.found.fates.get(task, "succeeded"))

    def stretches(self) -> dict[int, float]:
        """When each attempt began, by its token. A job that waits has one for each stretch of running."""
        begun: dict[int, float] = {}
        for one in self.found.starts:
            begun[one.token] = min(one.at_s, begun.get(one.token, one.at_s))
        for attempt in self.found.attempts:
            if attempt.started_s is not None:  # It is too late if the end of the attempt waited for the database.
                begun[attempt.token] = min(attempt.started_s, begun.get(attempt.token, attempt.started_s))
        return begun

    def shares(self, id: UUID) -> bool:
        """Whether a job shares its process with others, which it may harm."""
        return self.found.jobs.get(id, "").partition(" ")[0] in self.found.sharing

    def harms(self, id: UUID) -> bool:
        return self.shares(id) and " " in self.found.jobs[id]

    def gathered(self) -> dict[UUID, list[UUID]]:
        """The jobs that each durable job has enqueued, and waits for."""
        found = ((one.job, one.value) for one in self.found.kept if one.step == "gather")
        return {job: [UUID(id) for id in ids] for job, ids in found if isinstance(ids, list)}
