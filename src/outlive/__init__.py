"""outlive: jobs outlive their workers. A PostgreSQL job system for work that kills processes."""

from outlive.child.context import Context, NoJob, current
from outlive.client.app import App
from outlive.client.job import Job
from outlive.client.records import dedupe_key
from outlive.client.source import Source
from outlive.client.task import Task
from outlive.errors import (
    BadArguments,
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
)
from outlive.model import Record
from outlive.states import Outcome, State

__version__ = "0.1.0"

__all__ = [
    "App",
    "BadArguments",
    "Cancel",
    "ConfigError",
    "Context",
    "DatabaseBusy",
    "DatabaseUnreachable",
    "DuplicateJob",
    "Fail",
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
    "current",
    "dedupe_key",
]
