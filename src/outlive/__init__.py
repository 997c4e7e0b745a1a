"""outlive: jobs outlive their workers. A PostgreSQL job system for work that kills processes."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlive.child.context import Context as Context
    from outlive.child.context import NoJob as NoJob
    from outlive.child.context import current as current
    from outlive.child.steps import Step as Step
    from outlive.child.steps import step as step
    from outlive.client.app import App as App
    from outlive.client.batch import Batch as Batch
    from outlive.client.handles import Queue as Queue
    from outlive.client.handles import ScheduleHandle as ScheduleHandle
    from outlive.client.handles import Worker as Worker
    from outlive.client.job import Job as Job
    from outlive.client.job import agather as agather
    from outlive.client.job import gather as gather
    from outlive.client.linking import Group as Group
    from outlive.client.linking import achain as achain
    from outlive.client.linking import agroup as agroup
    from outlive.client.linking import chain as chain
    from outlive.client.linking import group as group
    from outlive.client.linking import result_of as result_of
    from outlive.client.looking import JobInfo as JobInfo
    from outlive.client.looking import QueueInfo as QueueInfo
    from outlive.client.looking import ScheduleInfo as ScheduleInfo
    from outlive.client.looking import WorkerInfo as WorkerInfo
    from outlive.client.options import BoundJob as BoundJob
    from outlive.client.records import dedupe_key as dedupe_key
    from outlive.client.source import Request as Request
    from outlive.client.source import Source as Source
    from outlive.client.task import Task as Task
    from outlive.errors import BadArguments as BadArguments
    from outlive.errors import BatchNotFound as BatchNotFound
    from outlive.errors import Cancel as Cancel
    from outlive.errors import ConfigError as ConfigError
    from outlive.errors import DatabaseBusy as DatabaseBusy
    from outlive.errors import DatabaseUnreachable as DatabaseUnreachable
    from outlive.errors import DuplicateJob as DuplicateJob
    from outlive.errors import Fail as Fail
    from outlive.errors import JobEnded as JobEnded
    from outlive.errors import JobFailed as JobFailed
    from outlive.errors import JobNotFound as JobNotFound
    from outlive.errors import NotReceived as NotReceived
    from outlive.errors import OutliveError as OutliveError
    from outlive.errors import Retry as Retry
    from outlive.errors import SchemaMismatch as SchemaMismatch
    from outlive.errors import Snooze as Snooze
    from outlive.errors import SourceBusy as SourceBusy
    from outlive.errors import SourcePaused as SourcePaused
    from outlive.errors import StaleAttempt as StaleAttempt
    from outlive.errors import Stopped as Stopped
    from outlive.errors import WrongConnection as WrongConnection
    from outlive.luggage import baggage as baggage
    from outlive.model import Attempt as Attempt
    from outlive.model import BatchCounts as BatchCounts
    from outlive.model import JobProgress as JobProgress
    from outlive.model import Record as Record
    from outlive.states import Outcome as Outcome
    from outlive.states import State as State

__version__ = "0.2.0"

_NAMES = {
    "child.context": "Context NoJob current",
    "child.steps": "Step step",
    "client.app": "App",
    "client.batch": "Batch",
    "client.handles": "Queue ScheduleHandle Worker",
    "client.job": "Job agather gather",
    "client.linking": "Group achain agroup chain group result_of",
    "client.looking": "JobInfo QueueInfo ScheduleInfo WorkerInfo",
    "client.options": "BoundJob",
    "client.records": "dedupe_key",
    "client.source": "Request Source",
    "client.task": "Task",
    "luggage": "baggage",
    "errors": "BadArguments BatchNotFound Cancel ConfigError DatabaseBusy DatabaseUnreachable DuplicateJob Fail "
    "JobEnded JobFailed JobNotFound NotReceived OutliveError Retry SchemaMismatch Snooze SourceBusy SourcePaused "
    "StaleAttempt Stopped WrongConnection",
    "model": "Attempt BatchCounts JobProgress Record",
    "states": "Outcome State",
}
"""The public names, by their modules. The lines above are the same for type checkers; a test compares them."""
__all__ = sorted(name for names in _NAMES.values() for name in names.split())  # noqa: PLE0605

if not TYPE_CHECKING:  # Type checkers would take any name for granted.

    def __getattr__(name: str) -> object:
        """All names are imported when the first of them is used: commands use none, and start faster."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module, names in _NAMES.items():
            found = vars(import_module(f"outlive.{module}"))
            globals().update({key: found[key] for key in names.split()})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
