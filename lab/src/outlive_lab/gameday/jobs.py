"""The app of a game: each job writes a row when it begins and another row, its effect, when it is done.

The tables have no keys, so that an effect that happens twice shows.
"""

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4, uuid5

from psycopg.types.json import Json

import outlive
from outlive.client.declaring import TaskOptions
from outlive_lab.gameday.connections import CONNECT_S, Client, Connection, connect

# The game kills these jobs again and again: no number of kills puts them into quarantine. Only `give_up` fails.
SURVIVOR: TaskOptions = {
    "queue": "gameday",
    "max_attempts": 30_000,
    "max_crashes": 30_000,
    "max_losses": None,
    "backoff": [0.1],
    "timeout": "2m",
}
WARM: TaskOptions = {**SURVIVOR, "recycle_after": 50}
KILLER: TaskOptions = {**SURVIVOR, "max_crashes": 1}
# No process that runs one of these is killed alone, so none may go into quarantine. A frozen machine is frozen for
# longer than these times.
INNOCENT: TaskOptions = {**SURVIVOR, "max_crashes": 3, "max_losses": 3, "timeout": "10s", "stall": "9s"}
# It begins before all others, so that the time from the end of a wait is not that of a queue.
DURABLE: TaskOptions = {**SURVIVOR, "priority": 0}
# Many run beside each other in one process. It is killed only while it has at least two of them, so none may be
# charged with a crash.
SHARED: TaskOptions = {**DURABLE, "share": 100, "max_crashes": 3, "timeout": "90s"}
SETTLING: TaskOptions = {**SHARED, "share": 8}  # Each has a connection of its own.
ASIDE = "gameday aside"
"""The queue that is paused at times."""
OFFSPRING = UUID("6f75746c-6976-5000-8000-67616d656461")

TROUBLE = "GAMEDAY_TROUBLE"
"""The environment variable with the path of a file. While it exists, this module is broken or slow to import."""

BROKEN = "broken"
HESITATE_S = 0.3
SLOW_S = 3.0
STEPS = 5
STEP_S = 0.02
BLOCK_S = 7.0
"""How long a job blocks the loop that it shares: longer than `block_s`."""
SIGNAL = "go on"


class Stumbled(Exception):
    """The failure of a first attempt, or of an import."""


def _import_badly() -> None:
    """Be slow or fail, like an app in the middle of a deploy."""
    path = Path(os.environ.get(TROUBLE, "/nowhere"))
    if path.exists():
        if path.read_text() == BROKEN:
            raise Stumbled("the deploy is not finished")
        time.sleep(SLOW_S)


_import_badly()

app = outlive.App()
shop = app.source("gameday", rate_limit_per_minute=600_000, burst=1000, breaker_failures=30_000)
CALLING: TaskOptions = {**SURVIVOR, "source": shop}
_kept: Connection | None = None
_diary: Connection | None = None
"""Where the steps of a durable job write."""


@app.task(**SURVIVOR)
def note(work_s: float) -> None:
    """An effect, then a success: at least once."""
    _work(work_s)


@app.task(**SURVIVOR)
def pay(work_s: float) -> float:
    """An effect and its completion in one transaction: exactly once."""
    with _begun() as connection:
        time.sleep(work_s / 2)
        _complete(connection, work_s, before_s=max(work_s / 2, HESITATE_S), after_s=min(work_s / 10, 0.1))
    return work_s


@app.task(**SURVIVOR)
def stumble(work_s: float) -> None:
    """The same, but the first attempt fails."""
    with _begun() as connection:
        if outlive.current().attempt == 1:
            raise Stumbled("the first attempt fails on purpose")
        time.sleep(work_s)
        _complete(connection, None)


@app.task(**SURVIVOR)
def breed(work_s: float) -> None:
    """Enqueues another job, under the same id in each attempt, in its own batch if it has one."""
    context = outlive.current()
    offspring = uuid5(OFFSPRING, str(context.job_id))
    with _begun() as connection:
        note.using(id=offspring, batch=context.batch_id).enqueue(work_s)
        _complete(connection, None, spawned=offspring)


@app.task(**CALLING)
def call(work_s: float) -> None:
    """A job of a source: another statement claims it, and a lock on the source's row stops it."""
    _work(work_s)


@app.task(**WARM)
def stamp(work_s: float) -> None:
    """A warm job: its process and its connection serve the next one too."""
    _work(work_s, warm=True)


@app.task(**WARM)
def post(work_s: float) -> None:
    """A warm job with an effect and its completion in one transaction."""
    with _begun(warm=True) as connection:
        _complete(connection, None, before_s=work_s, after_s=work_s)


@app.task(**INNOCENT)
def pace(work_s: float) -> None:
    """Reports its progress, and has the limits that most jobs have."""
    with _begun() as connection:
        for _ in range(STEPS):
            time.sleep(work_s / STEPS)
            outlive.current().progress()
        _effect(connection)


@app.task(**SURVIVOR)
def give_up(work_s: float) -> None:
    """Fails for good."""
    with _begun():
        time.sleep(work_s)
        raise outlive.Fail("this job fails on purpose")


@app.task(**KILLER)
def kill(work_s: float) -> None:
    """Kills its process, and is quarantined for that."""
    with _begun():
        time.sleep(work_s)
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(**SURVIVOR)
def tell(batch: UUID, event: str) -> None:
    """The callback of a batch."""
    _work(0.0)


@app.schedule(every="1s", missed="all", name="gameday 1", args={"schedule": "gameday 1"})
@app.schedule(every="1s", missed="all", name="gameday 2", args={"schedule": "gameday 2"})
@app.task(**WARM)
def tick(schedule: str) -> None:
    _work(0.0, warm=True)


@outlive.step
def take(number: int) -> str:
    """Each run of this code returns another value."""
    assert _diary is not None
    value = uuid4().hex
    _mark(_diary, "taken", f"take:{number}", value)
    time.sleep(STEP_S)
    return value


@app.task(**DURABLE)
def endure(steps: int, pause_s: float, signals: int, children: list[float]) -> list[str]:
    """Steps, a sleep, signals, jobs that it gathers and an effect under `once`. Each happens once, whatever dies."""
    context = outlive.current()
    _take(range(steps // 2))
    _wait("sleep", lambda: context.sleep(pause_s), pause_s)
    for number in range(1, signals + 1):
        name = f"receive:{SIGNAL}" + (f"#{number}" if number > 1 else "")
        _wait(name, lambda: context.receive(SIGNAL, str))
    with _begun(again=True) as connection, connection.transaction():
        if context.once(connection, "ledger"):
            connection.execute("insert into outlive_gameday.ledger (job_id) values (%s)", [context.job_id])
            time.sleep(STEP_S)
    _take(range(steps // 2, steps))
    _wait("gather", lambda: context.gather(pay.job(work_s) for work_s in children), children)
    with _begun(again=True) as connection:
        _complete(connection, [])
    return []


def _take(numbers: Sequence[int]) -> None:
    global _diary
    with _begun(again=True) as _diary:
        for number in numbers:
            _mark(_diary, "passed", f"take:{number}", take.named(str(number))(number))


def _wait(step: str, wait: Callable[[], object], what: object = None) -> None:
    """Wait, without a connection."""
    with _begun(again=True) as connection:
        _mark(connection, "waits", step, what)
    value = wait()
    with _begun(again=True) as connection:
        _mark(connection, "passed", step, value)


def _mark(connection: Connection, kind: str, step: str, value: object) -> None:
    """Write where the code of a durable job is."""
    connection.execute(MARKS, _marked(kind, step, value))


def _marked(kind: str, step: str, value: object) -> list[object]:
    context = outlive.current()
    return [context.job_id, context.token, os.getpid(), kind, step, Json(value)]


client: Client


@app.lifespan
async def open_client() -> AsyncIterator[None]:
    global client
    client = Client(app.config.database_url)
    yield
    await client.close()


@outlive.step
async def take_beside(number: int) -> str:
    value = uuid4().hex
    await client.run(MARKS, _marked("taken", f"take_beside:{number}", value))
    await asyncio.sleep(STEP_S)
    return value


@app.task(**SHARED)
async def share(work_s: float, steps: int = 0, harm: str = "") -> str:
    """Waits beside others, in steps or without them. Some harm the process that they share."""
    context = outlive.current()
    print(context.job_id)
    await client.run(STARTS, [context.token, os.getpid(), context.job_id])
    for number in range(steps):
        value = await take_beside.named(str(number))(number)
        await client.run(MARKS, _marked("passed", f"take_beside:{number}", value))
    if steps:
        await client.run(MARKS, _marked("waits", "sleep", work_s))
        await context.asleep(work_s)
        await client.run(MARKS, _marked("passed", "sleep", None))
    else:
        await asyncio.sleep(work_s)
    _harm(harm)
    await client.run(EFFECTS, [context.job_id, context.token, None])
    return str(context.job_id)


@app.task(**SETTLING)
async def settle(work_s: float) -> str:
    """Shares its process too, and completes in a transaction of its own connection."""
    context = outlive.current()
    await client.run(STARTS, [context.token, os.getpid(), context.job_id])
    await asyncio.sleep(work_s)
    connection = await connect(app.config.database_url)
    try:
        async with connection.transaction():
            await connection.execute(EFFECTS.encode(), [context.job_id, context.token, None])
            await asyncio.sleep(work_s)
            await context.acomplete(connection, str(context.job_id))
            await asyncio.sleep(min(work_s, 0.1))
    except outlive.StaleAttempt:
        await client.run("insert into outlive_gameday.fenced (token) values (%s)", [context.token])
        raise
    finally:
        await connection.close()
    return str(context.job_id)


def _harm(how: str) -> None:
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
        case "block":
            time.sleep(BLOCK_S)


STARTS = "insert into outlive_gameday.starts (token, pid, job_id) values (%s, %s, %s)"
EFFECTS = "insert into outlive_gameday.effects (job_id, token, spawned) values (%s, %s, %s)"
MARKS = "insert into outlive_gameday.marks (job_id, token, pid, kind, step, value) values (%s, %s, %s, %s, %s, %s)"
COMPLETING = frozenset({"pay", "stumble", "breed", "post", "endure", "settle"})
SHARING = frozenset({"share", "settle"})
FATES = {"give_up": "failed", "kill": "quarantined", "share segfault": "quarantined", "share exit": "quarantined"}
"""The ends of jobs that do not succeed, by their task and, if they share a process, what they do to it."""


@contextmanager
def _begun(*, warm: bool = False, again: bool = False) -> Iterator[Connection]:
    """A connection to the game's database, after the row that says that the job has begun.

    Warm jobs share the connection of their process. It is closed after a failure: it may stay read-only for ever.
    A job that waits begins again with a new token; `again` writes the row only then.
    """
    global _kept
    connection = _kept if warm else None
    if connection is None or connection.closed or connection.broken:
        url = app.config.database_url
        assert url is not None, "the workers of a game get the address of its database"
        name = f"gameday {os.getpid()}"
        connection = Connection.connect(url, autocommit=True, connect_timeout=CONNECT_S, application_name=name)
    try:
        starts = "insert into outlive_gameday.starts (token, pid, job_id) select %(token)s, %(pid)s, %(job)s"
        if again:
            starts += " where not exists (select from outlive_gameday.starts where (token, pid) = (%(token)s, %(pid)s))"
        context = outlive.current()
        connection.execute(starts.encode(), {"token": context.token, "pid": os.getpid(), "job": context.job_id})
        yield connection
    except BaseException:
        connection.close()
        raise
    if warm:
        _kept = connection
    else:
        connection.close()


def _work(work_s: float, *, warm: bool = False) -> None:
    with _begun(warm=warm) as connection:
        time.sleep(work_s)
        _effect(connection)


def _effect(connection: Connection, spawned: UUID | None = None) -> None:
    context = outlive.current()
    connection.execute(EFFECTS, [context.job_id, context.token, spawned])


def _complete(
    connection: Connection, result: object, *, before_s: float = 0.0, after_s: float = 0.0, spawned: UUID | None = None
) -> None:
    """Complete the job, with a pause before and after, in which faults can happen."""
    context = outlive.current()
    try:
        with connection.transaction():
            _effect(connection, spawned)
            connection.pause_s = before_s
            context.complete(connection, result)
            time.sleep(after_s)
    except outlive.StaleAttempt:
        connection.execute("insert into outlive_gameday.fenced (token) values (%s)", [context.token])
        raise
