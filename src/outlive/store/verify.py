"""statements/verify.sql: looks for what must never be."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from outlive.statement import Row, Statement
from outlive.store.statements import decoded_by


class Portion(msgspec.Struct, frozen=True):
    """A portion of all jobs that was looked at."""

    upto: UUID
    jobs: int
    since: datetime | None
    wrong: list[tuple[str, UUID]]
    """What is wrong, and with which job."""


class Looked(msgspec.Struct, frozen=True):
    """How many rows were looked at, and the wrong ones."""

    rows: int
    wrong: list[Row]


def _portion(rows: list[Row]) -> Portion:
    upto, jobs, since, *_ = rows[0]
    return Portion(upto, jobs, since, [(what, job) for *_, what, job in rows if job is not None])


def _looked(rows: list[Row]) -> Looked:
    return Looked(rows[0][-1], [row[:-1] for row in rows[1:]])


@decoded_by(_portion)
def verify_jobs(after: UUID, *, batch: int) -> Statement[Portion]: ...
@decoded_by(_looked)
def verify_keys() -> Statement[Looked]: ...
@decoded_by(_looked)
def verify_batches() -> Statement[Looked]: ...
