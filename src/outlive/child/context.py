"""What a job knows and may ask for while it runs: `outlive.current()`."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast, overload
from uuid import UUID

import msgspec

from outlive import caller_connections, job_gateway, luggage, validation, wire
from outlive.annotations import form_of
from outlive.arguments import Codec
from outlive.child import talks
from outlive.child.journal import Journal
from outlive.child.steps import part_of_name
from outlive.child.talks import Talk
from outlive.errors import BadArguments, Fail, NotReceived, OutliveError, Restarted, WrongConnection
from outlive.model import JobRequest, as_json
from outlive.protocol import MAX_CHECKPOINT_BYTES, MAX_PAYLOAD_BYTES, MAX_PROGRESS_CHARS, Progress, Run
from outlive.statement import Statement

if TYPE_CHECKING:
    from outlive.caller_connections import AsyncConnection, Borrowed, SyncConnection
    from outlive.child.channel import Channel

MAX_KEY_BYTES = 1000  # Scope, source and key of a record share a row of an index, which takes at most 2704 bytes.

R = TypeVar("R")
own_task: ContextVar[object] = ContextVar("own_task", default=None)
"""The task of asyncio that calls the function of an async job. The tasks that it begins inherit it."""


class NoJob(OutliveError):
    """outlive.current() was called where no job runs."""


class Enqueuing(Protocol):
    @property
    def settings(self) -> Mapping[str, object]: ...
    def check(self, request: JobRequest) -> None: ...
    def traced(self, request: JobRequest) -> JobRequest: ...


class Spawned(Protocol[R]):
    """The type of `task.job(…)`, for a job that returns R."""

    @property
    def app(self) -> Enqueuing: ...
    @property
    def request(self) -> JobRequest: ...
    def results(self, ids: list[UUID]) -> list[R]: ...


class Findings:
    """The records and the spawned jobs of one attempt, which are stored when it succeeds."""

    __slots__ = ("_record_bytes", "_records", "_spawn_bytes", "_spawns", "unawaited")

    def __init__(self) -> None:
        self._records: list[object] = []
        self._spawns: list[msgspec.Raw] = []
        self._record_bytes = self._spawn_bytes = 0
        self.unawaited = False  # The job has called `acomplete`, and did not await it.

    def add_record(self, record: dict[str, object]) -> None:
        self._record_bytes += len(wire.encode(record, "the record"))
        if self._record_bytes > MAX_PAYLOAD_BYTES:
            raise BadArguments(f"the records of one job have more than {MAX_PAYLOAD_BYTES:,} bytes")
        self._records.append(record)

    def add_spawns(self, jobs: list[bytes]) -> None:
        self._spawn_bytes += sum(map(len, jobs))
        if self._spawn_bytes > MAX_PAYLOAD_BYTES:
            raise BadArguments(f"the jobs that one job spawns have more than {MAX_PAYLOAD_BYTES:,} bytes")
        self._spawns += map(msgspec.Raw, jobs)

    def encode(self) -> tuple[bytes | None, bytes | None]:
        """Records and spawned jobs as JSON. The job may have changed a record's data since, so it is checked again."""
        records = wire.encode(self._records) if self._records else None
        return records, msgspec.json.encode(self._spawns) if self._spawns else None


class Context:
    """One attempt, as its job sees it: `source` is the name of its source and `worker` its worker's id."""

    __slots__ = ("_channel", "_codec", "_findings", "_inputs", "_journal", "_run", "source", "worker")

    def __init__(self, run: Run, channel: Channel, findings: Findings, codec: Codec) -> None:
        self.source, self.worker = run.source, channel.worker
        self._run, self._channel, self._findings, self._codec = run, channel, findings, codec
        self._inputs: list[Any] | None = None
        self._journal: Journal | None = None

    @property
    def journal(self) -> Journal:
        """What this job has kept."""
        if self._journal is None:
            made = Journal(self._run, self._channel)
            self._journal = self._journal or made  # Another thread may have made one meanwhile.
        return self._journal

    @property
    def attempt(self) -> int:
        """The number of this attempt. After a wait it is a new one."""
        return self._run.attempt

    @property
    def failures(self) -> int:
        """How many earlier attempts have failed, as `max_attempts` counts: no crash, loss, release or wait is one."""
        return self._run.failures

    @property
    def last_attempt(self) -> bool:
        """Whether the job has failed for good if this attempt fails. What `fail_on` names ends it with any attempt."""
        return self._run.decisive

    @property
    def token(self) -> int:
        """The token of this attempt. After a wait it is a new one."""
        return self._run.token

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return UUID(bytes=self._run.job_id)

    @property
    def task(self) -> str:
        """The name of its task, as the job has it: it may be one that the task had before."""
        return self._run.task

    @property
    def queue(self) -> str:
        """The queue that the job was claimed from."""
        return self._run.queue

    @property
    def baggage(self) -> dict[str, str]:
        """The texts that this job carries, as do the jobs that it enqueues: `outlive.baggage`."""
        return self._run.baggage

    @property
    def args(self) -> Any:
        """The arguments as they came: JSON, by name where possible. Large ones are fetched each time."""
        args = self._run.args
        return wire.decode_or_text(self._channel.talk(talks.arguments()) if args is None else args)

    @property
    def batch_id(self) -> UUID | None:
        """The batch that this job belongs to. `task.using(batch=context.batch_id)` adds jobs to it."""
        id = self._channel.call("batch", b"")
        return UUID(bytes=id) if id else None

    @property
    def stopping(self) -> bool:
        """Whether the worker is shutting down: save your work and return soon."""
        return self._channel.stopping()

    @property
    def inputs(self) -> list[Any]:
        """The results of the jobs that this one has waited for, in the order of `after`; None for one without result.

        They are fetched when they are first used.
        """
        if self._inputs is None:
            self._inputs = [None if one is None else wire.decode(one) for one in self._channel.talk(talks.inputs())]
        return self._inputs

    def progress(self, current: float | None = None, total: float | None = None, message: str | None = None) -> None:
        """Show how far the job is, and that it is not stalled. The next attempt does not see this."""
        if message is not None:
            # Cut it first: each of the other steps makes a copy.
            message = message[:MAX_PROGRESS_CHARS].replace("\0", "").encode("utf-8", "replace").decode()
        now, most = (None if number is None else float(number) for number in (current, total))
        self._channel.send(Progress(self.token, now, most, message))

    @property
    def last_checkpoint(self) -> object:
        """What the job has kept with `checkpoint`, in this attempt or an earlier one; None if nothing."""
        return self.journal.last_checkpoint

    def checkpoint(self, data: object) -> None:
        """Keep data for the next attempt, which finds it in `last_checkpoint`. It replaces what was kept before."""
        encoded = wire.encode(data, "the checkpoint")
        if len(encoded) > MAX_CHECKPOINT_BYTES:
            raise BadArguments(
                f"the checkpoint has {len(encoded):,} bytes, over the limit of {MAX_CHECKPOINT_BYTES:,}:"
                " store the data elsewhere and keep only its address here"
            )
        self.journal.checkpoint(data, encoded)

    def record(self, scope: str, key: str, data: object, *, strength: float = 1.0) -> None:
        """Store a finding under its key when the job succeeds, unless a stronger one, or one as strong, is there."""
        for name, text in (("scope", scope), ("key", key)):
            # wire.encode refuses surrogates, and explains why.
            if not isinstance(text, str) or not 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES:
                raise BadArguments(
                    f"the {name} of a record is {text!r:.100}: it must be text of 1 to {MAX_KEY_BYTES} bytes of UTF-8"
                )
        self._findings.add_record({"scope": scope, "key": key, "data": data, "strength": float(strength)})

    def spawn(self, *jobs: Spawned[Any]) -> None:
        """Enqueue these jobs when this one succeeds, in the same transaction. If it does not, they are not enqueued."""
        self._findings.add_spawns([as_json(one) for one in _requests(jobs)])

    def sleep(self, duration: validation.Duration) -> None:
        """Wait for this time. The job holds no slot meanwhile; it may go on in another process, after its steps."""
        self._channel.talk(self.journal.sleep(validation.seconds("duration", duration)))

    async def asleep(self, duration: validation.Duration) -> None:
        """The async twin of `sleep`."""
        await self._until_over(self.journal.sleep(validation.seconds("duration", duration)))

    @overload
    def receive(self, signal: str, kind: type[R], *, timeout: validation.Duration | None = None) -> R: ...
    @overload
    def receive(self, signal: str, kind: Any = ..., *, timeout: validation.Duration | None = None) -> Any: ...
    def receive(self, signal: str, kind: Any = Any, *, timeout: validation.Duration | None = None) -> Any:
        """The next signal of this name that was sent to this job, as this type. It waits for it like `sleep`.

        NotReceived if it does not come within `timeout`.
        """
        return self._channel.talk(self._receive(signal, kind, timeout))

    def _receive(self, signal: str, kind: Any, timeout: validation.Duration | None) -> Talk[Any]:
        after_s = None if timeout is None else validation.seconds("timeout", timeout)
        step, value = yield from self.journal.receive(part_of_name("signal", signal), after_s)
        if value is None:
            raise NotReceived(f"the signal {signal} did not come within {after_s:g} s")
        try:
            return form_of(kind, current).decode(value, f"the signal {signal}")
        except BadArguments as error:  # Each attempt receives it.
            way_out = f"`outlive supply {self.job_id} {shlex.quote(step)} JSON --replace` gives it another value"
            raise BadArguments(f"{error}; {way_out}") from error

    @overload
    async def areceive(self, signal: str, kind: type[R], *, timeout: validation.Duration | None = None) -> R: ...  # noqa: ASYNC109
    @overload
    async def areceive(self, signal: str, kind: Any = ..., *, timeout: validation.Duration | None = None) -> Any: ...  # noqa: ASYNC109
    async def areceive(self, signal: str, kind: Any = Any, *, timeout: validation.Duration | None = None) -> Any:  # noqa: ASYNC109
        """The async twin of `receive`."""
        return await self._until_over(self._receive(signal, kind, timeout))

    def gather(self, jobs: Iterable[Spawned[R]]) -> list[R]:
        """Enqueue these jobs, wait until all have ended, and return their results in this order.

        JobFailed if one has ended without a result. They are enqueued once, whatever happens to this job.
        """
        if not (listed := list(jobs)):
            return []
        ids = self._channel.talk(self.journal.spawn_and_wait(self._gathered(listed)))
        while True:
            try:
                return listed[0].results(ids)
            except TimeoutError:  # An earlier attempt has enqueued them, and was stopped before they had ended.
                self._channel.talk(self.journal.wait_for(ids))

    async def agather(self, jobs: Iterable[Spawned[R]]) -> list[R]:
        """The async twin of `gather`."""
        import asyncio  # Not at the top: every fork would pay for the libraries that come with it.

        if not (listed := list(jobs)):
            return []
        ids = await self._until_over(self.journal.spawn_and_wait(self._gathered(listed)))
        while True:
            try:
                return await asyncio.to_thread(listed[0].results, ids)
            except TimeoutError:
                await self._until_over(self.journal.wait_for(ids))

    def _gathered(self, jobs: list[Spawned[Any]]) -> bytes:
        """The jobs as JSON. Each names this one, so that its page leads here."""
        requests = luggage.with_options(_requests(jobs), {"gathered_by": str(self.job_id)})
        return msgspec.json.encode([msgspec.Raw(as_json(one)) for one in requests])

    async def _until_over(self, wait: Talk[R]) -> R:
        import asyncio  # As above.

        if own_task.get() not in (None, asyncio.current_task()):
            raise OutliveError(
                "a job waits in its own task only: await asleep, areceive(…, timeout=…) or agather there, without"
                " asyncio.wait_for, gather or create_task"
            )
        return await self._channel.until_over(wait)

    def complete(self, connection: SyncConnection, result: object = None) -> None:
        """End this attempt as succeeded in the transaction of `connection`: both commit together, or neither does."""
        borrowed = caller_connections.borrow(connection, "use `await context.acomplete(…)`")
        caller_connections.run_all(borrowed, [self._channel.talk(self._completion(result))])

    def acomplete(self, connection: AsyncConnection, result: object = None) -> Awaitable[None]:
        """The async twin of `complete`. If it is not awaited, the job fails, and is not retried."""
        caller_connections.expect_async(connection, _USE_COMPLETE)
        self._findings.unawaited = True
        return self._acomplete(connection, result)

    async def _acomplete(self, connection: AsyncConnection, result: object) -> None:
        self._findings.unawaited = False
        borrowed = await caller_connections.aborrow(connection, _USE_COMPLETE)
        await caller_connections.arun_all(borrowed, [await self._channel.atalk(self._completion(result))])

    def once(self, connection: SyncConnection, name: str) -> bool:
        """Whether an effect under this name is still to be made, in the transaction of `connection`.

        True once per job: the effect and the record that it was made commit together, or neither does.
        """
        borrowed = caller_connections.borrow(connection, "use `await job.aonce(…)`")
        if self.journal.has_effect(_once(name)):
            return False
        return caller_connections.run_all(borrowed, [self._channel.talk(self._first(borrowed, name))]) == [True]

    async def aonce(self, connection: AsyncConnection, name: str) -> bool:
        """The async twin of `once`."""
        borrowed = await caller_connections.aborrow(connection, "use `job.once(…)`, without await")
        if self.journal.has_effect(_once(name)):
            return False
        return await caller_connections.arun_all(
            borrowed, [await self._channel.atalk(self._first(borrowed, name))]
        ) == [True]

    def _first(self, borrowed: Borrowed, name: str) -> Talk[Statement[bool]]:
        if borrowed.commits_each():
            raise WrongConnection(
                "this connection commits each statement by itself, so the effect would not commit together with the"
                " record of it: begin a transaction first"
            )
        values = (self.token, (yield from talks.secret(completing=False)), _once(name))
        return Statement("once", _ONCE, values, lambda rows: bool(rows[0][0]))

    def restart(self, /, *args: Any, **kwargs: Any) -> NoReturn:
        """End this attempt, and let the job begin again with these arguments and without its steps, at no cost.

        It does not return. Arguments that don't fit the task are refused here.
        """
        packed = self._codec.pack(args, kwargs)
        if len(packed) > MAX_PAYLOAD_BYTES:
            raise BadArguments(f"the arguments have {len(packed):,} bytes, over the limit of {MAX_PAYLOAD_BYTES:,}")
        raise Restarted(packed)

    def _completion(self, result: object) -> Talk[Statement[None]]:
        """The statement that ends the attempt. From now on the supervisor leaves that to the job."""
        encoded = encode_result(result, self._codec, self._run.max_result_bytes)
        findings = self._findings.encode()
        secret = yield from talks.secret(completing=True)
        values = (self.token, secret, encoded, *findings)
        return Statement("complete", _COMPLETE, values, lambda rows: None)


_USE_COMPLETE = "use `context.complete(…)`, without await"
_ONCE = b"select outlive.once($1::bigint, $2::text, $3::text)"
_COMPLETE = b"select outlive.complete($1::bigint, $2::text, $3::json, $4::json, $5::json)"


def _requests(jobs: Iterable[Spawned[Any]]) -> list[JobRequest]:
    requests = list[JobRequest]()
    for job in jobs:
        if not hasattr(job, "request"):
            raise BadArguments(f"{job!r:.200} is no request for a job: pass task.job(…), as in label.job(7)")
        job.app.check(job.request)
        if job_gateway.is_elsewhere(job.app.settings.get("database_url")):
            task = job.request.task
            raise BadArguments(
                f"{task} is of an app with another database than this job's: enqueue it with .enqueue(…)"
            )
        requests.append(job.app.traced(job.request))
    return requests


def _once(name: str) -> str:
    """The name of a step that is kept in the job's own transaction."""
    return f"once:{validation.identifier('name', name)}"


def encode_result(value: object, codec: Codec, max_bytes: int) -> bytes:
    """A job's result as JSON."""
    encoded = codec.encode_result(value)
    if len(encoded) > max_bytes:
        raise Fail(f"the result has {len(encoded):,} bytes, over the limit of {max_bytes:,}")
    return encoded


def current() -> Context:
    """The job that this process runs."""
    if (context := job_gateway.context()) is None:
        raise NoJob("outlive.current() is for code that runs inside a job")
    return cast("Context", context)
