"""A source: an outside service that jobs call, with limits that all workers share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from outlive import job_gateway, store, units
from outlive.errors import BadArguments, DatabaseUnreachable, OutliveError, SourceBusy, SourcePaused
from outlive.model import Grant, SourceLimits
from outlive.policy import Duration, identifier
from outlive.statement import Statement

if TYPE_CHECKING:
    from outlive.client.cache import Cache
    from outlive.client.statement_runner import StatementRunner

T = TypeVar("T")
Parts = str | Sequence[object] | Mapping[str, object]
ASK_AGAIN_S = 5.0
"""A source may be paused while somebody waits for it: whoever waits longer than this looks again."""


class Source:
    """A source as the app declares it. A job of a source is claimed only while the source admits it."""

    def __init__(self, limits: SourceLimits, runner: StatementRunner, cache: Callable[[], Cache]) -> None:
        self.name, self.limits = limits.name, limits
        self._runner, self._cache = runner, cache

    def __repr__(self) -> str:
        return f"Source({self.name!r})"

    def request(self, *, timeout: Duration | None = None) -> Request:
        """One call of the source, `with` or `async with`: waits for a token, and counts how the call went.

        Raises `SourcePaused` while the breaker is open (let it pass: the job goes back until it may be closed), and
        `SourceBusy` when there is no token within `timeout`.
        """
        return Request(self.name, self._runner, timeout)

    @overload
    def cached(self, parts: Parts, fn: Callable[[], Awaitable[T]], *, ttl: Duration | None = None) -> Awaitable[T]: ...
    @overload
    def cached(self, parts: Parts, fn: Callable[[], T], *, ttl: Duration | None = None) -> T: ...
    def cached(self, parts: Parts, fn: Callable[[], Any], *, ttl: Duration | None = None) -> Any:
        """What `fn` gives, or gave lately to anybody on this machine who asked with the same parts.

        An async function gives an awaitable. Only one process calls `fn` at a time; the others wait for its answer.
        """
        from inspect import iscoroutinefunction

        cache = self._cache()
        ttl_s = None if ttl is None else units.seconds(ttl)
        job = _own_job(self.name)
        if job is not None and not job.called:
            job.answered = True  # Unless it is called, the source has nothing to do with how this ends.

        def call() -> Any:
            if job is not None:
                job.called, job.answered = True, False
            return fn()

        if iscoroutinefunction(fn):
            return cache.aget(self.name, parts, call, ttl_s=ttl_s)
        return cache.get(self.name, parts, lambda: _answer(call()), ttl_s=ttl_s)


class Request:
    """One request of a source, from asking for a token to saying how it went."""

    def __init__(self, source: str, runner: StatementRunner, timeout: Duration | None) -> None:
        self.source, self.runner = source, runner
        self.job = job_gateway.job
        self.token = None if self.job is None else self.job.token
        self.until = None if timeout is None else time.monotonic() + units.seconds(timeout)
        self.slot: int | None = None

    def __enter__(self) -> None:
        while self.must_ask and (pause_s := self.pause_s(self.runner.run(self.question))):
            time.sleep(pause_s)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        said = self.outcome(error)
        try:
            self.runner.run(said)
        except DatabaseUnreachable:  # Whoever keeps a slot keeps others waiting until his job ends.
            self.runner.run(said)

    async def __aenter__(self) -> None:
        """After the grant nothing is awaited: whoever is cancelled then has it, and gives it back at the end."""
        import asyncio

        while self.must_ask:
            pause_s = self.pause_s(await self.asked())
            if not pause_s:
                return
            await asyncio.sleep(pause_s)

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        import asyncio

        await asyncio.shield(self.tell(self.outcome(error)))

    async def asked(self) -> Grant:
        """The source's answer. A question can't be taken back: whoever is cancelled meanwhile gives back the grant."""
        import asyncio

        asking = asyncio.ensure_future(self.runner.arun(self.question))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.shield(self.give_back(asking))
            raise

    async def give_back(self, asking: Awaitable[Grant]) -> None:
        """Wait for what is granted to nobody any more. If there is no answer nothing was granted that we know of."""
        with contextlib.suppress(OutliveError):
            grant = await asking
            if grant.granted:
                await self.tell(self.said(None, grant.slot))

    async def tell(self, said: Statement[list[int]]) -> None:
        """The async twin of what `__exit__` does."""
        try:
            await self.runner.arun(said)
        except DatabaseUnreachable:
            await self.runner.arun(said)

    @property
    def must_ask(self) -> bool:
        """The token that the job was claimed with pays for its first request."""
        return not (self.job is not None and self.job.pays_for(self.source))

    @property
    def question(self) -> Statement[Grant]:
        return store.ask_source(self.source, self.token)

    def pause_s(self, grant: Grant) -> float:
        """How long to wait before asking again; 0 if it may begin."""
        if grant.granted:
            self.slot = grant.slot
            return 0.0
        if grant.open:
            raise SourcePaused(f"the source {self.source} is paused for {grant.wait_s:.0f} s", grant.wait_s)
        if self.until is not None and time.monotonic() + grant.wait_s > self.until:
            raise SourceBusy(f"the source {self.source} has no token for the next {grant.wait_s:.1f} s")
        return min(max(grant.wait_s, 0.001), ASK_AGAIN_S)

    def outcome(self, error: BaseException | None) -> Statement[list[int]]:
        """Count how it went. What is raised is counted here, and not again when the job ends with it."""
        counts = error is None or (self.job.blames_source(error) if self.job is not None else _blames(error))
        if error is not None and self.job is not None:
            self.job.counted = error
        return self.said((error is None) if counts else None, self.slot)

    def said(self, ok: bool | None, slot: int | None) -> Statement[list[int]]:
        return store.count_outcomes([(self.source, self.token, ok)], [] if slot is None else [slot])


def _own_job(source: str) -> job_gateway.RunningJob | None:
    """The job that runs here, if it is one of this source."""
    return job_gateway.job if job_gateway.job is not None and job_gateway.job.source == source else None


def _answer(given: T) -> T:
    """What a plain function gave. One that is yet to be awaited is none: nobody would await it."""
    from inspect import isawaitable, iscoroutine

    if isawaitable(given):
        if iscoroutine(given):
            given.close()
        raise BadArguments(
            "cached() was given a function that is not async and gives an awaitable: pass the async one itself"
        )
    return given


def _blames(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, OutliveError)


def source_name(source: Source | str) -> str:
    """The name of a source that is given as such, or by its name."""
    return identifier("source", source.name if isinstance(source, Source) else source)
