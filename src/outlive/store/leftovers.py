"""statements/leftovers.sql: what transactions leave for later. Each verb returns how much it has dealt with."""

from __future__ import annotations

from outlive.store.statements import decoded_by, nothing, scalar


@decoded_by(scalar)
def admit_due(batch: int = 500) -> int: ...
@decoded_by(scalar)
def check_late_ends(batch: int = 500) -> int: ...
@decoded_by(scalar)
def follow_late_ends(batch: int = 500) -> int: ...
@decoded_by(scalar)
def cancel_expired(batch: int = 500) -> int: ...
@decoded_by(nothing)
def requeue_missed() -> None: ...
