"""statements/killers.sql: suspects, quarantine, and the crashes that operators are alerted to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from outlive.model import Claimed
from outlive.statement import Statement
from outlive.store.statements import Table, any_row, decoded_by, first_column, nothing, scalar, structs, table


@decoded_by(structs(Claimed))
def claim_suspect(
    worker: UUID,
    *,
    tasks: Sequence[str],
    queues: Sequence[str] | None = None,
    most: Sequence[int] | None = None,
    lease_s: float = 300.0,
    after_s: float | None = None,
) -> Statement[list[Claimed]]:
    """Claim a suspect, which runs alone in its worker, or some that share a process, beside nothing else. `most`: how
    many of each of the tasks; None: one. `after_s`: one that has waited for so long, beside other jobs.
    """


@decoded_by(scalar)
def suspects_wait(tasks: Sequence[str], queues: Sequence[str] | None, *, after_s: float) -> Statement[bool]:
    """Whether a suspect that this worker can run has waited longer than `after_s`."""


@decoded_by(any_row)
def make_room(worker: UUID, *, for_s: float) -> Statement[bool]:
    """Whether this worker may stop claiming, so that a suspect can run alone. One worker does at a time."""


@decoded_by(nothing)
def end_room(worker: UUID) -> Statement[None]: ...
@decoded_by(any_row)
def end_time_alone(worker: UUID, token: int) -> Statement[bool]:
    """Whether other jobs may run beside this suspect now."""


@decoded_by(first_column)
def convict(worker: UUID, tokens: Iterable[int]) -> Statement[list[UUID]]:
    """Quarantine claimed jobs whose task and arguments have killed too often as other jobs. Returns their ids."""


@decoded_by(first_column)
def quarantine_killers(*, batch: int = 1000) -> Statement[list[UUID]]:
    """Quarantine waiting jobs that have reached their crash limit. Returns their ids."""


@decoded_by(table)
def untold_killers(*, batch: int = 100, command: bool = True) -> Statement[Table]:
    """Quarantined jobs that no alert has reported yet. Each is returned once. Without a command of its own, the caller
    leaves them to a living worker that has one.
    """


@decoded_by(table)
def crashing_tasks(*, jobs: int, within_s: float, command: bool = True) -> Statement[Table]:
    """Tasks of which this many jobs crashed lately. Each is returned once per period. `command`: as above."""


@decoded_by(nothing)
def prune_crashes(*, keep_s: float) -> Statement[None]: ...
