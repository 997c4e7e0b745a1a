"""FastAPI and Starlette: the lifespan of an app, and a dependency that enqueues in the request's own transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_origin

from outlive import store
from outlive.client.app import App
from outlive.client.job import Job
from outlive.client.task import Task, expect_task
from outlive.errors import ConfigError

if TYPE_CHECKING:
    from outlive.caller_connections import AsyncConnection, SyncConnection
    from outlive.dashboard.site import Site

P = ParamSpec("P")
R = TypeVar("R")
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(*jobs: App, dashboard: Site | None = None, inner: Lifespan | None = None) -> Lifespan:
    """What `FastAPI(lifespan=…)` and `Starlette(lifespan=…)` take: it opens what these apps need, and closes it.

    A database that can't be reached, or that has another schema, stops the start. `dashboard` is one that the app
    mounts, and `inner` a lifespan of the app's own, which runs within this one.
    """

    @asynccontextmanager
    async def live(web: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as opened:
            for app in jobs:
                opened.callback(app.runner.close)
                await app.runner.arun(store.statuses([]))
                opened.push_async_callback(app.connections.aclose)
            if dashboard is not None:
                dashboard.answers.start()
                opened.push_async_callback(dashboard.close)
            yield await opened.enter_async_context(inner(web)) if inner is not None else None

    return live


class Enqueue:
    """Enqueues in the transaction of one session: `enqueue(send_invoice, 7)`. A rollback leaves no job."""

    def __init__(self, session: SyncConnection) -> None:
        self._session = session

    def __call__(self, task: Task[P, Any, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job of this task, which may have options: `enqueue(send_invoice.using(delay="1h"), 7)`."""
        return expect_task("enqueue takes", task).using(connection=self._session).enqueue(*args, **kwargs)


class AsyncEnqueue:
    """Enqueues in the transaction of one async session: `await enqueue(send_invoice, 7)`."""

    def __init__(self, session: AsyncConnection) -> None:
        self._session = session

    async def __call__(self, task: Task[P, Any, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job of this task."""
        return await expect_task("enqueue takes", task).using(connection=self._session).aenqueue(*args, **kwargs)


def in_session(session: Any) -> Callable[..., Enqueue]:
    """A dependency that enqueues in the request's session, which is given as `Annotated[Session, Depends(…)]`.

    FastAPI gives it the same session as the function that handles the request.
    """
    return _dependency(Enqueue, "in_session", session)


def in_async_session(session: Any) -> Callable[..., AsyncEnqueue]:
    """A dependency that enqueues in the request's async session: `Annotated[AsyncSession, Depends(…)]`."""
    return _dependency(AsyncEnqueue, "in_async_session", session)


def _dependency(kind: Callable[[Any], R], name: str, session: Any) -> Callable[..., R]:
    """A function with the caller's own annotation: for any other, FastAPI would provide another session."""
    if not hasattr(session, "__metadata__") or get_origin(session) is None:
        raise ConfigError(f"{name} takes Annotated[…, Depends(…)] as a request's session has it, not {session!r}")

    given = session.__origin__
    if name == "in_session" and ".asyncio" in getattr(given, "__module__", ""):
        raise ConfigError(f"in_session takes no {given.__name__}, which is async: use in_async_session")

    def enqueue(session: Any) -> R:
        return kind(session)

    enqueue.__annotations__["session"] = session
    return enqueue
