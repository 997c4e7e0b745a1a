"""statements/killers.sql: suspects, quarantine, and the crashes that operators are alerted to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from outlive.model import Claimed
from outlive.statement import Statement
from outlive.store.statements import Table, any_row, first_column, nothing, scalar, statement, structs, table


def claim_suspect(
    worker: UUID,
    *,
    tasks: Sequence[str],
    queues: Sequence[str] | None = None,
    lease_s: float = 300.0,
    after_s: float | None = None,
) -> Statement[list[Claimed]]:
    """Claim one suspect, which runs alone in its worker; or one that has waited for `after_s`, beside other jobs."""
    return statement(
        "claim_suspect",
        structs(Claimed),
        worker=worker,
        tasks=tasks,
        queues=queues,
        lease_s=lease_s,
        after_s=after_s,
    )


def suspects_wait(tasks: Sequence[str], queues: Sequence[str] | None, *, after_s: float) -> Statement[bool]:
    """Whether a suspect that this worker can run has waited longer than `after_s`."""
    return statement("suspects_wait", scalar, tasks=tasks, queues=queues, after_s=after_s)


def end_time_alone(worker: UUID, token: int) -> Statement[bool]:
    """Whether other jobs may run beside this suspect now."""
    return statement("end_time_alone", any_row, worker=worker, token=token)


def convict(worker: UUID, tokens: Iterable[int]) -> Statement[list[UUID]]:
    """Quarantine claimed jobs whose task and arguments have killed too often as other jobs. Returns their ids."""
    return statement("convict", first_column, worker=worker, tokens=tokens)


def quarantine_killers(*, batch: int = 1000) -> Statement[list[UUID]]:
    """Quarantine waiting jobs that have reached their crash limit. Returns their ids."""
    return statement("quarantine_killers", first_column, batch=batch)


def untold_killers(*, batch: int = 100, command: bool = True) -> Statement[Table]:
    """Quarantined jobs that no alert has reported yet. Each is returned once. Without a command of its own, the caller
    leaves them to a living worker that has one."""
    return statement("untold_killers", table, batch=batch, command=command)


def crashing_tasks(*, jobs: int, within_s: float, command: bool = True) -> Statement[Table]:
    """Tasks of which so many jobs crashed lately. Each is returned once per period. `command`: as above."""
    return statement("crashing_tasks", table, jobs=jobs, within_s=within_s, command=command)


def prune_crashes(*, keep_s: float) -> Statement[None]:
    return statement("prune_crashes", nothing, keep_s=keep_s)
