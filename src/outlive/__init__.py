"""outlive: jobs outlive their workers. A PostgreSQL job system for work that kills processes."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlive.child.context import Context, NoJob, current
    from outlive.client.app import App
    from outlive.client.batch import Batch
    from outlive.client.job import Job, agather, gather
    from outlive.client.linking import Group, achain, agroup, chain, group
    from outlive.client.records import dedupe_key
    from outlive.client.source import Source
    from outlive.client.task import Task
    from outlive.errors import (
        BadArguments,
        BatchNotFound,
        Cancel,
        ConfigError,
        DatabaseBusy,
        DatabaseUnreachable,
        DuplicateJob,
        Fail,
        JobFailed,
        JobNotFound,
        OutliveError,
        Retry,
        SchemaMismatch,
        SourceBusy,
        SourcePaused,
        StaleAttempt,
        Stopped,
        WrongConnection,
    )
    from outlive.model import BatchCounts, Record
    from outlive.states import Outcome, State

__version__ = "0.2.0"

__all__ = [
    "App",
    "BadArguments",
    "Batch",
    "BatchCounts",
    "BatchNotFound",
    "Cancel",
    "ConfigError",
    "Context",
    "DatabaseBusy",
    "DatabaseUnreachable",
    "DuplicateJob",
    "Fail",
    "Group",
    "Job",
    "JobFailed",
    "JobNotFound",
    "NoJob",
    "Outcome",
    "OutliveError",
    "Record",
    "Retry",
    "SchemaMismatch",
    "Source",
    "SourceBusy",
    "SourcePaused",
    "StaleAttempt",
    "State",
    "Stopped",
    "Task",
    "WrongConnection",
    "achain",
    "agather",
    "agroup",
    "chain",
    "current",
    "dedupe_key",
    "gather",
    "group",
]

_MODULES = (
    *("child.context", "client.app", "client.batch", "client.job", "client.linking", "client.records", "client.source"),
    *("client.task", "errors", "model", "states"),
)

if not TYPE_CHECKING:  # Type checkers would take any name for granted.

    def __getattr__(name: str) -> object:
        """All names are imported when the first of them is used: commands use none, and start faster."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in _MODULES:
            found = vars(import_module(f"outlive.{module}"))
            globals().update({key: found[key] for key in __all__ if key in found})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
