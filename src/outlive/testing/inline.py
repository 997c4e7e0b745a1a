"""Runs jobs in the test's own process, where a debugger and coverage work.

It claims and ends them with the statements of a worker, so retries, dependencies, batches, records and spawned jobs
are the real ones. There are no processes as in a worker, and so no limits of time and memory.
"""

from __future__ import annotations

import asyncio
import bdb
import os
import sys
import threading
import unittest
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
import psycopg

from outlive import db, job_gateway, luggage, statement, store, wire
from outlive.child.attempt import attempt, within
from outlive.child.boundary import ProcessStart
from outlive.child.channel import Channel
from outlive.child.telemetry import UNWATCHED
from outlive.config import Config
from outlive.errors import Cancel, OutliveError
from outlive.model import Claimed, Ended, Lane, LaneState
from outlive.policy import TaskRow, task_row
from outlive.protocol import Done, FromChild, KeptStep, Progress, Run, Wait, Waited
from outlive.states import FAULTS, Outcome, State
from outlive.testing.in_transaction import usable_afterwards
from outlive.worker.ending.outbox import never_accepted, refused, unless_completed
from outlive.worker.fleet.registration import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlive.client.app import App
    from outlive.client.task import Task

T = TypeVar("T")
_step, _wait = msgspec.msgpack.Decoder(KeptStep), msgspec.msgpack.Decoder(Wait)
_WAITING = frozenset({"outcomes", "batch_done"})
"""Statements by which a job waits for others: these must run meanwhile."""

_starts: WeakKeyDictionary[App, ProcessStart] = WeakKeyDictionary()
"""What each app runs once in this process, before its first job."""

WAITING = """
from (select w.task, w.queue, w.ready_at from outlive.waiting w union all
      select h.task, h.queue, h.ready_at from outlive.held h where h.why in ('key', 'suspended')) t
where t.task = any(%(tasks)s) and (%(queues)s::text[] is null or t.queue = any(%(queues)s))
"""
LATER = f"{WAITING} and t.ready_at > outlive.now() and t.ready_at < 'infinity'"
_MAKE_NEXT_DUE = f"""
with next as (select min(t.ready_at) as at {LATER}),
  waiting as (update outlive.waiting w set ready_at = outlive.now() from next where w.ready_at = next.at returning 1),
  held as (update outlive.held h set ready_at = outlive.now() from next where h.ready_at = next.at returning 1)
select exists (select from waiting) or exists (select from held)
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Ran:
    """An attempt that has run."""

    job_id: UUID
    """The job's id."""
    task: str
    """The name of its task."""
    attempt: int
    """Its number: 1 is the first one of its job."""
    outcome: Outcome
    """How it ended."""
    state: State
    """What has become of its job."""
    result: Any = None
    """What it returned, as its task is annotated."""
    error: str | None = None
    """The type and the message of what it raised."""
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """What it raised, if it ran in the test's process."""


def task_rows(tasks: Mapping[str, Task[..., Any, Any]]) -> list[TaskRow]:
    """What the database must know of tasks, as a worker tells it."""
    return [task_row(name, task.policy, task.app.config, task.app.follower) for name, task in tasks.items()]


def has_failed(ran: Ran) -> bool:
    return ran.outcome in FAULTS


def _for_the_test() -> tuple[type[BaseException], ...]:
    """Exceptions that are meant for the test: the attempt fails, and the test ends with them."""
    always = (KeyboardInterrupt, bdb.BdbQuit, unittest.SkipTest)
    if (pytest := sys.modules.get("pytest")) is None:
        return always
    return (*always, *(getattr(pytest, name).Exception for name in ("fail", "skip", "exit")))


def _max_attempts(task: Task[..., Any, Any], options: bytes | None) -> int:
    given = wire.decode(options) if options else {}
    of_task = task_row(task.name, task.policy, task.app.config, None).max_attempts
    return int(cast("dict[str, Any]", given).get("max_attempts") or of_task)


class Inline:
    """A worker without processes: it runs one job after the other, here."""

    def __init__(self, connection: db.Connection, tasks: Callable[[], Mapping[str, Task[..., Any, Any]]]) -> None:
        self._connection, self._tasks = connection, tasks
        self._me = Identity("pytest", 1, None)
        self._lock = threading.RLock()  # A job's threads use the same connection.
        self._ran: list[Ran] = []
        self._run(self._me.registering(Config()))

    def take_ran(self) -> list[Ran]:
        """The attempts that have run since the last call."""
        ran, self._ran = self._ran, []
        return ran

    def run_due(self, queues: Sequence[str] | None, *, raising: bool, limit: int) -> list[Ran]:
        """Run the jobs that are due, and those that they make due."""
        self.take_ran()
        ran: list[Ran] = []
        while (one := self.run_one(queues)) is not None:
            ran += self.take_ran()
            if raising and has_failed(one) and one.exception is not None:
                one.exception.add_note(f"in attempt {one.attempt} of job {one.job_id}, which is {one.state} now")
                raise one.exception
            if len(ran) > limit:
                [(task, _)] = Counter(one.task for one in ran).most_common(1)
                apps = {id(one.app): one.app for one in self._tasks().values()}.values()
                fires = any(one.task == task for app in apps for one in app.declared_schedules.values())
                why = "its schedule fires, so advance the clock less" if fires else "does a job enqueue itself?"
                raise OutliveError(f"more than {limit} attempts have run, most of {task}: {why}")
        return ran

    def run_one(self, queues: Sequence[str] | None) -> Ran | None:
        """Run the most urgent job that is due; None if no job is due."""
        claimed = self._claim(queues)
        if claimed is None:
            return None
        task = self._tasks()[claimed.task]
        kept = self._run(store.kept_by_jobs([claimed.id])).get(claimed.id, b"")
        run = Run(
            token=claimed.token,
            job_id=claimed.id.bytes,
            task=claimed.task,
            attempt=claimed.attempt,
            args=claimed.args,
            last=True,
            max_result_bytes=task.app.config.max_result_bytes,
            steps=kept,
            source=claimed.source,
            failures=claimed.failures,
            queue=claimed.queue,
            baggage=luggage.of(claimed.options),
            decisive=claimed.failures + 1 >= _max_attempts(task, claimed.options),
        )
        watched = _Watched(task)
        channel = _InlineChannel(self, self._me, claimed, queues)
        start = _starts.setdefault(task.app, ProcessStart(task.app.process_starts))
        with _inside(channel), usable_afterwards(self._connection):
            failed = start.run(channel.pid) if start.due else None
            done = attempt({run.task: watched}, run, channel, watchers=UNWATCHED, not_started=failed)
        done.took_s = -1.0  # Time, memory and output of this process are the test's.
        if channel.suspended:  # It waits, and this attempt leaves no trace.
            return Ran(claimed.id, claimed.task, claimed.attempt, Outcome.RELEASED, State.SUSPENDED)
        raised = watched.raised if failed is None else failed.error
        end = self._end(done, completing=channel.completing)
        outcome, state = self._run(store.ended([end.token]))[end.token]
        result = None if done.result is None else task.codec.decode_result(done.result)
        ran = Ran(claimed.id, claimed.task, claimed.attempt, outcome, state, result, end.error, raised)
        self._ran.append(ran)
        if isinstance(raised, _for_the_test()):
            raise raised
        return ran

    def make_next_due(self, queues: Sequence[str] | None) -> bool:
        """Let the jobs that are due next be due now, where no clock can be moved. False if no job waits."""
        given = {"tasks": list(self._tasks()), "queues": queues}
        return bool(self._connection.execute(_MAKE_NEXT_DUE.encode(), given).fetchall()[0][0])

    def _claim(self, queues: Sequence[str] | None) -> Claimed | None:
        tasks = list(self._tasks())
        self._run(store.cancel_expired())
        self._run(store.end_due(1000))
        self._run(store.check_late_ends())
        while self._run(store.follow_late_ends()):
            pass
        self._run(store.admit_due())  # Also jobs that were just released.
        found: list[LaneState] = self._run(store.unsourced_lanes(tasks, queues)).lanes
        found = [*found, *self._run(store.sourced_lanes(tasks, queues)).lanes]
        for one in sorted((lane for lane in found if lane.ready), key=lambda lane: (lane.priority, lane.ready_at)):
            lane = Lane(one.queue, one.source, one.task, one.priority, asks=one.source != "")
            claimed = self._run(store.end_and_claim(self._me.id, (), [lane], limit=1)).claimed
            if claimed:
                return claimed[0]
        return None

    def _end(self, done: Done, *, completing: bool) -> Ended:
        """Write how an attempt ended, unless its job has done so itself."""
        failed = done.outcome is Outcome.FAILED
        end = Ended(
            done.token,
            done.outcome,
            error=done.error,
            exit_code=1 if failed else None,
            stack=done.stack,
            result=done.result,
            final=done.final,
            after_s=done.after_s,
            records=done.records,
            spawns=done.spawns,
            restart=done.restart,
        )
        if completing:
            if end.token in self._run(store.ended([end.token])):
                return end
            end = unless_completed(end)
        try:
            with usable_afterwards(self._connection):
                self._write(end)
        except psycopg.Error as error:
            if not never_accepted(error):
                raise
            end = refused(end, error)
            self._write(end)
        return end

    def _write(self, end: Ended) -> None:
        if end.plain:
            self._run(store.end_and_claim(self._me.id, [end]))
        else:
            self._run(store.write_end(self._me.id, end))

    def _run(self, one: statement.Statement[T]) -> T:
        with self._lock:
            return db.run(self._connection, one)

    def answer(self, verb: str, body: bytes, token: int, queues: Sequence[str] | None) -> bytes:
        """What a worker answers to a call of its job."""
        with db.translated_errors():
            match verb:
                case "arguments":
                    return self._run(store.arguments(token, int(body))) or b""
                case "inputs":
                    first, skip = map(int, body.split())
                    return msgspec.msgpack.encode(self._run(store.inputs(token, first, skip)))
                case "batch":
                    found = self._run(store.batch_of(token))
                    return found[0].bytes if found and found[0] else b""
                case "steps":
                    return msgspec.msgpack.encode(self._run(store.kept_steps(token, body.decode())))
                case "step":
                    return self.keep(_step.decode(body), token)
                case "run":
                    asked = statement.read_asked(body)
                    if any(name in _WAITING for name, _ in asked):
                        while self.run_one(queues):  # As other workers would, meanwhile.
                            pass
                    statements = [store.asked_by_job(name, parameters, token) for name, parameters in asked]
                    with self._lock:
                        return statement.answer(db.run_all(self._connection, statements))
                case _:
                    raise OutliveError(f"a job asked for {verb}, which does not exist")

    def keep(self, step: KeptStep, token: int) -> bytes:
        [kept] = self._run(store.keep_steps(self._me.id, [token], [step])).values()
        return kept or b""

    def suspend(self, wait: Wait, run: Claimed) -> Waited | None:
        """Let a job wait; None if what it waits for is not there yet."""
        suspended = self._run(store.suspend(self._me.id, wait))
        if suspended.outcome == "cancelled":
            raise Cancel("cancelled on request")
        if suspended.outcome == "over":
            return Waited(run.token, run.attempt, True, suspended.value)
        self._run(store.unpark(self._me.id, [run.id]))  # No process is kept here: it is replayed.
        return None

    def report(self, progress: Progress) -> None:
        self._run(store.write_progress(self._me.id, [progress]))


class _InlineChannel(Channel):
    """A job's way to its worker, which is in the same process."""

    def __init__(self, worker: Inline, me: Identity, job: Claimed, queues: Sequence[str] | None) -> None:
        self._worker, self._me, self._job, self._queues = worker, me, job, queues
        self.pid, self.worker = os.getpid(), str(me.id)
        self.completing = False
        """The job ends its attempt in its own transaction."""
        self.suspended = False

    def stopping(self) -> bool:
        return False

    def send(self, frame: FromChild, *, now: bool = False) -> None:
        if isinstance(frame, Progress):
            self._worker.report(frame)

    def call(self, verb: str, body: bytes) -> bytes:
        if verb in ("complete", "secret"):
            self.completing = self.completing or verb == "complete"
            return self._me.secret_of(self._job.token).encode()
        if verb == "wait":
            waited = self._worker.suspend(_wait.decode(body), self._job)
            if waited is None:
                self.suspended = True
                raise _Suspended
            return msgspec.msgpack.encode(waited)
        return self._worker.answer(verb, body, self._job.token, self._queues)

    def keep_later(self, verb: str, step: KeptStep) -> None:
        self._worker.keep(step, self._job.token)

    def note_steps(self, names: Iterable[str]) -> None:
        pass

    def source_failed(self, source: str) -> None:
        pass


class _Suspended(BaseException):
    """Leaves the code of a job that waits, as the end of its process does in a worker."""


class _Watched:
    """A task whose exceptions are kept as they are. The attempt keeps only their text."""

    def __init__(self, task: Task[..., Any, Any]) -> None:
        self._task, self.policy, self.codec, self.surroundings = task, task.policy, task.codec, task.surroundings
        self.raised: BaseException | None = None

    def function(self, *args: Any, **kwargs: Any) -> Any:
        try:
            value = self._task.function(*args, **kwargs)
            if not isinstance(value, CoroutineType):
                return value
            return _awaited(within(self._task.app.lifespans if self.policy.share > 1 else (), value))
        except BaseException as error:
            self.raised = error
            raise


def _awaited(job: Coroutine[Any, Any, T]) -> T:
    """Run an async job in an event loop of its own, in a thread if the test has one here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(job)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, job).result()


@contextmanager
def _inside(channel: Channel) -> Iterator[None]:
    """What a job asks of outlive goes through this channel, as in a child. A job that waits goes on as before."""
    before, job_gateway.gateway = job_gateway.gateway, channel
    try:
        yield
    finally:
        job_gateway.gateway = before
