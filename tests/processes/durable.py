"""An app whose jobs keep steps, which workers import. Each step writes a line into a file when its code runs."""

import asyncio
import contextlib
import itertools
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

import outlive
from outlive import job_gateway
from outlive.child.channel import Channel
from outlive.protocol import Call, KeptStep, encode_frame

app = outlive.App()
NAN = float("nan")


@dataclass
class Payment:
    order: int
    cents: int


def note(file: str, line: str) -> None:
    with Path(file).open("a") as notes:
        notes.write(line + "\n")


@outlive.step
def charge(order: int, file: str) -> Payment:
    note(file, f"charge {order}")
    return Payment(order, 4200)


@outlive.step(relaxed=True)
def pack(n: int, file: str) -> int:
    note(file, f"pack {n}")
    return n * n


@outlive.step
def empty(file: str) -> None:
    note(file, "empty")


@outlive.step
async def print_label(n: int, file: str) -> str:
    await asyncio.get_running_loop().run_in_executor(None, note, file, f"label {n}")
    return f"label {n}"


@outlive.step(attempts=3, backoff="1ms")
def flaky(file: str) -> int:
    note(file, "flaky")
    tries = Path(file).read_text().count("flaky")
    if tries < 3:
        raise ConnectionError("not yet")
    return tries


@outlive.step(timeout="50ms")
def slow() -> None:
    signal.pause()


@outlive.step(timeout="50ms")
async def aslow() -> None:
    await asyncio.Event().wait()


@outlive.step(timeout="1s")
def slow_with_more_inside() -> None:
    with_time()
    signal.pause()


@outlive.step(timeout="500ms")
def with_time() -> None:
    pass


@outlive.step
def quote(order: int, file: str) -> int:
    note(file, f"quote {order}")
    return order * 10


@outlive.step
def quote_first(file: str) -> int:
    return quote(1, file)


@outlive.step(attempts=3, backoff="1ms")
def quote_flakily(file: str) -> int:
    quoted = quote(1, file)
    note(file, "tried")
    if len(lines_of(file, "tried")) < 3:
        raise ConnectionError("not yet")
    return quoted


@outlive.step
def reserve(file: str) -> None:
    note(file, "reserve")
    if len(lines_of(file, "reserve")) < 3:
        raise LookupError("nothing is in stock")


@outlive.step
def try_to_reserve(file: str) -> bool:
    try:
        reserve(file)
    except LookupError:
        return False
    return True


@outlive.step
def refund(file: str) -> str:
    note(file, "refund")
    return "refunded"


@app.task(max_attempts=1)
def reserves_or_refunds(file: str) -> str:
    """It catches what one of its steps raises, and goes on. What others raise is caught in a step, or tried again."""
    try_to_reserve(file)
    flaky(file)
    try:
        reserve(file)
    except LookupError:
        refund(file)
    outlive.current().sleep(0)
    return refund(file)


@app.task(max_attempts=1)
def waits_after_a_failure(file: str) -> None:
    with contextlib.suppress(LookupError):
        reserve(file)
    outlive.current().sleep(0)


@outlive.step
def unkept(file: str) -> float:
    note(file, "unkept")
    return float("nan")


def lines_of(file: str, begin: str) -> list[str]:
    return [line for line in Path(file).read_text().splitlines() if line.startswith(begin)]


def die_once(file: str, where: str) -> None:
    if f"died {where}" not in Path(file).read_text():
        note(file, f"died {where}")
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(backoff="10ms", max_crashes=2)
def fulfil(order: int, file: str) -> list[object]:
    """It dies after each of its steps, more often than a job may die that gets no further."""
    payment = charge(order, file)
    die_once(file, "after charge")
    squares = [pack(n, file) for n in range(3)]
    empty(file)
    die_once(file, "after pack")
    assert empty(file) is None
    die_once(file, "after empty")
    assert isinstance(payment, Payment)
    return [payment.cents, squares, outlive.current().attempt]


@app.task(backoff="10ms", max_crashes=2)
async def ship(file: str) -> list[str]:
    labels = await asyncio.gather(*(print_label.named(str(n))(n, file) for n in range(3)))
    die_once(file, "after labels")
    return list(labels)


@app.task
async def careless(file: str) -> None:
    await asyncio.gather(print_label(8, file), print_label(9, file))


@app.task
def stubborn(file: str) -> int:
    return flaky(file)


@outlive.step
def parse(page: int) -> int:
    if page == 17:
        os.kill(os.getpid(), signal.SIGSEGV)
    return page


@app.task(backoff="1ms")
def crawl() -> int:
    return sum(parse.named(f"page-{page}")(page) for page in range(15, 20))


@app.task(backoff="1ms")
def book(url: str, file: str) -> bool:
    """It dies before the first commit, and after the second one."""
    import psycopg

    with psycopg.connect(url) as connection:
        if first := outlive.current().once(connection, "ledger"):
            connection.execute("insert into ledger values (1)")
            die_once(file, "before commit")
    die_once(file, "after commit")
    return first


@app.task(backoff="1ms", max_attempts=1)
async def book_slowly(url: str) -> list[bool]:
    import psycopg

    job = outlive.current()
    async with await psycopg.AsyncConnection.connect(url) as connection:
        first = await job.aonce(connection, "ledger")
        await connection.rollback()
        again = await job.aonce(connection, "ledger")
        await connection.commit()
        return [first, again, await job.aonce(connection, "ledger")]


@app.task(max_attempts=1)
def book_without_transaction(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        outlive.current().once(connection, "ledger")


@app.task(max_attempts=1)
def poll(file: str) -> int:
    note(file, "poll")
    if (times := Path(file).read_text().count("poll")) < 3:
        raise outlive.Snooze("1ms")
    return times


@app.task
def patient(file: str) -> int:
    """It waits for its test between two steps."""
    payment = charge(1, file)
    Path(f"{file}.gate").read_text()
    return payment.cents + pack(2, file)


@app.task(max_attempts=1)
def forge() -> list[str]:
    """Ask to keep what outlive's own code never sends."""
    channel = job_gateway.gateway
    assert channel is not None
    token = outlive.current().token
    names = ("same", "same", "with \0", "x" * 5000)
    bodies = [msgspec.msgpack.encode(KeptStep(name, b"1", None, 0.0, name == "same", token)) for name in names]
    bodies += [b"garbage", msgspec.msgpack.encode(KeptStep("no json", b"{", None, 0.0, token=token))]
    bodies += [msgspec.msgpack.encode(KeptStep("no time", b"1", None, took_s, token=token)) for took_s in (NAN, -1.0)]
    refused = []
    for body in bodies:
        try:
            channel.call("step", body)
        except outlive.BadArguments as error:
            refused.append(str(error))
    return refused


@app.task(max_attempts=1)
def forge_twins() -> list[list[object]]:
    """Ask at once to keep two steps of one name, and then another one. Returns how the first two were answered."""
    channel = job_gateway.gateway
    assert isinstance(channel, Channel)
    token = outlive.current().token
    kept = msgspec.msgpack.encode(KeptStep("twin", b"1", None, 0.0, token=token))
    channel._socket.sendall(b"".join(encode_frame(Call(number, "step", kept, token)) for number in (1001, 1002)))
    channel.call("step", msgspec.msgpack.encode(KeptStep("last", b"1", None, 0.0, token=token)))
    return sorted([number, reply.error] for number, reply in channel._replies.items())


@app.task(max_crashes=1)
def flood(verb: str) -> None:
    """Send calls for ever, and wait for no answer."""
    channel = job_gateway.gateway
    assert isinstance(channel, Channel)
    for n in itertools.count():
        channel.send(Call(0, verb, msgspec.msgpack.encode(KeptStep(f"n{n}", b"1", None, 0.0, relaxed=True))))


@app.task(max_attempts=1)
def late() -> None:
    slow()


@app.task(max_attempts=1)
async def alate() -> None:
    await aslow()


@app.task(max_attempts=1)
def late_outside() -> None:
    slow_with_more_inside()


@app.task(backoff="1ms")
def quotes(file: str) -> list[int]:
    """Its second attempt does not run the code of `quote_first`."""
    quoted = [quote_first(file), quote(2, file)]
    die_once(file, "after quotes")
    return quoted


@app.task(backoff="1ms")
def flaky_quote(file: str) -> int:
    return quote_flakily(file)


@app.task(max_attempts=1)
def quotes_in_threads(file: str) -> list[int]:
    together = threading.Barrier(2)

    def quote_one(order: int) -> int:
        together.wait()
        return quote(order, file)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(quote_one, (1, 2)))


@app.task(backoff="1ms")
def returns_nan(file: str) -> None:
    unkept(file)


reading = threading.Event()


@outlive.step
def read(gate: str) -> str:
    reading.set()
    return Path(gate).read_text()


@app.task(recycle_after=2)
def leaves_a_step(file: str, *, behind: bool) -> None:
    """The first job of its child leaves a thread behind, in a step that ends while the second job runs."""
    if behind:
        threading.Thread(target=read, args=(f"{file}.gate",), daemon=True).start()
        reading.wait()
        return
    (thread,) = (one for one in threading.enumerate() if one is not threading.main_thread())
    Path(f"{file}.gate").write_text("of the first job")
    thread.join()


@app.task(recycle_after=2, stall="1s", timeout="10s", max_attempts=1)
def leaves_a_counter(*, behind: bool) -> None:
    """The first job of its child leaves a thread behind that keeps checkpoints. The second one does nothing."""
    if behind:
        threading.Thread(target=keep_checkpoints, args=(outlive.current(),), daemon=True).start()
    else:
        signal.pause()


def keep_checkpoints(context: outlive.Context) -> None:
    never = threading.Event()
    while not never.wait(0.05):
        context.checkpoint(1)


@app.task(backoff="10ms")
def changed(file: str) -> int:
    """Its second attempt calls a step with another argument, and one more in front of it."""
    second = outlive.current().attempt == 2
    if second:
        empty(file)
    kept = pack(7 if second else 3, file)
    if not second:
        raise outlive.Retry(after="1ms")
    return kept


@app.task(backoff="10ms")
def large(file: str) -> int:
    """What it keeps is too large to come with the job."""
    total = sum(len(pad.named(str(n))(n)) for n in range(12))
    die_once(file, "after padding")
    note(file, f"total {total}")
    return total


@outlive.step
def pad(n: int) -> str:
    return str(n % 10) * 200_000


@app.task(max_attempts=1)
def greedy() -> None:
    for n in range(100):
        pad.named(str(n))(n)


@app.task(backoff="1ms")
def refunds(then: str, file: str) -> bool:
    """Its first attempt waits for its test, and takes the payment back if it can't go on."""
    job = outlive.current()
    note(file, f"begun {os.getpid()}")
    charge(1, file)
    if job.attempt == 1:
        Path(f"{file}.gate").read_text()
    try:
        match then:
            case "step":
                empty(file)
            case "relaxed step":
                count(1)
                if job.attempt == 1:
                    signal.pause()
            case "wait":
                job.sleep(0)
            case "call":
                assert job.batch_id is None
    except BaseException:
        note(file, "refunded")
        raise
    return job.attempt > 1


@outlive.step(relaxed=True)
def pad_later(n: int) -> str:
    return str(n % 10) * 200_000


@app.task(max_attempts=1)
def hurries() -> int:
    """Keep 15 MB, and wait for none of it."""
    return sum(len(pad_later.named(str(n))(n)) for n in range(75)) // 200_000


@outlive.step(relaxed=True)
def bulk() -> str:
    return "x" * 14_000_000


@app.task(max_attempts=1)
def bulky() -> int:
    return len(bulk())


@app.task(max_attempts=1)
def bulk_result() -> str:
    return "y" * 600_000


@outlive.step(relaxed=True)
def count(n: int) -> int:
    return n


@outlive.step(attempts=2, backoff="2s", timeout="500ms")
async def print_in_time(file: str) -> str:
    return await print_label(1, file)


@app.task(max_attempts=1)
async def prints_in_time(file: str) -> str:
    return await print_in_time(file)


@outlive.step(relaxed=True)
async def acount(n: int) -> int:
    return n


@app.task(max_attempts=1)
async def counts_beside(file: str) -> tuple[str, int]:
    """Keep a step, and when its test says so a relaxed one beside it, while another task goes on and on."""

    async def go_on_and_on() -> None:
        while True:
            await asyncio.to_thread(note, file, "on")

    printing, going_on = asyncio.create_task(print_label(1, file)), asyncio.create_task(go_on_and_on())
    await asyncio.to_thread(Path(f"{file}.gate").read_text)
    note(file, "counts")
    counted = await acount(2)
    going_on.cancel()
    return await printing, counted


@app.task(max_attempts=1)
def counts_and(then: str, file: str) -> int:
    """Keep a relaxed step, and end, or wait."""
    counted = count(1)
    note(file, f"counted {os.getpid()}")
    if then == "waits":
        outlive.current().sleep(0)
        note(file, "waited")
    return counted


@app.task(backoff="1ms")
def moves_on(file: str) -> object:
    """Keep a step and a checkpoint, and another one when its test says so; then fail. Returns what was kept."""
    context = outlive.current()
    if context.last_checkpoint is not None:
        return context.last_checkpoint
    count(1)
    context.checkpoint(1)
    Path(f"{file}.gate").read_text()
    context.checkpoint(2)
    Path(f"{file}.gate").read_text()
    raise ConnectionError("not yet")


@outlive.step
def nap_inside() -> None:
    outlive.current().sleep("1s")


@app.task(max_attempts=1)
def naps_in_a_step() -> None:
    nap_inside()


@app.task(max_attempts=1)
def never_enough(url: str) -> list[str]:
    """It keeps all steps but one, and then tries each of the other ways to keep two more."""
    import psycopg

    job, refused = outlive.current(), []
    for n in range(9_999):
        count(n)
    with psycopg.connect(url) as connection:
        assert job.once(connection, "first")
        assert not job.once(connection, "first")
        for keep_more in (lambda: job.once(connection, "second"), lambda: job.sleep(0), lambda: count(1)):
            try:
                keep_more()
            except outlive.Fail as error:
                refused.append(str(error).partition(": a job")[0])
    return refused


@app.task(max_attempts=1)
def receives_for_ever() -> None:
    while True:
        outlive.current().receive("pad")


@app.task(max_attempts=1)
def page_by_page(page: int, file: str) -> int:
    """It restarts with the next page, and keeps each page's step for the attempts of that page alone."""
    pack(page, file)
    try:
        if page < 3:
            outlive.current().restart(page + 1, file=file)
    except Exception:
        note(file, "caught")
    return page


@app.task(max_attempts=1)
async def restart_wrongly() -> None:
    outlive.current().restart("no parameter")


@outlive.step
def wait_for_test(file: str) -> None:
    Path(f"{file}.gate").read_text()


@app.task
def gated(file: str) -> None:
    wait_for_test(file)


@app.task(backoff="1ms")
def counts_on(file: str) -> list[int]:
    """Keep more checkpoints than a job may keep steps, and die. Returns what the next attempt finds."""
    context = outlive.current()
    if context.last_checkpoint is None:
        for number in range(1, 11_001):
            context.checkpoint(number)
        Path(file).write_text(str(number))
        os.kill(os.getpid(), signal.SIGKILL)
    assert isinstance(context.last_checkpoint, int)
    return [context.last_checkpoint, int(Path(file).read_text())]
