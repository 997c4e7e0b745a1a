"""statements/killers.sql: suspects, quarantine, and the crashes that operators are alerted to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from outlive.model import Claimed
from outlive.statement import Statement
from outlive.store.statements import Table, decoded_by, first_column, nothing, scalar, structs, table


@decoded_by(structs(Claimed))
def claim_suspect(
    worker: UUID,
    *,
    tasks: Sequence[str],
    queues: Sequence[str] | None = None,
    most: Sequence[int] | None = None,
    lease_s: float = 300.0,
    after_s: float | None = None,
) -> Statement[list[Claimed]]: ...
@decoded_by(scalar)
def suspects_wait(tasks: Sequence[str], queues: Sequence[str] | None, *, after_s: float) -> Statement[bool]: ...
@decoded_by(bool)
def make_room(worker: UUID, *, for_s: float) -> Statement[bool]: ...
@decoded_by(nothing)
def end_room(worker: UUID) -> Statement[None]: ...
@decoded_by(bool)
def end_time_alone(worker: UUID, token: int) -> Statement[bool]: ...
@decoded_by(first_column)
def convict(worker: UUID, tokens: Iterable[int]) -> Statement[list[UUID]]: ...
@decoded_by(first_column)
def quarantine_killers(*, batch: int = 1000) -> Statement[list[UUID]]: ...
@decoded_by(table)
def untold_killers(*, batch: int = 100, command: bool = True) -> Statement[Table]: ...
@decoded_by(table)
def crashing_tasks(*, jobs: int, within_s: float, command: bool = True) -> Statement[Table]: ...
@decoded_by(nothing)
def prune_crashes(*, keep_s: float) -> Statement[None]: ...
