"""Jobs in the tests of a project: `from outlive.django.test import jobs`, under Django's test runner and under pytest.

They run in the test's own process and in Django's test database, in a TestCase within its transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from outlive.client import redirection
from outlive.client.home import HomedApp
from outlive.client.job import Job
from outlive.client.task import Task as OutliveTask
from outlive.client.task import expect_task
from outlive.errors import OutliveError

if TYPE_CHECKING:
    from outlive.django.api import Task
    from outlive.testing.enqueued import Enqueued
    from outlive.testing.inline import Ran
    from outlive.testing.of_django import DjangoWorkers

    AnyTask: TypeAlias = OutliveTask[..., Any, Any] | Task


class Jobs:
    """The jobs of a test: those of Django's tasks, of tasks of `outlive.django.app()`, and of shared tasks."""

    def run(
        self, *, queue: str | None = None, delayed: bool = False, raising: bool = False, limit: int = 1000
    ) -> list[Ran]:
        """Run the jobs that are due, and those that become due meanwhile. Returns the attempts in their order.

        `queue`: only the jobs of this one. `delayed`: also run retries and jobs that are due later, at once.
        `raising`: raise what the first failing job raises. More attempts than `limit` are an error.
        """
        queues = None if queue is None else [queue]
        ran: list[Ran] = []
        with closing(_workers()) as workers:
            while True:
                for worker in workers.all():
                    ran += worker.run_due(queues, raising=raising, limit=limit - len(ran))
                if not delayed or not workers.make_next_due(queues):
                    return ran

    @contextmanager
    def eager(self, *, raising: bool = True) -> Iterator[None]:
        """Within this block, or in a test that it decorates, enqueuing a job runs it at once. What it raises is raised
        by `enqueue` and `delay`.

        A job that is enqueued in an `atomic()` of your own runs with the next one, or with `run`.
        """
        from outlive.testing.eager import eager

        with eager(lambda: self.run(raising=raising)):
            yield

    def enqueued(self, task: AnyTask | None = None) -> list[Enqueued]:
        """The jobs of a task, or of all, in the order in which they were enqueued, whatever has become of them."""
        name = None if task is None else _ours("enqueued takes", task).name
        with closing(_workers()) as workers:
            return [job for job in workers.enqueued() if name in (None, job.task)]

    def assert_enqueued(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Expect a job of this task with these arguments, and return it. Only options given with `using` must be equal.

        It reads like the call that has enqueued the job: `jobs.assert_enqueued(send.using(priority=50), 7)`.
        """
        from outlive.testing import enqueued

        __tracebackhide__ = True
        ours = _ours("assert_enqueued takes", task)
        return Job(enqueued.expect(self.enqueued(), ours, args, kwargs).id, ours.app)

    def assert_not_enqueued(self, task: AnyTask | None = None) -> None:
        """Expect no job of this task; without a task, no job at all."""
        from outlive.testing import enqueued

        __tracebackhide__ = True
        enqueued.expect_none(self.enqueued(task))


jobs = Jobs()


def _workers() -> DjangoWorkers:
    if redirection.database_url is not None:
        raise OutliveError("this test has the fixture outlive_jobs: use that, which runs the jobs of Django too")
    if not redirection.django_tests():
        raise OutliveError("no test of Django runs: outlive.django.test never runs jobs in a database of the settings")
    from outlive.testing.of_django import DjangoWorkers

    return DjangoWorkers(_tasks, every=True)


def _tasks() -> Mapping[str, OutliveTask[..., Any, Any]]:
    """All tasks that may have jobs in a database of Django: those of other apps have jobs elsewhere."""
    apps = [app for app in redirection.apps() if isinstance(app, HomedApp) and (app.home is None or app.home.exists())]
    return {name: task for app in apps for name, task in app.tasks.items()}


def _ours(words: str, task: object) -> OutliveTask[..., Any, Any]:
    """The task itself, or the one that stands for a task of Django."""
    from outlive.testing import of_django

    return of_django.ours(task) or expect_task(words, cast("OutliveTask[..., Any, Any]", task))
