"""statements/watchers.sql: how a worker becomes a watcher and stays one, and what all others ask once a second."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from outlive.statement import Statement


class Tick(msgspec.Struct, frozen=True):
    """What a worker learns once a second."""

    now: float
    """The database's clock."""
    dead: bool
    """Others have declared this worker dead."""
    read_only: bool
    """Nothing can be written now."""
    vacant: bool
    """A watcher's seat is free."""
    look: bool
    """Jobs may be ready for this worker."""
    untold: bool
    """A worker has died, a job is in quarantine or a source is paused, and no alert has told it."""
    leftover: bool
    """A watcher has something to do that transactions have left."""


def tick(
    worker: UUID, tasks: Sequence[str], queues: Sequence[str] | None, *, watching: bool, alerts: bool
) -> Statement[Tick]: ...
def take_seat(worker: UUID, *, term_s: float, anyway: bool) -> Statement[bool]: ...
def keep_seat(worker: UUID, *, term_s: float) -> Statement[bool]: ...
def leave_crowd(worker: UUID) -> Statement[bool]: ...
