"""A worker in three lines: claims the job of a test and ends it, through the store alone."""

from uuid import UUID, uuid4

from outlive import db, store
from outlive.model import Claimed, Ended, Lane, LaneState
from outlive.states import Outcome

WORKER = uuid4()


def claim(connection: db.Connection, id: UUID) -> Claimed:
    lanes = [Lane(lane.queue, lane.source, lane.task, lane.priority) for lane in _lanes(connection)]
    (claimed,) = db.run(connection, store.end_and_claim(WORKER, lanes=lanes, limit=1)).claimed
    assert claimed.id == id
    return claimed


def end(connection: db.Connection, id: UUID, outcome: Outcome, **evidence: object) -> None:
    """Claim a job, which must be the only one that waits, and end it so."""
    ended = Ended(claim(connection, id).token, outcome, **evidence)  # type: ignore[arg-type]
    assert db.run(connection, store.end_and_claim(WORKER, [ended])).stale == []


def _lanes(connection: db.Connection) -> list[LaneState]:
    tasks = [row[0] for row in connection.execute("select distinct task from outlive.jobs")]
    return [*db.run(connection, store.unsourced_lanes(tasks)), *db.run(connection, store.sourced_lanes(tasks)).lanes]
