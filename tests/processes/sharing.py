"""An app whose jobs share their processes, which workers import. Some of them harm their neighbours."""

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import outlive

app = outlive.App()
opened: list[str] = []


@app.lifespan
async def session() -> AsyncIterator[None]:
    opened.append(f"opened in {os.getpid()}")
    time.sleep(float(os.environ.get("LIFESPAN_S", "0")))  # noqa: ASYNC251  # It loads a model, say.
    yield
    await asyncio.sleep(0.1)
    print(f"closed in {os.getpid()}", flush=True)
    logging.getLogger("shop").error("closed", extra={"host": "h"})


async def _until(path: str) -> None:
    while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240  # A file rings no bell.
        await asyncio.sleep(0.1)


@app.task(share=600, timeout="60s", max_attempts=2, backoff=0)
async def guest(path: str = "") -> int:
    """A healthy neighbour: it waits for a file, or does not wait."""
    if path:
        await _until(path)
    return os.getpid()


@app.task(share=600)
async def loop() -> str:
    """The library of its event loop."""
    return type(asyncio.get_running_loop()).__mro__[1].__module__.partition(".")[0]


async def _spin() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            logging.getLogger("deaf").warning("never")


async def _left(path: str) -> None:
    try:
        await _until("/nowhere")
    finally:
        Path(f"{path}.cancelled").touch()  # noqa: ASYNC240


async def _raise_exit() -> None:
    raise SystemExit(3)


async def _harm(what: str, path: str) -> None:
    match what:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "block":
            time.sleep(600)  # noqa: ASYNC251  # That is the harm.
        case "close descriptors":
            os.closerange(3, 10_000)
        case "ignore":
            await _spin()
        case "stop the loop":
            asyncio.get_running_loop().stop()
        case "close the loop":
            asyncio.get_running_loop().close()
        case "exit in a task":
            await asyncio.create_task(_raise_exit())
        case "cancel all":
            for one in asyncio.all_tasks() - {asyncio.current_task()}:
                one.cancel()
        case "shut the threads":
            await asyncio.get_running_loop().shutdown_default_executor()
        case "wait in a thread":
            await asyncio.to_thread(outlive.current().sleep, "1s")
        case "fork":
            if copy := os.fork():
                Path(f"{path}.copy").write_text(str(copy))  # noqa: ASYNC240
            else:
                await asyncio.sleep(600)
        case "leak":
            taken = []
            while True:
                taken.append(bytearray(8_000_000))
                await asyncio.sleep(0.01)
        case "leave tasks":
            asyncio.create_task(_left(path), name="left-behind")  # noqa: RUF006
            await asyncio.sleep(0)
        case "leave a deaf task" | "leave a deaf task and wait":
            asyncio.create_task(_spin(), name="deaf")  # noqa: RUF006
            await asyncio.sleep(0)
            if "wait" in what:
                print("it waits")
                await asyncio.sleep(60)


@app.task(share=600, max_attempts=1, max_crashes=3, backoff=0, timeout="120s", memory="200MB")
async def mixed(what: str, path: str) -> int:
    """A neighbour, or an offender, of one task: they share a process."""
    if what and outlive.current().attempt == 1:
        await _until(path + ".crowd")
    await (_harm(what, path) if what else _until(path))
    return os.getpid()


@app.task(share=600, timeout="60s", max_attempts=1)
async def busy(go: str, s: float) -> int:
    """It works for a while without a pause."""
    await _until(go)
    Path(f"{go}.works").touch()  # noqa: ASYNC240
    until = time.monotonic() + s
    while time.monotonic() < until:
        pass
    return os.getpid()


@app.task(share=600, timeout="60s", max_attempts=1)
async def half(notes: str, how: str) -> str:
    """It waits outside of its process, and something else of it would go on here."""
    job = outlive.current()
    try:
        if how == "beside a task":
            beside = asyncio.create_task(asyncio.sleep(2))
            await job.asleep("1s")
            await beside
        elif how == "in another task":
            await asyncio.create_task(job.asleep("1s"))
        else:
            async with asyncio.timeout(0.3):
                await job.asleep("1s")
    except BaseException:
        _note(notes + ".error")
        raise
    return how


@app.task(share=10)
async def talker(name: str) -> str:
    print(f"print of {name}")
    await asyncio.sleep(0.05)
    logging.getLogger("talker").warning("log of %s", name)
    await asyncio.to_thread(print, f"thread of {name}")
    print(f"error of {name}", file=sys.stderr)
    current = outlive.current()
    current.progress(1, 2, name)
    return f"{await asyncio.to_thread(lambda: outlive.current().job_id)} {current.job_id} {opened}"


def _note(file: str) -> None:
    with Path(file).open("a") as notes:
        notes.write(f"charge {os.getpid()}\n")


@outlive.step
async def charge(order: int, file: str) -> int:
    await asyncio.to_thread(_note, file)
    return order * 100


@app.task(share=50)
async def durable(order: int, file: str) -> int:
    job = outlive.current()
    paid = await charge(order, file)
    await job.asleep("200ms")
    found: int = await job.areceive("packed", int)
    numbers = await job.agather(part.job(n) for n in range(2))
    return paid + found + sum(numbers)


@app.task(share=50)
async def part(n: int) -> int:
    return n


@app.task(share=50)
async def kept(file: str, go: str) -> tuple[int, object]:
    paid = await charge(1, file)
    job = outlive.current()
    before = job.last_checkpoint
    job.checkpoint({"paid": paid})
    await asyncio.sleep(0)
    Path(f"{file}.kept").touch()  # noqa: ASYNC240
    await _until(go)
    return paid, before


@app.task(share=50)
async def marked(file: str, go: str) -> object:
    """It keeps a checkpoint and no step."""
    job = outlive.current()
    before = job.last_checkpoint
    job.checkpoint({"page": 7})
    await asyncio.sleep(0)
    _note(file)
    await _until(go)
    return before


@outlive.step(relaxed=True)
async def jot(file: str) -> int:
    _note(file)
    return os.getpid()


@app.task(share=50)
async def hasty(file: str, go: str) -> int:
    """It goes on before its step is written, and asks its worker for more."""
    pid = await jot(file)
    for n in range(5):
        await part.aenqueue(n)
    Path(f"{file}.after").touch()  # noqa: ASYNC240
    await _until(go)
    return pid


@app.task(share=50, max_attempts=1, max_crashes=3, backoff=0, timeout="60s")
async def sudden(what: str, file: str) -> object:
    """It keeps and prints, and does harm in the same turn of the loop, unless it finds its checkpoint."""
    job = outlive.current()
    await jot(file)
    if job.last_checkpoint is None:
        job.checkpoint({"page": 7})
        print("the last words")
        await _harm(what, file)
    return job.last_checkpoint


@app.task(share=2, recycle_after=4)
async def recycled() -> int:
    return os.getpid()


@app.task(share=50)
async def grouped() -> list[str]:
    """Two tasks of a group note whose they are, and a scope ends a third one."""
    import anyio  # It may not be installed.

    found: list[str] = []

    async def note(pause_s: float) -> None:
        await anyio.sleep(pause_s)
        found.append(str(outlive.current().job_id))

    async with anyio.create_task_group() as group:
        group.start_soon(note, 0)
        group.start_soon(note, 0.01)
    with anyio.move_on_after(0.1):
        await note(60)
    return found


@app.task(share=2, max_attempts=1, timeout="60s")
async def threaded(go: str, s: float) -> int:
    if go:
        await _until(go)
    await asyncio.to_thread(time.sleep, s)
    return os.getpid()


@app.task(share=100)
async def large(file: str, size: int, go: str) -> str:
    """It returns much, or notes that time goes by, until it may end."""
    if size:
        await _until(go)
        _note(file)
    while not size and not os.path.exists(go + ".end"):  # noqa: ASYNC240
        await asyncio.sleep(0.1)
        _note(file + ".ticks")
    return f"{os.getpid()} " + size * "x"


@app.task(share=50)
async def dozing(file: str, go: str) -> int:
    await asyncio.to_thread(_note, file)
    await _until(go)
    await outlive.current().asleep("100ms")
    return os.getpid()


@app.task(share=5)
async def many_calls(calls: int) -> int:
    return len(await asyncio.gather(*(part.aenqueue(n) for n in range(calls))))


@app.task(share=50, timeout="2s", max_attempts=1)
async def impatient(block: bool) -> None:
    await asyncio.sleep(0.1)
    if block:
        time.sleep(3)  # noqa: ASYNC251
    for _ in range(8):  # What is still to come when the loop goes on counts too.
        await asyncio.sleep(0.1)


@app.task(share=5)
async def enqueuer(path: str) -> list[str]:
    mine = await part.aenqueue(3)
    other = part.enqueue(4)
    return [str(mine.id), str(other.id), str(await mine.aresult(timeout=30)), str(other.id)]


@app.task(share=500, max_losses=3, timeout="60s")
async def nap(seconds: float, kills: bool = False) -> None:
    """It ends after these seconds, or kills its worker then."""
    await asyncio.sleep(seconds)
    if kills:
        from tests.faults import parent_of

        os.kill(parent_of(parent_of(os.getppid())), signal.SIGKILL)
        await asyncio.sleep(600)


@app.task(share=50, recycle_after=60, max_losses=3, timeout="60s")
async def noted(file: str, go: str) -> None:
    """It notes its process, and waits for a file."""
    with open(file, "a") as notes:  # noqa: ASYNC230
        notes.write(f"{os.getpid()}\n")
    await _until(go)


@app.task(share=50)
async def outdated(file: str, go: str) -> int:
    """Its first attempt waits for its test, and takes the payment back if it can't go on."""
    await charge(1, file)
    if outlive.current().attempt == 1:
        await _until(go)
    try:
        await charge.named("rest")(2, file)
    except Exception:
        _note(file + ".refunded")
        raise
    _note(file + ".paid")
    return os.getpid()
