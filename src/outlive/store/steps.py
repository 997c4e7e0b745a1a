"""statements/steps.sql: what durable jobs keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from outlive.model import ARGUMENTS_PART_BYTES
from outlive.statement import Row, Statement
from outlive.store.statements import Table, statement

if TYPE_CHECKING:
    from outlive.protocol import KeptStep


def keep_steps(
    worker: UUID, tokens: Sequence[int], steps: Sequence[KeptStep]
) -> Statement[dict[tuple[UUID, str], bytes | None]]:
    """Keep steps of these attempts. Returns the value that is kept for each, by the id of its job and its name.

    It may be that of another attempt. One that is missing belongs to an attempt that has ended.
    """
    return statement(
        "keep_steps",
        lambda rows: {(job, name): value for job, name, value in rows},
        worker=worker,
        tokens=tokens,
        names=[one.name for one in steps],
        values=[one.value for one in steps],
        arguments=[one.arguments for one in steps],
        tooks_s=[one.took_s for one in steps],
    )


def kept_steps(token: int, after: str, *, most_bytes: int = ARGUMENTS_PART_BYTES) -> Statement[list[Row]]: ...
def steps_of(id: UUID) -> Statement[Table]: ...
def list_steps(id: UUID, *, limit: int) -> Statement[Table]: ...
def step(id: UUID, name: str) -> Statement[list[bytes | None]]: ...
def rerun(job: UUID, step: str) -> Statement[int]:
    """Let a job begin again at a step. Returns how many steps were dropped."""


def supply(job: UUID, step: str, value: bytes, who: str, *, replacing: bool) -> Statement[str]:
    """Keep a person's value as a step of a job. Returns the state of the job."""
