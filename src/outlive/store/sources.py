"""statements/sources.sql: how sources are declared, asked, counted and set by operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlive.model import Grant, SourceLimits
from outlive.statement import Statement
from outlive.store.statements import Table, scalar, statement


def register_sources(sources: Iterable[SourceLimits]) -> Statement[list[str]]: ...
def rival_sources(app: str, sources: Iterable[SourceLimits]) -> Statement[list[str]]: ...
def spread_limits(tasks: Iterable[str]) -> Statement[list[str]]: ...
def ask_source(source: str, token: int | None) -> Statement[Grant]:
    """Ask for one request, in the name of the attempt with this token."""


def breakers(*, command: bool = True) -> Statement[Table]: ...
def source_limits(name: str) -> Statement[Table]: ...
def pause_source(name: str) -> Statement[bool]: ...
def resume_source(name: str) -> Statement[bool]: ...


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
    return statement("set_source", bool, name=name, values=msgspec.json.encode(changes))


def remove_source(name: str) -> Statement[bool]: ...
def prune_unused(*, keep_s: float, batch: int = 1000) -> Statement[None]: ...
