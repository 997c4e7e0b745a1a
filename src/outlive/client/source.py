"""A source: an outside service that jobs call, with limits that all workers share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from outlive import job_gateway, store
from outlive.errors import BadArguments, ConfigError, DatabaseUnreachable, OutliveError, SourceBusy, SourcePaused
from outlive.job_gateway import SourceAccount
from outlive.model import Grant, SourceLimits
from outlive.policy import Checks, Policy, parse
from outlive.statement import Statement
from outlive.validation import Duration, count, identifier, known, optional, positive, seconds

if TYPE_CHECKING:
    from outlive.client.cache import Cache
    from outlive.client.statement_runner import StatementRunner

T = TypeVar("T")
Parts = str | Sequence[object] | Mapping[str, object]
ASK_AGAIN_S = 5.0
"""The longest pause before a caller asks again, so that it notices a source that was paused meanwhile."""


class Limits(TypedDict, total=False):
    """Limits of a source that are set while workers run. None: as the app declares it."""

    rate_limit_per_minute: float | None
    burst: int | None
    max_concurrency: int | None
    breaker_failures: int | None
    breaker_pause: Duration | None


_SET: Checks = {
    "rate_limit_per_minute": ("rate_limit_per_minute", optional(positive)),
    **{name: (name, optional(count)) for name in ("burst", "max_concurrency", "breaker_failures")},
    "breaker_pause": ("breaker_pause_s", optional(lambda name, value: positive(name, seconds(name, value)))),
}


def limits_of(
    name: str,
    rate_limit_per_minute: float | None,
    burst: int,
    max_concurrency: int | None,
    breaker_failures: int,
    breaker_pause: Duration,
) -> SourceLimits:
    """The limits that an app declares, checked."""
    return SourceLimits(
        name=identifier("the name of a source", name),
        rate_limit_per_minute=optional(positive)("rate_limit_per_minute", rate_limit_per_minute),
        burst=count("burst", burst),
        max_concurrency=optional(count)("max_concurrency", max_concurrency),
        breaker_failures=count("breaker_failures", breaker_failures),
        breaker_pause_s=positive("breaker_pause", seconds("breaker_pause", breaker_pause)),
    )


class Source:
    """A source as the app declares it. Workers claim a job of a source only while the source admits it."""

    def __init__(self, limits: SourceLimits, runner: StatementRunner, cache: Callable[[], Cache]) -> None:
        self.name, self.limits = limits.name, limits
        self._runner, self._cache = runner, cache

    def __repr__(self) -> str:
        return f"Source({self.name!r})"

    def pause(self) -> bool:
        """Let no worker claim jobs of the source until it is resumed. Those that run go on. False, here and below, if
        no worker has declared it yet."""
        return self._runner.run(store.pause_source(self.name))

    async def apause(self) -> bool:
        """The async twin of `pause`."""
        return await self._runner.arun(store.pause_source(self.name))

    def resume(self) -> bool:
        """Let workers claim its jobs again, and close its breaker."""
        return self._runner.run(store.resume_source(self.name))

    async def aresume(self) -> bool:
        """The async twin of `resume`."""
        return await self._runner.arun(store.resume_source(self.name))

    def set(self, **limits: Unpack[Limits]) -> bool:
        """Override limits that the app declares, for all workers and at once: `set(rate_limit_per_minute=30)`. None
        takes an override back."""
        return self._runner.run(self._setting(limits))

    async def aset(self, **limits: Unpack[Limits]) -> bool:
        """The async twin of `set`."""
        return await self._runner.arun(self._setting(limits))

    def _setting(self, limits: Limits) -> Statement[bool]:
        known("source.set", "option", limits, _SET)
        if not limits:
            raise ConfigError("source.set needs a limit: say what the source is to have")
        return store.set_source(self.name, parse(limits, _SET))

    def request(self, *, timeout: Duration | None = None) -> Request:
        """One call of the source, in `with` or `async with`: waits for a token, then counts success or failure.

        Raises `SourcePaused` while the breaker is open (don't catch it: the job then waits until the pause is over),
        and `SourceBusy` when no token is free within `timeout`.
        """
        return Request(self.name, self._runner, timeout)

    @overload
    def cached(self, parts: Parts, fn: Callable[[], Awaitable[T]], *, ttl: Duration | None = None) -> Awaitable[T]: ...
    @overload
    def cached(self, parts: Parts, fn: Callable[[], T], *, ttl: Duration | None = None) -> T: ...
    def cached(self, parts: Parts, fn: Callable[[], Any], *, ttl: Duration | None = None) -> Any:
        """The answer of `fn`, or a cached answer to the same parts from any process of this machine.

        For an async function it is an awaitable. One process at a time calls `fn`; the others wait for its answer.
        """
        from inspect import iscoroutinefunction

        cache = self._cache()
        ttl_s = None if ttl is None else seconds("ttl", ttl)
        account = job_gateway.account()
        if account is None or account.source != self.name:
            call = fn
        else:
            account.looked_up = True

            def call() -> Any:
                account.called = True
                return fn()

        if iscoroutinefunction(fn):
            return cache.aget(self.name, parts, call, ttl_s=ttl_s)
        return cache.get(self.name, parts, lambda: _answer(call()), ttl_s=ttl_s)


class Request:
    """One request of a source: it takes a token, and reports whether the call succeeded."""

    def __init__(self, source: str, runner: StatementRunner, timeout: Duration | None) -> None:
        self.source, self.runner = source, runner
        # Outside of jobs, an account of its own.
        self.account = job_gateway.account() or SourceAccount("", None, Policy())
        self.token = self.account.token
        self.until = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        self.slot: int | None = None

    def __enter__(self) -> None:
        if self.paid_by_claim():
            return
        while pause_s := self.pause_s(self.runner.run(store.ask_source(self.source, self.token))):
            time.sleep(pause_s)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        report = self.report_of(error)
        try:
            self.runner.run(report)
        except DatabaseUnreachable:  # A slot that is not given back blocks other jobs until this job ends.
            self.runner.run(report)

    async def __aenter__(self) -> None:
        """Nothing is awaited after the grant, so a caller that is cancelled then still runs `__aexit__`."""
        import asyncio

        if self.paid_by_claim():
            return
        while pause_s := self.pause_s(await self.ask()):  # noqa: ASYNC110  # No event announces a token.
            await asyncio.sleep(pause_s)

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        import asyncio

        await asyncio.shield(self.send(self.report_of(error)))

    async def ask(self) -> Grant:
        """The source's answer. If the caller is cancelled meanwhile, a grant that still arrives is given back."""
        import asyncio

        asking = asyncio.ensure_future(self.runner.arun(store.ask_source(self.source, self.token)))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.shield(self.give_back(asking))
            raise

    async def give_back(self, asking: Awaitable[Grant]) -> None:
        """Wait for the answer and give back what it grants. If no answer comes, no grant is known."""
        with contextlib.suppress(OutliveError):
            grant = await asking
            if grant.granted:
                await self.send(self.report(None, grant.slot))

    async def send(self, report: Statement[list[int]]) -> None:
        try:
            await self.runner.arun(report)
        except DatabaseUnreachable:  # As in `__exit__`.
            await self.runner.arun(report)

    def paid_by_claim(self) -> bool:
        """Spend the token that the job was claimed with: it pays for the job's first request."""
        return self.account.spend(self.source)

    def pause_s(self, grant: Grant) -> float:
        """How long to wait before asking again; 0 if the request may start."""
        if grant.granted:
            self.slot = grant.slot
            return 0.0
        if grant.open:
            raise SourcePaused(f"the source {self.source} is paused for {grant.wait_s:.0f} s", grant.wait_s)
        if self.until is not None and time.monotonic() + grant.wait_s > self.until:
            raise SourceBusy(f"the source {self.source} has no token for the next {grant.wait_s:.1f} s")
        return min(max(grant.wait_s, 0.001), ASK_AGAIN_S)

    def report_of(self, error: BaseException | None) -> Statement[list[int]]:
        """Count success or failure. An error is counted here, and not again when the job ends with it."""
        counts = error is None or self.account.blames(error)
        if error is not None:
            self.account.counted = error
        if self.source == self.account.source:
            self.account.failed = counts and error is not None
        return self.report((error is None) if counts else None, self.slot)

    def report(self, ok: bool | None, slot: int | None) -> Statement[list[int]]:
        return store.count_outcomes([(self.source, self.token, ok)], [] if slot is None else [slot])


def _answer(given: T) -> T:
    """The answer of a plain function. An awaitable is refused: `cached` would not await it."""
    from inspect import isawaitable, iscoroutine

    if isawaitable(given):
        if iscoroutine(given):
            given.close()
        raise BadArguments("cached() was given a function that returns an awaitable: pass the async function itself")
    return given


def source_name(source: Source | str) -> str:
    """The name of a source that is given as an object or by its name."""
    return identifier("source", source.name if isinstance(source, Source) else source)
