"""statements/sources.sql: how sources are declared, asked, counted and set by operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlive.model import Grant, SourceLimits
from outlive.statement import Statement
from outlive.store.statements import Table, any_row, decoded_by, first_column, nothing, scalar, statement, table


def register_sources(sources: Iterable[SourceLimits]) -> Statement[list[str]]:
    """Write what the app declares. Returns the sources that another transaction has locked."""
    return statement("register_sources", first_column, sources=msgspec.json.encode(list(sources)))


@decoded_by(first_column)
def spread_limits(tasks: Iterable[str]) -> Statement[list[str]]:
    """Give undeclared sources the limits of their tasks' sources. Returns those that another transaction has locked."""


@decoded_by(lambda rows: Grant(*rows[0]))
def ask_source(source: str, token: int | None) -> Statement[Grant]:
    """Ask for one request, in the name of the attempt with this token."""


@decoded_by(table)
def breakers(*, command: bool = True) -> Statement[Table]:
    """Breakers that opened or closed since the last alert. Each change is returned once. Without a command of its own,
    the caller leaves them to a living worker that has one.
    """


@decoded_by(table)
def source_limits(name: str) -> Statement[Table]:
    """What the app declares, and as `set_…` what operators have set."""


@decoded_by(any_row)
def pause_source(name: str) -> Statement[bool]:
    """False: there is no such source."""


@decoded_by(any_row)
def resume_source(name: str) -> Statement[bool]:
    """False: there is no such source."""


def count_outcomes(
    outcomes: Sequence[tuple[str, int | None, bool | None]], slots: Iterable[int] = (), *, patient: bool = True
) -> Statement[list[int]]:
    """Count how calls went: source, token of the attempt, and success. None only gives back the slot and the probe.

    Unless it is `patient`, it returns the places, from 1, of the outcomes whose source another transaction has locked.
    """
    return statement(
        "count_outcomes",
        scalar,
        sources=[source for source, _, _ in outcomes],
        tokens=[token for _, token, _ in outcomes],
        oks=[ok for _, _, ok in outcomes],
        slots=slots,
        patient=patient,
    )


def set_source(name: str, values: Mapping[str, float | None]) -> Statement[bool]:
    """Override what the app declares. False: there is no such source."""
    changes = {f"set_{key}": value for key, value in values.items()}
    return statement("set_source", any_row, name=name, values=msgspec.json.encode(changes))


@decoded_by(any_row)
def remove_source(name: str) -> Statement[bool]: ...
@decoded_by(nothing)
def prune_unused(*, keep_s: float, batch: int = 1000) -> Statement[None]: ...
