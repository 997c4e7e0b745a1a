"""`outlive_jobs`: what a test does with jobs. It runs them, looks at what was enqueued, and moves the clock."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import msgspec
import pytest

from outlive import db, store, validation
from outlive.client import redirection
from outlive.client.app import App
from outlive.client.home import HomedApp
from outlive.client.job import Job
from outlive.client.options import moment as checked_moment
from outlive.client.task import DjangoTask, Task, expect_task
from outlive.errors import ConfigError, OutliveError
from outlive.pytest import processes
from outlive.pytest.clock import Clock
from outlive.pytest.target import TARGET
from outlive.states import Outcome, State
from outlive.testing import enqueued
from outlive.testing.eager import eager
from outlive.testing.enqueued import Enqueued
from outlive.testing.inline import LATER, WAITING, Inline, Ran, has_failed, task_rows
from outlive.validation import Duration
from outlive.worker.fleet.schedules import Plan

if TYPE_CHECKING:
    from outlive.testing.of_django import DjangoWorkers

P = ParamSpec("P")
R = TypeVar("R")
_LATER = f"select min(t.ready_at) - outlive.now() {LATER}"
_UNSETTLED = f"select exists (select {WAITING} and t.ready_at <= outlive.now()) or exists (select from outlive.running)"  # noqa: S608
_UNKNOWN = """
select w.task, count(*) from outlive.waiting w where w.ready_at <= outlive.now() and w.task <> all(%s)
group by w.task order by w.task
"""
_ENDED = """
select a.job_id, j.task, a.attempt, a.outcome, a.state, a.result::text, a.error
from outlive.attempts a join outlive.jobs j on j.id = a.job_id where a.token > %s order by a.token
"""


class Jobs:
    """The jobs of a test's own database, and the apps that they belong to."""

    def __init__(self, url: str, apps: Sequence[App] | None = None) -> None:
        self.url = url
        """The address of the test's database."""
        self._apps = apps
        self._connection = db.connect(url, db.PINNED)
        self._clock = Clock(self._connection)
        self._inline: Inline | None = None
        self._django: DjangoWorkers | None = None
        self._registered: list[object] = []
        self._declared: list[object] = []
        self._declare()  # Their times count from now on.

    def close(self) -> None:
        self._connection.close()
        if self._django is not None:
            self._django.close()

    # Running

    def run(
        self,
        *,
        queue: str | None = None,
        delayed: bool = False,
        raising: bool = False,
        in_processes: bool = False,
        kill_after: str | None = None,
        limit: int = 1000,
        timeout: Duration = 60.0,
    ) -> list[Ran]:
        """Run the jobs that are due, and those that become due meanwhile. Returns the attempts in their order.

        `queue`: only the jobs of this one. `delayed`: also run jobs that are due later, and move the clock there.
        `raising`: raise what the first failing job raises. `in_processes`: in a real worker, each job in a process of
        its own, for at most `timeout`. `kill_after`: so too, and the process of each job is killed when it has kept the
        step of this name; the clock moves to its next attempt, which goes on from there.
        More attempts than `limit` are an error: a job may be enqueuing itself.
        """
        queues = None if queue is None else [queue]
        self._register()
        ran: list[Ran] = []
        while True:
            self._fire_due()
            if in_processes or kill_after is not None:
                ran += self._run_in_processes(queues, validation.seconds("timeout", timeout), kill_after)
            else:
                ran += self._run_inline(queues, raising=raising, limit=limit - len(ran))
            if raising and (failed := next(filter(has_failed, ran), None)):
                raise OutliveError(f"job {failed.job_id} of {failed.task} ended as {failed.outcome}: {failed.error}")
            goes_on = delayed or (kill_after is not None and self._killed(ran))
            # A backoff may be over before the worker has stopped.
            became_due = (in_processes or kill_after is not None) and self._unsettled(queues)
            if not goes_on or not (became_due or self._wait_for_next(queues)):
                break
        if kill_after is not None:
            self._check_killed(kill_after, ran)
        self._warn_of_unknown()
        return ran

    def _run_inline(self, queues: Sequence[str] | None, *, raising: bool, limit: int) -> list[Ran]:
        self._inline = self._inline or Inline(self._connection, self._tasks)
        ran: list[Ran] = []
        django = self._of_django()
        for worker in chain([self._inline], django.all() if django else ()):  # The first may enqueue for the others.
            ran += worker.run_due(queues, raising=raising, limit=limit - len(ran))
        return ran

    def _of_django(self) -> DjangoWorkers | None:
        """Workers for the jobs in Django's own database, if this process has enqueued any."""
        if self._django is None and "outlive.django.registry" in sys.modules:
            from outlive.testing.of_django import DjangoWorkers  # Not at the top: few tests have Django.

            self._django = DjangoWorkers(self._tasks)
        return self._django

    def _run_in_processes(self, queues: Sequence[str] | None, within_s: float, kill_after: str | None) -> list[Ran]:
        if django := self._of_django():
            django.refuse_processes()
        if not self._unsettled(queues):
            return []
        last = self._value("select coalesce(max(token), 0) from outlive.attempts")
        apps = [app for app in self._all_apps() if app.tasks]
        due = {job.task for job in enqueued.read(self._connection)}
        wanted = processes.wanted(apps, due, kill_after)
        processes.drain(wanted, self.url, queues, lambda: not self._unsettled(queues), within_s)
        rows = self._connection.execute(_ENDED.encode(), [last]).fetchall()
        return [
            Ran(id, task, attempt, Outcome(outcome), State(state), self._decoded(task, result), error)
            for id, task, attempt, outcome, state, result, error in rows
        ]

    def _unsettled(self, queues: Sequence[str] | None) -> bool:
        """Whether a job is due or runs."""
        return bool(self._value(_UNSETTLED, {"tasks": list(self._tasks()), "queues": queues}))

    def _killed(self, ran: Sequence[Ran]) -> bool:
        """Whether one of these jobs was killed, and waits for its next attempt."""
        dead = [one.job_id for one in ran if one.outcome is Outcome.CRASHED]
        return State.RETRYABLE in db.run(self._connection, store.statuses(dead)).values()

    def _check_killed(self, step: str, ran: Sequence[Ran]) -> None:
        rows = self._connection.execute("select distinct name from outlive.steps order by name").fetchall()
        if (step,) not in rows:
            kept = ", ".join(name for (name,) in rows) or "no step at all"
            raise OutliveError(f"no job has kept the step {step}, but {kept}")
        if not any(one.outcome is Outcome.CRASHED for one in ran):
            raise OutliveError(
                f"no process was killed after the step {step}: it was kept before, or is a wait or of `once`;"
                " name a step that is a function"
            )

    def _decoded(self, task: str, result: str | None) -> object:
        return None if result is None else self._tasks()[task].codec.decode_result(result.encode())

    def _warn_of_unknown(self) -> None:
        for task, jobs in self._connection.execute(_UNKNOWN.encode(), [list(self._tasks())]).fetchall():
            warnings.warn(
                f"{jobs} jobs of {task} are due and did not run: no app here has this task, import its module",
                pytest.PytestWarning,
                stacklevel=3,
            )

    @contextmanager
    def eager(self, *, raising: bool = True) -> Iterator[None]:
        """Within this block, enqueuing a job runs it at once, here. What it raises is raised by `enqueue`.

        A job that is enqueued in a transaction of one's own runs with the next one, or with `run`: nothing but that
        transaction sees it before the commit.
        """

        with eager(lambda: self.run(raising=raising)):
            yield

    # Looking

    def enqueued(self, task: Task[..., Any, Any] | DjangoTask | None = None) -> list[Enqueued]:
        """The jobs of a task, or of all, in the order in which they were enqueued, whatever has become of them.

        Jobs of Django's tasks come last, those of a test's open transaction among them.
        """
        name = None if task is None else _ours("enqueued takes", task).name
        django = self._of_django()
        jobs = [*enqueued.read(self._connection), *(django.enqueued() if django else ())]
        return [job for job in jobs if name in (None, job.task)]

    def assert_enqueued(self, task: Task[P, Any, R] | DjangoTask, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Expect a job of this task with these arguments, and return it. Only options given with `using` must be equal.

        It reads like the call that has enqueued the job: `assert_enqueued(send.using(queue="mail"), 7)`. A task may
        also be one of Django: `assert_enqueued(send.using(queue_name="mail"), 7)`.
        """
        __tracebackhide__ = True
        ours: Task[..., Any, R] = _ours("assert_enqueued takes", task)
        return Job(enqueued.expect(self.enqueued(), ours, args, kwargs).id, ours.app)

    def assert_not_enqueued(self, task: Task[..., Any, Any] | DjangoTask | None = None) -> None:
        """Expect no job of this task; without a task, no job at all."""
        __tracebackhide__ = True
        enqueued.expect_none(self.enqueued(task))

    # The time

    def now(self) -> datetime:
        """The time in the test's database, in UTC."""
        return self._clock.now()

    def advance(self, by: Duration) -> None:
        """Move the clock forward, by seconds or as text ("2h"). Schedules make a job for each tick that passes."""
        seconds = validation.positive("by", validation.seconds("by", by))
        if django := self._of_django():
            django.refuse_clock()
        self._register()
        self._fire_due()
        self._clock.advance(seconds)
        self._fire_due(missed="all")

    def travel_to(self, moment: datetime) -> None:
        """Move the clock forward to this moment, which has a time zone."""
        now = self.now()
        if checked_moment("moment", moment) <= now:
            raise ConfigError(f"it is {now.isoformat()} in this test, and time goes only forward: not to {moment}")
        self.advance((moment - now).total_seconds())

    def _wait_for_next(self, queues: Sequence[str] | None) -> bool:
        """Move the clock to the time at which the next job is due. False if no job waits."""
        django = self._of_django()
        made_due = django is not None and django.make_next_due(queues)
        wait = self._value(_LATER, {"tasks": list(self._tasks()), "queues": queues})
        if wait is None:
            return made_due
        self._clock.advance(wait.total_seconds())
        return True

    # What workers do besides

    def _all_apps(self) -> Sequence[App]:
        apps = redirection.apps() if self._apps is None else self._apps
        return [app for app in apps if not _is_without_home(app)]

    def _tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        return {name: task for app in self._all_apps() for name, task in app.tasks.items()}

    def _register(self) -> None:
        """Tell the database of tasks and schedules, as a worker does when it starts. Apps read their settings here."""
        policies = task_rows(self._tasks())
        if policies != self._registered:
            db.run(self._connection, store.register_tasks(policies))
            self._registered = [*policies]
        self._declare()

    def _declare(self) -> None:
        schedules = [schedule for app in self._all_apps() for schedule in app.declared_schedules.values()]
        if schedules != self._declared:
            db.run(self._connection, store.declare_schedules(schedules, TARGET))
            self._declared = [*schedules]

    def _fire_due(self, *, missed: str | None = None) -> None:
        """Fire schedules up to the time to which the test has moved the clock: it may run when the real time is due."""
        if not self._declared:
            return
        for one in db.run(self._connection, store.due_schedules()).due:
            plan = Plan.of(one if missed is None else msgspec.structs.replace(one, missed=missed), self._clock.moved_to)
            db.run(self._connection, store.fire(one, plan.ticks, plan.following))

    def _value(self, query: str, parameters: Any = None) -> Any:
        return self._connection.execute(query.encode(), parameters).fetchall()[0][0]


def _ours(words: str, task: object) -> Task[..., Any, Any]:
    """The task itself, or the one that stands for a task of Django."""
    if "outlive.django.registry" in sys.modules:
        from outlive.testing import of_django

        if (found := of_django.ours(task)) is not None:
            return found
    return expect_task(words, cast("Task[..., Any, Any]", task))


def _is_without_home(app: App) -> bool:
    """Whether the test has replaced TASKS, and the backend of this app is not there: none of its jobs can run."""
    return isinstance(app, HomedApp) and (home := app.home) is not None and not home.exists()
