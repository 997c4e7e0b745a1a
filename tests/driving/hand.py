"""A worker's part, played by a test with the store's statements: the queue without processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from outlive import config, db, policy, store
from outlive.client.task import Task
from outlive.model import Claimed, Ended, Lane
from outlive.states import Outcome
from tests.driving import making
from tests.driving.making import NOON


@dataclass
class Hand:
    """The statements of one worker, on a connection whose clock the test sets."""

    connection: db.Connection
    id: UUID = field(default_factory=uuid4)

    def knows(self, *tasks: Task[..., Any, Any]) -> None:
        """Write the policies of these tasks, as a worker does when it starts."""
        limits = [policy.task_row(task.name, task.policy, config.load(environ={})) for task in tasks]
        db.run(self.connection, store.register_tasks(limits))

    def at(self, moment: datetime = NOON, *, later_s: float = 0.0) -> datetime:
        return making.set_now(self.connection, moment, later_s=later_s)

    def claim(self, limit: int = 512) -> list[Claimed]:
        """Find the lanes that have jobs and claim from them, as a worker does."""
        tasks = making.values(self.connection, "select distinct task from outlive.jobs")
        sourced = db.run(self.connection, store.sourced_lanes(tasks))
        found = [*db.run(self.connection, store.unsourced_lanes(tasks)).lanes, *sourced.lanes]
        lanes = [Lane(one.queue, one.source, one.task, one.priority) for one in sorted(found, key=lambda o: o.priority)]
        return making.claim(self.connection, lanes, worker=self.id, limit=limit)

    def end(self, claimed: Claimed, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> bool:
        """End an attempt. Returns False if the attempt is no longer this worker's."""
        return making.end(self.connection, Ended(claimed.token, outcome, **evidence), worker=self.id) == []

    def run(self, outcome: Outcome = Outcome.SUCCEEDED, **evidence: Any) -> Claimed:
        """Claim one job and end its attempt."""
        (claimed,) = self.claim(limit=1)
        assert self.end(claimed, outcome, **evidence)
        return claimed

    def rows(self, query: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
        return self.connection.execute(query.encode(), parameters or None).fetchall()

    def value(self, query: str, *parameters: object) -> Any:
        return making.value(self.connection, query, *parameters)
