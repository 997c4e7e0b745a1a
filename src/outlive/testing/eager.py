"""Runs jobs as soon as they are enqueued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from outlive import job_gateway
from outlive.client.statement_runner import StatementRunner
from outlive.statement import Statement
from outlive.testing.in_transaction import is_as_committed


@contextmanager
def eager(run: Callable[[], object]) -> Iterator[None]:
    """Within this block, `run` is called when jobs were enqueued that are committed, or were if it were no test."""

    def run_all(runner: StatementRunner, statements: Sequence[Statement[Any]], connection: Any = None) -> list[Any]:
        results = plain(runner, statements, connection)
        if _makes_jobs(statements, connection):
            run()
        return results

    async def arun_all(
        runner: StatementRunner, statements: Sequence[Statement[Any]], connection: Any = None
    ) -> list[Any]:
        results = await aplain(runner, statements, connection)
        if _makes_jobs(statements, connection):
            await asyncio.to_thread(run)
        return results

    plain, aplain = StatementRunner.run_all, StatementRunner.arun_all
    with patch.multiple(StatementRunner, run_all=run_all, arun_all=arun_all):
        yield


def _makes_jobs(statements: Sequence[Statement[Any]], connection: object) -> bool:
    """Whether these statements have committed jobs or signals, outside of a job."""
    outside = job_gateway.gateway is None
    makes = any(one.name.startswith("enqueue") or one.name in ("close_batch", "send") for one in statements)
    return outside and makes and (connection is None or is_as_committed(connection))
