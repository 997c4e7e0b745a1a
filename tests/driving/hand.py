"""A worker's part, played by a test with the store's statements: the queue without processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from outlive import config, policy, store
from outlive.client.task import Task
from outlive.model import Claimed, Ended, Lane
from outlive.states import Outcome
from tests.driving.making import NOON, Queue


@dataclass
class Hand:
    """The statements of one worker, on a connection whose clock the test sets."""

    connection: Queue
    id: UUID = field(default_factory=uuid4)

    def knows(self, *tasks: Task[..., Any, Any]) -> None:
        """Write the policies of these tasks, as a worker does when it starts."""
        limits = [policy.task_row(task.name, task.policy, config.load(environ={})) for task in tasks]
        self.connection.run(store.register_tasks(limits))

    def at(self, moment: datetime = NOON, *, later_s: float = 0.0) -> datetime:
        return self.connection.set_now(moment, later_s=later_s)

    def claim(self, limit: int = 512) -> list[Claimed]:
        """Find the lanes that have jobs and claim from them, as a worker does."""
        tasks = self.connection.values("select distinct task from outlive.jobs")
        sourced = self.connection.run(store.sourced_lanes(tasks))
        found = [*self.connection.run(store.unsourced_lanes(tasks)).lanes, *sourced.lanes]
        lanes = [Lane(one.queue, one.source, one.task, one.priority) for one in sorted(found, key=lambda o: o.priority)]
        return self.connection.claim(lanes, worker=self.id, limit=limit)

    def end(self, claimed: Claimed, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> bool:
        """End an attempt. Returns False if the attempt is no longer this worker's."""
        return self.connection.end(Ended(claimed.token, outcome, **evidence), worker=self.id) == []

    def run(self, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> Claimed:
        """Claim one job and end its attempt."""
        (claimed,) = self.claim(limit=1)
        assert self.end(claimed, outcome, **evidence)
        return claimed

    def rows(self, query: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
        return self.connection.execute(query.encode(), parameters or None).fetchall()

    def value(self, query: str, *parameters: object) -> Any:
        return self.connection.value(query, *parameters)
