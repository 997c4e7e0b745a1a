"""statements/audit.sql: what operators do, and who did it."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

from outlive.model import Change
from outlive.statement import Statement
from outlive.store.statements import Table, statement, structs

Verb = Literal["retry", "repeat", "cancel", "release", "prune"]
KEEP_AUDIT_S = 90 * 86400.0
MOST_IDS = 1000
"""More ids than this are not written, only counted."""


def act(verb: Verb, ids: list[UUID], *, who: str, what: object = None, entry: UUID) -> Statement[list[Change]]:
    """Do something to jobs, and write that to the audit. Returns what became of each job that exists.

    `what` is how the jobs were chosen; without it, by their ids, and the audit names those that were changed. Several
    calls with the same `entry` are one action.
    """
    told = {"ids": ids[:MOST_IDS]} if what is None else what
    return statement("act", structs(Change), verb=verb, ids=ids, who=who, what=msgspec.json.encode(told), entry=entry)


def write_audit(entry: UUID, *, who: str, action: str, what: object, jobs: int = 0) -> Statement[None]:
    """Run it in the transaction of the action."""


def list_audit(*, past: UUID | None = None, limit: int = 100) -> Statement[Table]: ...
def prune_audit(*, keep_s: float = KEEP_AUDIT_S) -> Statement[None]: ...
