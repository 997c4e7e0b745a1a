"""statements/people.sql: the people who may log in to the dashboard."""

from __future__ import annotations

from uuid import UUID

from outlive.statement import Statement
from outlive.store.statements import Table


def dashboard_people() -> Statement[Table]: ...
def list_dashboard_tokens(*, limit: int = 1000) -> Statement[Table]: ...
def add_dashboard_token(name: str, *, role: str, hash: bytes) -> Statement[list[UUID]]: ...
def remove_dashboard_token(name: str) -> Statement[list[UUID]]: ...
