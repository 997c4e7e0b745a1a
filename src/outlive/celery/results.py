"""The results of jobs as Celery shows them: by id, and of a group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlive import validation
from outlive.celery.home import SharedApp
from outlive.client.app import App
from outlive.client.job import Job, gather
from outlive.errors import ConfigError, JobFailed, JobNotFound
from outlive.model import new_job_id
from outlive.states import State

app = SharedApp()
"""All tasks of `shared_task` are on this app: a module that imports it and them is what `outlive worker` takes."""
_STATES = {
    State.RUNNING: "STARTED",
    State.RETRYABLE: "RETRY",
    State.SUCCEEDED: "SUCCESS",
    State.FAILED: "FAILURE",
    State.QUARANTINED: "FAILURE",
    State.CANCELLED: "REVOKED",
}
"""Celery's words; those that are left wait, which is PENDING."""
_EARLIER = re.compile(r"cancelled, because job (\S+) ended without success$")
"""What release_dependents (sql/schema/functions/dependencies.sql) writes about a step that did not begin."""


def uuid() -> str:
    """An id for `task_id`. Later ones sort later, by which lists have the newest jobs first."""
    return str(new_job_id())


@dataclass(frozen=True)
class AsyncResult:
    """A job by its id. `job` is the handle of outlive."""

    id: str
    app: App = field(default=app, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.app.get_job(self.id)  # It refuses what is no id.

    if not TYPE_CHECKING:
        __getattr__ = validation.hinting("a result")

    @property
    def job(self) -> Job[Any]:
        return self.app.get_job(self.id)

    @property
    def state(self) -> str:
        return _STATES.get(self.job.status(), "PENDING")

    status = state

    def ready(self) -> bool:
        return self.state in ("SUCCESS", "FAILURE", "REVOKED")

    def successful(self) -> bool:
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        return self.state == "FAILURE"

    def get(self, timeout: float | None = None, **others: object) -> Any:
        """Its result. If an earlier step of its chain or chord has failed, JobFailed is about that one."""
        _expect_none(others)
        try:
            return self.job.result(timeout)
        except JobFailed as failed:
            if earlier := _EARLIER.match(failed.attempt.error or "" if failed.attempt else ""):
                with suppress(TimeoutError, JobNotFound):  # It was retried or pruned since.
                    AsyncResult(earlier[1], self.app).get(0)
            raise

    def revoke(self, *, terminate: bool = False, **others: object) -> None:
        if others:
            how = "a job that runs gets SIGTERM, and SIGKILL after 5 s"
            raise ConfigError(f"revoke takes only terminate: leave out {', '.join(others)}: {how}")
        if not terminate:
            raise ConfigError("outlive also stops a job that runs: write revoke(terminate=True)")
        self.job.cancel()


def _expect_none(others: Mapping[str, object]) -> None:
    """Refuse the options that only Celery's `get` has."""
    if others:
        caught = "; in place of propagate=False, catch outlive.JobFailed" if "propagate" in others else ""
        raise ConfigError(f"get takes only a timeout: leave out {', '.join(others)}{caught}")


@dataclass(frozen=True)
class GroupResult:
    """The results of a group, in its order."""

    results: list[AsyncResult]

    if not TYPE_CHECKING:
        __getattr__ = validation.hinting("the result of a group")

    def __iter__(self) -> Iterator[AsyncResult]:
        return iter(self.results)

    def get(self, timeout: float | None = None, **others: object) -> list[Any]:
        _expect_none(others)
        return gather([one.job for one in self], timeout)

    join = get

    def ready(self) -> bool:
        return all(one.ready() for one in self)
