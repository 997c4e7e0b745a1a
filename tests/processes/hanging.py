"""An app whose async jobs hang in helpers of theirs, which workers import."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import outlive

app = outlive.App()


async def _wait_for_answer() -> None:
    await asyncio.Event().wait()


async def _pages() -> AsyncIterator[int]:
    await _wait_for_answer()
    yield 1


@contextlib.asynccontextmanager
async def _session() -> AsyncIterator[None]:
    async for _ in _pages():
        pass
    yield


async def _fetch(begun: str) -> None:
    Path(begun).touch()  # noqa: ASYNC240
    async with _session():
        pass


@app.task(max_attempts=1)
async def fresh(begun: str) -> None:
    await _fetch(begun)


@app.task(max_attempts=1, recycle_after=100)
async def warm(begun: str) -> None:
    await _fetch(begun)


@app.task(max_attempts=1, preload=False)
async def executed(begun: str) -> None:
    await _fetch(begun)


@app.task(max_attempts=1, share=50)
async def shared(begun: str) -> None:
    await _fetch(begun)


@app.task(max_attempts=1)
def plain(begun: str) -> None:
    asyncio.run(_fetch(begun))


@app.task(max_attempts=1, share=50)
async def many(begun: str) -> None:
    await asyncio.gather(_fetch(begun), _wait_for_answer())


@app.task(max_attempts=1, share=50)
async def deaf(begun: str) -> None:
    while True:
        try:
            await _fetch(begun)
        except asyncio.CancelledError:
            Path(f"{begun}.ignored").touch()  # noqa: ASYNC240


@app.task(max_attempts=1, share=50)
async def blocked(begun: str) -> None:
    Path(begun).touch()  # noqa: ASYNC240
    threading.Event().wait()


class Unnameable(asyncio.Task[None]):
    """It raises when it is asked where it is."""

    def get_name(self) -> str:
        raise SystemExit("no name")


@app.task(max_attempts=1)
async def hostile(begun: str) -> None:
    loop = asyncio.get_running_loop()
    hidden = Unnameable(_wait_for_answer(), loop=loop)
    try:
        await _fetch(begun)
    finally:
        hidden.cancel()
        Path(f"{begun}.cleaned").touch()  # noqa: ASYNC240
