"""Handles on jobs that a test has enqueued on Django's connection: their app asks the test's own database, which does
not have these jobs. Then Django's test database is asked too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from outlive import job_gateway
from outlive.client.statement_runner import StatementRunner
from outlive.statement import Statement

_OF_JOBS = {"statuses", "job_infos", "job_progress", "outcomes", "unfinished", "cancel", "retry", "release"}
"""The statements of handles. If one returns nothing, the database has no such job, and nothing was changed."""


@contextmanager
def found_in_django() -> Iterator[None]:
    """Within this block handles find jobs in Django's test database, if the test has enqueued any there."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("run_all", "read", "arun_all", "aread"):
            patch.setattr(StatementRunner, name, _asking(getattr(StatementRunner, name)))
        yield


def _asking(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a runner that asks the others after its own database."""

    def ask(runner: StatementRunner, asked: Any, *more: Any) -> Any:
        answer = plain(runner, asked, *more)
        for other in _others(runner, asked):
            answer = answer if _has_found(answer) else getattr(other, plain.__name__)(asked, *more)
        return answer

    async def aask(runner: StatementRunner, asked: Any, *more: Any) -> Any:
        answer = await plain(runner, asked, *more)
        for other in _others(runner, asked):
            answer = answer if _has_found(answer) else await getattr(other, plain.__name__)(asked, *more)
        return answer

    return aask if inspect.iscoroutinefunction(plain) else ask


def _has_found(answer: object) -> bool:
    return any(answer) if isinstance(answer, list) else bool(answer)


def _others(runner: StatementRunner, asked: list[Statement[Any]] | Statement[Any]) -> list[StatementRunner]:
    names = {one.name for one in (asked if isinstance(asked, list) else [asked])}
    inside = job_gateway.gateway is not None
    if inside or not names <= _OF_JOBS or runner.joins or "outlive.testing.of_django" not in sys.modules:
        return []
    from outlive.testing import of_django

    return of_django.runners()
