"""statements/people.sql: the people who may log in to the dashboard."""

from __future__ import annotations

from uuid import UUID

from outlive.statement import Statement
from outlive.store.statements import Table, first_column, statement, table


def dashboard_people() -> Statement[Table]:
    return statement("dashboard_people", table)


def list_dashboard_tokens(*, limit: int = 1000) -> Statement[Table]:
    return statement("list_dashboard_tokens", table, limit=limit)


def add_dashboard_token(name: str, *, role: str, hash: bytes) -> Statement[list[UUID]]:
    """Empty: there is one of that name."""
    return statement("add_dashboard_token", first_column, name=name, role=role, hash=hash)


def remove_dashboard_token(name: str) -> Statement[list[UUID]]:
    """Empty: there was none."""
    return statement("remove_dashboard_token", first_column, name=name)
