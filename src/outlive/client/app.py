"""The app: tasks are registered on it, and jobs are enqueued through it. It reads settings and connects when needed."""

from __future__ import annotations

import functools
import operator
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

from outlive import config as configuration
from outlive import store, validation, wire
from outlive.client import carrying, declaring, looking, redirection, scheduling
from outlive.client.batch import Batch, BatchBlock
from outlive.client.declaring import Decorator, TaskOptions
from outlive.client.handles import Queue, ScheduleHandle, Worker
from outlive.client.job import Job
from outlive.client.looking import JobFilters, JobInfo, ScheduleInfo, WorkerInfo
from outlive.client.options import BoundJob, OnFailed, callback
from outlive.client.portions import portions
from outlive.client.schedule import NewSchedule, ScheduleDecorator, ScheduleOptions, decorator
from outlive.client.source import Source, limits_of
from outlive.client.statement_runner import StatementRunner
from outlive.client.task import DjangoTask, Task, follower, own_task
from outlive.config import Config
from outlive.errors import BadArguments, ConfigError
from outlive.model import JobRequest, Record, Schedule, new_job_id
from outlive.statement import Statement, acarry_out, carry_out
from outlive.validation import Duration

if TYPE_CHECKING:
    from outlive.caller_connections import AnyConnection, AsyncConnection, SyncConnection
    from outlive.client.cache import Cache
    from outlive.client.connections import Connections

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[[], object])
L = TypeVar("L", bound=Callable[[], AsyncIterator[None]])
W = TypeVar("W", bound=Callable[[], Iterator[None]])
F = TypeVar("F", bound=OnFailed)


class App:
    """An application's tasks, sources and schedules, and its access to the database."""

    def __init__(
        self,
        database_url: str | None = None,
        *,
        queue_of: Mapping[str, str] | None = None,
        **settings: Unpack[configuration.Settings],
    ) -> None:
        """Any setting can be given here. The file and the environment override it; workers take it too.

        `queue_of` gives tasks that name no queue one by patterns of their names, `{"shop.mail.*": "mail"}`: the first
        pattern that fits counts, and in it `*` stands for anything.
        """
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        """By name. A task is also here under the names that it had before."""
        self.queue_of = declaring.routes(queue_of or {})
        self.sources: dict[str, Source] = {}
        self.declared_schedules: dict[str, Schedule] = {}
        self.process_starts: list[FunctionType] = []
        """What runs in each process before its first job."""
        self.lifespans: list[FunctionType] = []
        self.surroundings: list[FunctionType] = []
        """What runs around each job, the first outermost."""
        self.follower: dict[str, Any] | None = None
        """The job that follows a failure, as the database takes it."""
        if isinstance(database_url, str) and database_url and not re.search(r"[=:/]", database_url):
            raise ConfigError(
                f"{database_url!r} is not the address of a database: write App() with OUTLIVE_DATABASE_URL in the "
                "environment, or App('postgresql://…'). An app needs no name; service=… names the one of its workers"
            )
        self.settings = configuration.in_code({"database_url": database_url, **settings})
        """The settings that are given in code."""
        self._config: Config | None = None
        self.runner = StatementRunner(lambda: self.config, lambda: self.settings.get("database_url"))
        redirection.note(self)

    if not TYPE_CHECKING:  # A type checker would take any name for an attribute.
        __getattr__ = validation.hinting("an app")

    @property
    def connections(self) -> Connections:
        """The connections of this process to the database, opened when first needed."""
        return self.runner.connections

    @property
    def config(self) -> Config:
        """The settings: those given to `configure`, or else those of app, file and environment, read once."""
        if self._config is None:
            config = configuration.load(app=self.settings, flags={"database_url": redirection.database_url})
            own = self.settings.get("database_url", config.database_url)
            if config.database_url != own and redirection.database_url is None:
                from outlive import migrate  # Not at the top: it imports the driver.

                migrate.expect_agreement(config, self.settings)
            self._config = config
        return self._config

    def configure(self, config: Config | None) -> Config | None:
        """Use these settings from now on (None: those of app, file and environment), and close what is open.

        Returns the settings that were used before; None if they were not needed yet.
        """
        before, self._config = self._config, config
        self.__dict__.pop("cache", None)
        self.runner.close()
        return before

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> Decorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a task, as `@app.task` or `@app.task(max_attempts=5, …)`."""
        register = declaring.decorator(self, options)
        return register if function is None else register(function)

    def on_process_start(self, function: H, /) -> H:
        """Run a function in each process of jobs, once, before its first job: to open a client, or to load a model.

        With `recycle_after` the next jobs find what it has left. If it raises, that job fails with its error.
        """
        rule = "@app.on_process_start takes a plain function without parameters"
        self.process_starts.append(declaring.expect(function, declaring.PLAIN, rule))
        return function

    def lifespan(self, function: L, /) -> L:
        """Open what the jobs of a shared process use together, such as a client session, and close it after the last.

        The function is async, and yields once in between. Only jobs of tasks with `share` have it.
        """
        rule = "@app.lifespan takes an async function without parameters that yields once"
        self.lifespans.append(declaring.expect(function, declaring.ASYNC_GENERATOR, rule))
        return function

    def around_job(self, function: W, /) -> W:
        """Run a function around each attempt of a job: what stands before its `yield` before the task's function, what
        stands after it afterwards. What the job raises is raised by the `yield`; the function must let it pass.
        """
        rule = "@app.around_job takes a plain function without parameters that yields once"
        self.surroundings.append(declaring.expect(function, declaring.GENERATOR, rule))
        return function

    def on_failed(self, task: F, /) -> F:
        """Enqueue a job of this task, `@app.on_failed` above `@app.task`, for each job that fails for good or is
        quarantined and names no other task with `using(on_failed=…)`.

        The task takes the id of that job, and its error. Its own failures call nothing.
        """
        if self.follower is not None:
            raise ConfigError("@app.on_failed is given twice: give it to one task, which may enqueue others")
        self.follower = follower(task, self)
        return task

    def schedule(self, cron: str | None = None, /, **options: Unpack[ScheduleOptions]) -> ScheduleDecorator:
        """Enqueue jobs of a task at the times of a cron expression, or every so often: `@app.schedule(every="30s")`.

        Workers store the schedule at startup, and one of them makes the job of each firing; operators override it.
        """
        return decorator(self, cron, options)

    def source(
        self,
        name: str,
        *,
        rate_limit_per_minute: float | None = None,
        burst: int = 1,
        max_concurrency: int | None = None,
        breaker_failures: int = 5,
        breaker_pause: Duration = 300.0,
    ) -> Source:
        """Declare an outside service that jobs call. Workers store its limits at startup; operators override them."""
        limits = limits_of(name, rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause)
        source = self.sources.setdefault(name, Source(limits, self.runner, lambda: self.cache))
        if source.limits != limits:
            raise ConfigError(f"the source {name} is declared twice with different limits: declare it once")
        return source

    @functools.cached_property
    def cache(self) -> Cache:
        """The answers of sources that are cached on this machine."""
        from outlive.client.cache import Cache

        return Cache.of(self.config)

    def records(
        self,
        scope: str | None = None,
        *,
        source: str | None = None,
        key: str | None = None,
        after: Record | None = None,
        limit: int = 10_000,
    ) -> list[Record]:
        """The records that jobs have stored, of one scope, source and key or of all, in this order.

        `after`: the last record of a page, which the next page follows.
        """
        return self.runner.run(looking.records(scope, source, key, after, limit))

    async def arecords(
        self,
        scope: str | None = None,
        *,
        source: str | None = None,
        key: str | None = None,
        after: Record | None = None,
        limit: int = 10_000,
    ) -> list[Record]:
        """The async twin of `records`."""
        return await self.runner.arun(looking.records(scope, source, key, after, limit))

    def get_job(self, id: UUID | str) -> Job[Any]:
        """A handle on a job by its id, which may be text. It does not ask the database."""
        return Job(validation.uuid("id", id), self)

    def queue(self, name: str) -> Queue:
        """A handle on a queue by its name. It does not ask the database."""
        return Queue(validation.identifier("the name of a queue", name), self.runner)

    def worker(self, name: str) -> Worker:
        """A handle on a worker by its name. It does not ask the database."""
        return Worker(validation.identifier("the name of a worker", name), self.runner)

    _own_task = staticmethod(own_task)

    def get_schedule(self, name: str) -> ScheduleHandle:
        """A handle on a schedule by its name. It does not ask the database."""
        return ScheduleHandle(validation.identifier("the name of a schedule", name), self)

    def add_schedule(
        self,
        name: str,
        task: Task[..., Any, Any] | DjangoTask | str,
        *,
        connection: SyncConnection | None = None,
        **options: Unpack[NewSchedule],
    ) -> ScheduleHandle:
        """Make a schedule while workers run, such as one of a customer: `app.add_schedule("acme", report, every="1h")`.

        No app declares it, so deploys leave it alone, until `remove`. ConfigError: there is one of this name. With a
        connection, it exists if that transaction commits.
        """
        carry_out(scheduling.adding(self, name, task, options), lambda one: self.runner.run(one, connection))
        return ScheduleHandle(name, self)

    async def aadd_schedule(
        self,
        name: str,
        task: Task[..., Any, Any] | DjangoTask | str,
        *,
        connection: AsyncConnection | None = None,
        **options: Unpack[NewSchedule],
    ) -> ScheduleHandle:
        """The async twin of `add_schedule`."""
        await acarry_out(scheduling.adding(self, name, task, options), lambda one: self.runner.arun(one, connection))
        return ScheduleHandle(name, self)

    def schedules(self) -> list[ScheduleInfo]:
        """All schedules, as `outlive schedules` lists them: those of apps, of operators and of `add_schedule`."""
        return carry_out(scheduling.listed(), self.runner.run)

    async def aschedules(self) -> list[ScheduleInfo]:
        """The async twin of `schedules`."""
        return await acarry_out(scheduling.listed(), self.runner.arun)

    def jobs(self, *, limit: int = 100, **which: Unpack[JobFilters]) -> list[JobInfo]:
        """The jobs that match, the newest first, as `outlive jobs` lists them: `app.jobs(state="failed")`."""
        return carry_out(looking.first_jobs(which, limit), self.runner.run)

    async def ajobs(self, *, limit: int = 100, **which: Unpack[JobFilters]) -> list[JobInfo]:
        """The async twin of `jobs`."""
        return await acarry_out(looking.first_jobs(which, limit), self.runner.arun)

    def workers(self) -> list[WorkerInfo]:
        """The workers, live ones first, as `outlive workers` lists them: those that have ended are kept for a while."""
        return [*map(looking.worker_info, self.runner.run(store.list_workers()))]

    async def aworkers(self) -> list[WorkerInfo]:
        """The async twin of `workers`."""
        return [*map(looking.worker_info, await self.runner.arun(store.list_workers()))]

    def get_batch(self, id: UUID) -> Batch:
        """A handle on a batch by its id. It does not ask the database."""
        return Batch(id, self.runner)

    def batch(
        self,
        name: str,
        *,
        on_success: BoundJob[Any] | None = None,
        on_failure: BoundJob[Any] | None = None,
        on_done: BoundJob[Any] | None = None,
        id: UUID | None = None,
        connection: AnyConnection | None = None,
    ) -> BatchBlock:
        """Open a batch with `with` or `async with`, and close it at the end of the block. Its jobs are those that are
        enqueued with `task.using(batch=batch)`, and no others.

        When all of them have ended, the callbacks are enqueued in the same transaction. With a connection, the batch
        is opened and closed in its transaction. Opening a batch with an id that exists continues that one.
        """
        batch = Batch(id or new_job_id(), self.runner, connection)
        callbacks = {"on_success": on_success, "on_failure": on_failure, "on_done": on_done}
        jobs = {event: self.traced(callback(event, job)) for event, job in callbacks.items() if job is not None}
        opening = store.open_batch(batch.id, validation.identifier("the name of a batch", name), **jobs)
        return BatchBlock(batch, opening)

    def enqueue_many(self, jobs: Iterable[BoundJob[R]], *, connection: SyncConnection | None = None) -> list[Job[R]]:
        """Enqueue all of them or none, in one transaction."""
        with carrying.enqueuing(self.config, connection) as carry:
            requests = carry([job.request for job in jobs])
            statements = self._statements(requests, notify=connection is not None or self.runner.joins)
            return self._handles(requests, self.runner.run_all(statements, connection))

    async def aenqueue_many(
        self, jobs: Iterable[BoundJob[R]], *, connection: AsyncConnection | None = None
    ) -> list[Job[R]]:
        """The async twin of `enqueue_many`."""
        with carrying.enqueuing(self.config, connection) as carry:
            requests = carry([job.request for job in jobs])
            statements = self._statements(requests, notify=connection is not None or self.runner.joins)
            return self._handles(requests, await self.runner.arun_all(statements, connection))

    def enqueue_stream(self, jobs: Iterable[BoundJob[Any]], *, connection: SyncConnection | None = None) -> int:
        """Enqueue any number of jobs in little memory, and return how many. Each portion commits by itself.

        If a portion fails, the ones before it stay enqueued. Repeating the call makes no job twice if the jobs have
        their own ids. With a connection, all of them are part of its transaction.
        """
        taken, count, sent = portions(job.request for job in jobs), 0, None
        if (connection := self.runner.transaction() if connection is None else connection) is not None:
            with carrying.enqueuing(self.config, connection) as carry:
                for portion in taken:
                    self.runner.run_all(self._statements(carry(portion), notify=True), connection)
                    count += len(portion)
            return count
        from concurrent.futures import ThreadPoolExecutor  # Not at the top: job processes would pay for it.

        # The next portion is packed while the database writes the last one.
        with carrying.enqueuing(self.config, connection) as carry, ThreadPoolExecutor(1) as sender:
            for portion in taken:
                statements = self._statements(carry(portion))
                if sent is not None:
                    sent.result()
                sent = sender.submit(self.runner.run_all, statements)
                count += len(portion)
                time.sleep(0)  # Lets the other thread send.
            if sent is not None:
                sent.result()
        return count

    async def aenqueue_stream(self, jobs: Iterable[BoundJob[Any]], *, connection: AsyncConnection | None = None) -> int:
        """The async twin of `enqueue_stream`."""
        count = 0
        with carrying.enqueuing(self.config, connection) as carry:
            for portion in portions(job.request for job in jobs):
                statements = self._statements(carry(portion), notify=connection is not None or self.runner.joins)
                await self.runner.arun_all(statements, connection)
                count += len(portion)
        return count

    def traced(self, request: JobRequest) -> JobRequest:
        """A job that is enqueued later, with the trace context of now."""
        return carrying.loaded(self.config, [request])[0]

    def check(self, request: JobRequest) -> None:
        """Refuse arguments that are larger than the limit."""
        if len(request.args) > (limit_bytes := self.config.max_args_bytes):
            raise BadArguments(
                f"the arguments of a job of {request.task} have {len(request.args):,} bytes, over the limit of "
                f"{limit_bytes:,} (max_args_bytes): store them elsewhere and pass a reference"
            )

    def _statements(self, requests: list[JobRequest], *, notify: bool = False) -> list[Statement[dict[UUID, UUID]]]:
        limit_bytes = self.config.max_args_bytes
        for request in requests:
            if len(request.args) > limit_bytes:
                self.check(request)
        taken = [requests] if len(requests) == 1 else portions(requests)
        return [store.enqueue(portion, max_args_bytes=limit_bytes, notify=notify) for portion in taken]

    def _handles(self, requests: list[JobRequest], answers: list[dict[UUID, UUID]]) -> list[Job[Any]]:
        existing: dict[UUID, UUID] = functools.reduce(operator.or_, answers, {})
        return [Job(existing.get(request.id, request.id), self) for request in requests]

    def decode_result(self, task: str, data: bytes) -> object:
        """A result as its task is annotated. The result of a task that this app does not have is plain JSON."""
        return self.tasks[task].codec.decode_result(data) if task in self.tasks else wire.decode(data)
