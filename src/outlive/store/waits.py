"""statements/waits.sql: jobs that wait for a time, for a signal or for other jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from outlive.model import Claimed
from outlive.statement import Statement
from outlive.store.statements import decoded_by, statement

if TYPE_CHECKING:
    from outlive.protocol import Wait


class Suspended(NamedTuple):
    """What became of a wait: `suspended`, `over` with a value, or `cancelled`; and whether the process may be kept."""

    outcome: str
    value: bytes | None
    parked: bool


class Resumed(NamedTuple):
    """A job whose wait is over, and what it has received, if it was not in vain."""

    job: Claimed
    received: bool
    value: bytes | None


def suspend(worker: UUID, wait: Wait, *, may_park: bool = True) -> Statement[Suspended]:
    """Let the job of an attempt wait. StaleAttempt: the attempt is no longer this worker's."""
    needs = None if wait.needs is None else [UUID(bytes=one) for one in wait.needs]
    values = {"token": wait.token, "step": wait.step, "after_s": wait.after_s, "signal": wait.signal}
    more = {"spawns": wait.spawns, "needs": needs, "may_park": may_park}
    return statement("suspend", lambda rows: Suspended(*rows[0]), worker=worker, **values, **more)


@decoded_by(lambda rows: [Resumed(Claimed(*row[:-2]), *row[-2:]) for row in rows])
def resume(worker: UUID, *, limit: int, lease_s: float) -> Statement[list[Resumed]]: ...
def unpark(worker: UUID, ids: Sequence[UUID]) -> Statement[None]: ...
def blocks_itself(token: int) -> Statement[bool]: ...
def send(job: UUID, signal: str, value: bytes) -> Statement[str]:
    """Leave a signal for a job. Returns the state of the job."""


def end_due(batch: int = 500) -> Statement[int]:
    """End waits whose time has come. Returns how many jobs go on."""
