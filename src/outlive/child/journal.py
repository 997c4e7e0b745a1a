"""What a durable job has kept: the steps of its earlier attempts, and those of this one.

A step is found by its name: that of its function, with a number from the second call on, or one that the job gives it.
A step that another one calls is kept below that: `outer > inner`. So it has its name whether or not `outer` runs again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from outlive import job_gateway, wire
from outlive.child import talks
from outlive.child.steps import BELOW
from outlive.child.talks import Talk
from outlive.child.timer import atime_limit, no_limit, time_limit
from outlive.errors import BadArguments, Cancel, Fail, OutliveError, Retry, Snooze, StaleAttempt
from outlive.protocol import CHECKPOINT, MAX_STEP_BYTES, MAX_STEP_CHARS, MAX_STEPS, KeptStep, Run, Wait
from outlive.wire import NotJson

if TYPE_CHECKING:
    from outlive.child.channel import Channel
    from outlive.child.steps import Step

MAX_ARGUMENTS_CHARS = 200
DECIDED = Cancel | Fail | Retry | Snooze | StaleAttempt  # They say how the job ends, or that its attempt has ended.
TIMED_OUT = "timed out"  # What a wait for a signal is kept with, in place of arguments, if the signal did not come.

_came_with_job = msgspec.json.Decoder(list[tuple[str, msgspec.Raw, str | None]])
_ids = msgspec.json.Decoder(list[UUID])
_inside: ContextVar[str] = ContextVar("_inside", default="")  # The step whose code runs. Threads don't inherit it.


class _Kept(NamedTuple):
    value: bytes
    arguments: str | None


class Call(NamedTuple):
    """A call of a step, with its arguments as text, and what was kept under its name."""

    name: str
    arguments: str
    found: _Kept | None
    began: float


class Journal:
    def __init__(self, run: Run, channel: Channel) -> None:
        self._run, self._channel = run, channel
        self._kept = _earlier(run, channel)
        last = self._kept.pop(CHECKPOINT, None)
        self.last_checkpoint: object = None if last is None else wire.decode(last.value)
        self._bytes = sum(len(one.value) for one in self._kept.values())
        self._calls: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """How often each step was called, by the step that calls it."""
        self._under_way: dict[str, str] = {}  # The steps that are under way, by their names without a number.
        self._waits_in: str | None = None
        self._failed: dict[str, tuple[float, str]] = {}  # The steps that have raised: when, and what.
        self._effects: set[str] = set()  # The steps that this attempt keeps, or has tried to keep, with `once`.

    def take(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a step: what was kept, or what its function returns, which is kept then."""
        with self._call_of(step, args, kwargs) as call:
            if call.found is not None:
                return _decoded(step, call.name, call.found.value)
            for pause_s in _pauses(step):
                try:
                    with self._code_of(call.name), time_limit(step.timeout_s, f"the step {call.name}"):
                        value = step.function(*args, **kwargs)
                    break
                except Exception as error:
                    if pause_s is None or isinstance(error, DECIDED):
                        raise
                    _note_retry(call.name, error, pause_s)
                    time.sleep(pause_s)
            return self._channel.talk(self.keep(step, call, value))

    async def atake(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The async twin of `take`."""
        import asyncio  # Not at the top: it takes longer than most steps.

        with self._call_of(step, args, kwargs) as call:
            if call.found is not None:
                return _decoded(step, call.name, call.found.value)
            for pause_s in _pauses(step):
                try:
                    with self._code_of(call.name):
                        async with atime_limit(step.timeout_s, f"the step {call.name}"):
                            value = await step.function(*args, **kwargs)
                    break
                except Exception as error:
                    if pause_s is None or isinstance(error, DECIDED):
                        raise
                    _note_retry(call.name, error, pause_s)
                    await asyncio.sleep(pause_s)
            return await self._channel.atalk(self.keep(step, call, value))

    @contextmanager
    def _call_of(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Call]:
        """A second call without a name of its own must wait until the first one is kept."""
        outer = _inside.get()
        base = (outer and f"{outer}{BELOW}") + (step.name if step.label is None else f"{step.name}:{step.label}")
        if base in self._under_way:
            raise OutliveError(
                f"two calls of the step {base} are under way at once, so their order is not known when the job runs"
                f' again: give each a name, as in {step.name}.named("page-7")(…)'
            )
        if self._waits_in is not None:
            raise OutliveError(f"the step {base} can't begin: the job waits in {self._waits_in}")
        found: _Kept | None = None
        name = self._next_name(base, outer)
        if len(name.encode()) > MAX_STEP_CHARS:
            raise OutliveError(f"the name of the step {name[:100]}… has more than {MAX_STEP_CHARS:,} bytes")
        self._under_way[base] = name
        try:
            given = _described(step, args, kwargs)
            found = self._found(name, given)
            if found is None:
                self._channel.note_steps(self._under_way.values())
            yield Call(name, given, found, time.monotonic())
        except Exception as error:
            self._forgive(name)
            self._failed[name] = time.monotonic(), type(error).__name__
            raise
        finally:
            del self._under_way[base]
            if found is None:
                self._channel.note_steps(self._under_way.values())

    def _next_name(self, base: str, outer: str = "") -> str:
        calls = self._calls[outer]
        calls[base] += 1
        return base if calls[base] == 1 else f"{base}#{calls[base]}"

    def sleep(self, after_s: float) -> Talk[None]:
        """Wait for this time, unless an earlier attempt has."""
        if (name := self._next_name("sleep")) not in self._kept:
            yield from self._wait(name, after_s=after_s)

    def receive(self, signal: str, after_s: float | None) -> Talk[tuple[str, bytes | None]]:
        """The step of this wait, and the next signal of this name as JSON; None if it does not come in this time."""
        name = self._next_name(f"receive:{signal}")
        found = self._kept.get(name) or (yield from self._wait(name, signal=signal, after_s=after_s))
        return name, None if found.arguments == TIMED_OUT else found.value

    def spawn_and_wait(self, spawns: bytes) -> Talk[list[UUID]]:
        """Spawn jobs, and wait until they have ended. Returns their ids, in the order of the spawns. If an earlier
        attempt has spawned them, some may not have ended: `wait_for` waits for these."""
        name = self._next_name("gather")
        return _ids.decode((self._kept.get(name) or (yield from self._wait(name, spawns=spawns))).value)

    def wait_for(self, ids: list[UUID]) -> Talk[None]:
        """Wait again for the jobs of the last `spawn_and_wait`."""
        number = self._calls[""]["gather"]
        yield from self._wait("gather" if number == 1 else f"gather#{number}", needs=[one.bytes for one in ids])

    def _wait(self, name: str, **what: Any) -> Talk[_Kept]:
        """Wait in a step. If this process is kept until the wait is over, it goes on with a new attempt."""
        if inside := _inside.get():
            raise OutliveError(f"the step {inside} can't wait in {name}: only the job itself can, between its steps")
        if busy := [*self._under_way.values(), *filter(None, [self._waits_in])]:
            raise OutliveError(f"the job can't wait in {name} while it is in {', '.join(busy)}: wait for one at a time")
        if name not in self._kept:
            self._expect_room(name)
        self._go_on(name, time.monotonic())
        self._waits_in = name
        try:
            with no_limit():
                waited = yield from talks.wait(Wait(self._run.token, name, **what))
        finally:
            self._waits_in = None
        self._run.token, self._run.attempt = waited.token, waited.attempt
        if (account := job_gateway.account()) is not None:
            account.token = waited.token
        found = self._kept[name] = _Kept(waited.value or b"null", None if waited.received else TIMED_OUT)
        self._bytes += len(found.value)
        return found

    def _forgive(self, name: str) -> None:
        """This step has ended: what has failed below it, or under its name before, matters no more."""
        for failed in list(self._failed):
            if f"{failed}{BELOW}".startswith(f"{name}{BELOW}"):
                self._failed.pop(failed, None)

    def _go_on(self, name: str, began: float) -> None:
        """Something new is kept. Warn of the steps that had failed before that began: in a replay they may succeed."""
        for failed, (at, error) in list(self._failed.items()):
            if at <= began:
                self._failed.pop(failed, None)
                words = (
                    "the step %s raised %s, and the job went on to %s: no error is kept, so a replay runs %s again and"
                    " may take another way. Catch the error in a step that returns what was found, such as None"
                )
                _warn(words, failed, error, name, failed)

    @contextmanager
    def _code_of(self, name: str) -> Iterator[None]:
        """The code of a step. If it runs again, what it calls has the same names as before."""
        self._calls.pop(name, None)
        before = _inside.set(name)
        try:
            yield
        finally:
            _inside.reset(before)

    def _found(self, name: str, given: str) -> _Kept | None:
        """What was kept under this name."""
        if (found := self._kept.get(name)) is not None and found.arguments not in (None, given):
            words = "the step %s was kept for %s, and is called with %s now: the kept value is used"
            _warn(words, name, found.arguments, given)
        return found

    def keep(self, step: Step[..., Any], call: Call, value: object) -> Talk[object]:
        took_s = time.monotonic() - call.began
        try:
            encoded, fault = step.codec.kept(value)
        except NotJson as error:  # The step would be taken again, and refused again.
            raise Fail(f"the step {call.name} can't be kept: {error}") from None
        if fault:  # A replay would get something else than this run.
            value = step.codec.decode_result(encoded)
            words = "the step %s gives a %s, now and in a replay, and not what it returned: %s"
            _warn(words, call.name, type(value).__name__, fault)
        self._bytes += len(encoded)
        self._expect_room(call.name)
        self._forgive(call.name)
        self._go_on(call.name, call.began)
        keep, kept = KeptStep(call.name, encoded, call.arguments, took_s, step.relaxed, self._run.token), encoded
        if step.relaxed:
            self._channel.keep_later("step", keep)
        else:
            kept = yield from talks.keep(keep)
        self._kept[call.name] = _Kept(kept, call.arguments)
        return value if kept == encoded else _decoded(step, call.name, kept)

    def _expect_room(self, name: str) -> None:
        if len(self._kept) + len(self._effects) >= MAX_STEPS or self._bytes > MAX_STEP_BYTES:
            raise Fail(
                f"the step {name} can't be kept: a job keeps at most {MAX_STEPS:,} steps and {MAX_STEP_BYTES:,} bytes"
                " of values. Let it enqueue further jobs or restart, or keep addresses in place of data"
            )

    def has_effect(self, name: str) -> bool:
        """Whether an earlier attempt has made this effect. If not, this one is about to ask the database for it."""
        if name in self._kept:
            return True
        if name not in self._effects:
            self._expect_room(name)
            self._go_on(name, time.monotonic())
            self._effects.add(name)
        return False

    def checkpoint(self, data: object, encoded: bytes) -> None:
        """Keep the step that replaces the one before."""
        self.last_checkpoint = data
        self._channel.keep_later(CHECKPOINT, KeptStep(CHECKPOINT, encoded, None, None, True, self._run.token))


def _earlier(run: Run, channel: Channel) -> dict[str, _Kept]:
    if run.steps is not None:
        rows = _came_with_job.decode(run.steps) if run.steps else []
        return {name: _Kept(bytes(value), arguments) for name, value, arguments in rows}
    fetched = channel.talk(talks.steps())
    return {name: _Kept(value or b"null", arguments) for name, value, arguments in fetched}


def _decoded(step: Step[..., Any], name: str, kept: bytes) -> Any:
    """The value of a step as its annotation says, or as plain JSON, with a warning, if it is something else."""
    try:
        return step.codec.make().result.decode(kept, "the value")
    except Exception as error:  # Classes of the user's own may raise anything.
        _warn("the step %s has kept what does not fit its type, and gives it as plain JSON: %s", name, error)
        return step.codec.decode_result(kept)


def _described(step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments as text; of long ones the beginning and a hash. What JSON can't carry is as Python prints it."""
    try:
        packed = step.codec.pack(args, kwargs)
    except BadArguments:
        packed = repr((args, kwargs)).encode(errors="replace")
    text = packed.decode(errors="replace").replace("\0", "")
    if len(text) <= MAX_ARGUMENTS_CHARS:
        return text
    import hashlib

    return f"{text[:MAX_ARGUMENTS_CHARS]}… {hashlib.blake2b(packed, digest_size=8).hexdigest()}"


def _pauses(step: Step[..., Any]) -> Iterator[float | None]:
    """How long to wait after each call that raises; None: it was the last."""
    for number in range(1, step.attempts):
        yield min(step.backoff_s * 2 ** (number - 1), 3600.0)
    yield None


def _note_retry(name: str, error: Exception, pause_s: float) -> None:
    _warn("the step %s raised %s: %s; it is tried again in %g s", name, type(error).__name__, error, pause_s)


def _warn(words: str, *values: object) -> None:
    import logging  # Not at the top: each fork would pay for it.

    logging.getLogger("outlive.job").warning(words, *values)
