"""Jobs that call outside services, as an app that workers import."""

import asyncio
import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path

import psycopg

import outlive
from outlive.client.source import Request

app = outlive.App()
shop = app.source("shop", rate_limit_per_minute=600)
slow = app.source("slow", rate_limit_per_minute=60)
narrow = app.source("narrow", max_concurrency=1)
endless = app.source("endless")
flaky = app.source("flaky", breaker_failures=3, breaker_pause="2s")


@app.task(source=shop, backoff=0, max_losses=None)
def visit() -> None:
    """Call the shop, which takes a little while."""
    time.sleep(0.02)


@app.task(source=slow)
def crawl() -> None:
    pass


@app.task(queue="free", recycle_after=10_000)
def free() -> None:
    pass


@app.task(source=endless, recycle_after=10_000)
def flood() -> None:
    time.sleep(0.01)


@app.task(source=shop)
def visit_often(times: int) -> list[float]:
    """Make requests; returns when each one began."""
    began = []
    for _ in range(times):
        with shop.request():
            began.append(time.monotonic())
    return began


@app.task
async def visit_slowly(times: int) -> int:
    for _ in range(times):
        async with shop.request():
            pass
    return times


@app.task(max_attempts=1)
def be_impatient() -> str:
    with slow.request():
        pass
    begun = time.monotonic()
    try:
        with slow.request(timeout=0.05):
            return "it was let in"
    except outlive.SourceBusy:
        return "too busy" if time.monotonic() - begun < 0.5 else "too late"


@app.task(source=narrow)
def squeeze(path: str) -> None:
    mark = Path(path) / str(os.getpid())
    mark.touch()
    alone = len(list(Path(path).iterdir())) == 1
    time.sleep(0.02)
    mark.unlink()
    if not alone:
        raise AssertionError("another call was under way")


async def seen(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240  # What the test does is no event of ours.
        await asyncio.sleep(0.005)


@app.task(max_attempts=1)
async def change_its_mind(folder: str, how: str) -> str:
    """Ask for a source of one slot, give up, and ask again."""

    async def call(request: Request) -> None:
        async with request:
            await asyncio.Event().wait()

    for n in range(50 if how == "at any moment" else 1):
        request = narrow.request()
        calling = asyncio.ensure_future(call(request))
        match how:
            case "while it asks":
                await seen(Path(folder) / "asking")
            case "when it may":
                while request.slot is None:  # noqa: ASYNC110  # It must be seen before anything else happens.
                    await asyncio.sleep(0)
            case "at any moment":
                await asyncio.sleep(n / 10_000)
        calling.cancel()
        (Path(folder) / "cancelled").touch()
        await asyncio.wait([calling])
        if not calling.cancelled():
            raise AssertionError("it went on")
    async with narrow.request(timeout=3):
        return "it was let in"


@app.task(max_attempts=1)
def hold_on(folder: str) -> str:
    with narrow.request():
        (Path(folder) / "inside").touch()
        asyncio.run(seen(Path(folder) / "cut"))
    with narrow.request(timeout=3):
        return "it was let in"


@app.task(max_attempts=1)
async def hold_on_as_well(folder: str) -> str:
    async with narrow.request():
        (Path(folder) / "inside").touch()
        await seen(Path(folder) / "cut")
    async with narrow.request(timeout=3):
        return "it was let in"


@app.task(source=flaky, max_attempts=1, fail_on=KeyError)
def stumble(how: str) -> str:
    match how:
        case "raise":
            raise ConnectionError("no answer")
        case "raise in a request":
            with flaky.request():
                raise ConnectionError("no answer")
        case "raise from a request":
            try:
                with flaky.request():
                    raise ConnectionError("no answer")
            except ConnectionError as error:
                raise RuntimeError("no page") from error
        case "swallow":
            for _ in range(2):
                try:
                    with flaky.request():
                        raise ConnectionError("no answer")
                except ConnectionError:
                    pass
        case "own fault":
            with flaky.request():
                raise KeyError("not the source's")
        case "give up":
            raise outlive.Fail("not the source's")
        case "retry":
            raise outlive.Retry("later")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
    return "well"


@app.task(source=flaky, max_attempts=1, recycle_after=10_000)
def hurry(how: str, request: bool) -> None:
    """Call the flaky source, in a process that has more such jobs ahead."""
    with flaky.request() if request else contextlib.nullcontext():
        if how == "raise":
            raise ConnectionError("no answer")


@app.task(source=flaky, max_attempts=1, share=500)
async def hurry_together() -> None:
    """The same beside others, all of which the process begins at once."""
    raise ConnectionError("no answer")


@app.task(source=shop, recycle_after=10_000, max_losses=None)
def visit_warm() -> None:
    """Call the shop, in a process that takes the next job too."""


@app.task(source=flaky, max_attempts=1, timeout=0.5)
def hang(deaf: bool) -> None:
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@app.task(source=flaky)
def finish_itself(url: str) -> None:
    with psycopg.connect(url) as connection:
        outlive.current().complete(connection)


@app.task(max_attempts=1)
def call_from_elsewhere() -> int:
    with flaky.request():
        return outlive.current().attempt


@app.task
def look_up(path: str) -> str:
    def fetch() -> str:
        with Path(path).open("a") as calls:
            calls.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return "answer"

    return shop.cached({"page": 1}, fetch)


@app.task(source=flaky, max_attempts=1)
def read(pages: list[str], how: str = "well") -> list[str]:
    """Read pages, each given as source/number, from the cache if they are there."""
    sources = {source.name: source for source in (flaky, shop)}
    found = [sources[page.partition("/")[0]].cached(page, partial(str, page)) for page in pages]
    if how == "misread":
        raise ValueError("the page is not what it was")
    return found


@app.task(source=endless, backoff=0, max_crashes=2)
def find(key: str, price: int, strength: float, how: str = "well", scope: str = "prices") -> int:
    """Write a record and spawn a job, and then end in this way."""
    ctx = outlive.current()
    ctx.record(scope, key, {"price": price}, strength=strength)
    ctx.spawn(visit_often.using(dedupe_key=key).job(1))
    if how == "die once" and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise outlive.Fail("no")
    if how == "ask for nonsense":
        ctx.spawn(free.using(dedupe_key="taken", on_conflict="raise").job())
    if how == "ask for too much":
        ctx.spawn(find.job("x" * 2000, 1, 1.0))
    if how == "ask for too many":
        for _ in range(17):
            ctx.spawn(find.job("x" * 1_000_000, 1, 1.0))
    return ctx.attempt
