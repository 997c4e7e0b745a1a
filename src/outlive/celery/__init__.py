"""Celery's calls on top of outlive, so that a code base moves file by file: change the line of the import first.

    from outlive.celery import app, chain, chord, shared_task    # before: from celery import chain, chord, shared_task

Options that mean something else in outlive are refused, with what to write: docs/how-to/migrate-from-celery.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive import foreign_options
from outlive.celery.canvas import Signature, Workflow, chain, chord, group
from outlive.celery.results import AsyncResult, GroupResult, app, uuid
from outlive.celery.tasks import Request, SharedTask, SoftTimeLimitExceeded, route, shared_task

__all__ = [
    "AsyncResult",
    "GroupResult",
    "Request",
    "SharedTask",
    "Signature",
    "SoftTimeLimitExceeded",
    "Workflow",
    "app",
    "chain",
    "chord",
    "group",
    "route",
    "shared_task",
    "uuid",
]

if not TYPE_CHECKING:  # A type checker would take any name for one of this package.

    def __getattr__(name: str) -> object:
        if hint := foreign_options.CELERY_NAMES.get(name):  # No AttributeError: an import would leave its words out.
            raise ImportError(f"outlive.celery has no {name}: {hint}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
