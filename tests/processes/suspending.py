"""An app whose jobs wait, which workers import. Each notes in a file where its code comes by, and in which process."""

import asyncio
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg

import outlive
from tests.waiting import eventually

app = outlive.App()
loaded = b"x" * int(os.environ.get("APP_BYTES", "0"))
"""What the app has at its import."""


@dataclass
class Packed:
    parcels: list[int]


def note(file: str, line: str) -> None:
    with Path(file).open("a") as notes:
        notes.write(f"{line} {os.getpid()}\n")


@outlive.step
def charge(order: int, file: str) -> int:
    note(file, "charge")
    return order * 100


@app.task
def sleeper(pause: str, file: str) -> int:
    note(file, "begun")
    paid = charge(7, file)
    outlive.current().sleep(pause)
    note(file, "slept")
    return paid


@app.task(deadline="1h")
def deaf(file: str) -> None:
    note(file, "begun")
    signal.pause()
    note(file, "slept")


@app.task(timeout="3s", stall="1s", max_attempts=1)
def drowsy(file: str, pause: str) -> None:
    note(file, "begun")
    outlive.current().sleep(pause)
    note(file, "slept")
    signal.pause()


@app.task
async def asleeper(pause: str, file: str) -> str:
    note(file, "begun")
    job = outlive.current()
    await job.asleep(pause)
    packed = await job.areceive("packed", Packed)
    return ",".join(await job.agather(label.job(n) for n in packed.parcels))


@app.task(max_attempts=1)
async def hasty(file: str, *, apart: bool) -> list[int]:
    """It tries to end its wait by means of asyncio."""
    note(file, "begun")
    packed = outlive.current().areceive("packed", Packed)
    try:
        if apart:
            return (await asyncio.wait_for(asyncio.create_task(packed), 0.1)).parcels
        async with asyncio.timeout(0.1):
            return (await packed).parcels
    except TimeoutError:
        note(file, "late")
        raise


@app.task
def receiver(file: str, timeout: str | None = None) -> list[int]:
    note(file, "begun")
    try:
        packed = outlive.current().receive("packed", Packed, timeout=timeout)
    except outlive.NotReceived:
        note(file, "in vain")
        return []
    note(file, "received")
    return packed.parcels


@app.task
def hoarder(file: str) -> list[int]:
    """Its process needs 60 MB more than others while it waits."""
    note(file, "begun")
    kept = b"x" * 60_000_000
    packed = outlive.current().receive("packed", Packed)
    note(file, "received")
    return packed.parcels if kept else []


hoard: list[bytes] = []


def _hoard(go: str) -> None:
    eventually(Path(go).exists, within_s=60)
    hoard.append(b"x" * 300_000_000)


@app.task(memory="100MB")
def greedy(file: str, go: str) -> list[int]:
    """A thread of it goes on while it waits. A replay starts no thread."""
    note(file, "begun")
    if outlive.current().attempt == 1:
        threading.Thread(target=_hoard, args=[go], daemon=True).start()
    packed = outlive.current().receive("packed", Packed)
    note(file, "received")
    return packed.parcels


@app.task
def wary(file: str) -> list[int]:
    note(file, "begun")
    try:
        return outlive.current().receive("packed", Packed).parcels
    except BaseException:
        note(file, "raised")
        raise


@app.task
def patient(file: str, go: str) -> list[int]:
    """Waits for the file `go` before it waits for a signal."""
    note(file, "begun")
    eventually(Path(go).exists, within_s=60)
    return outlive.current().receive("packed", Packed).parcels


@outlive.step(relaxed=True)
def tally(n: int) -> int:
    return n


@app.task
def notch(file: str, go: str) -> int:
    """Waits for the file `go`, keeps a step without waiting for that, and sleeps."""
    note(file, "begun")
    eventually(Path(go).exists, within_s=60)
    kept = tally(3)
    outlive.current().sleep("50ms")
    return kept


@app.task(max_attempts=1)
def waits_in_its_transaction(url: str) -> None:
    job = outlive.current()
    with psycopg.connect(url) as connection:
        assert job.once(connection, "ledger")
        job.sleep(0)


@app.task(max_attempts=1)
async def tells(job: UUID) -> None:
    """Send two signals to another job."""
    app.get_job(job).send("packed", Packed([1]))
    await app.get_job(job).asend("packed", Packed([2]))


@app.task(timeout="1s")
def hurried(file: str) -> list[int]:
    note(file, "begun")
    return outlive.current().receive("packed", Packed).parcels


@app.task
def label(n: int) -> str:
    return f"label {n}"


@app.task
def fails(n: int) -> str:
    raise outlive.Fail("no paper")


@app.task(max_attempts=1)
def gatherer(file: str, *, failing: bool = False) -> list[str]:
    note(file, "begun")
    jobs = [label.job(n) for n in range(3)]
    if failing:
        jobs.append(fails.job(3))
    labels = outlive.current().gather(jobs)
    note(file, "gathered")
    return labels


@app.task(max_crashes=100, max_losses=None, max_attempts=100, backoff=[0.1])
def voyage(file: str) -> list[object]:
    """All that a durable job can do, each once."""
    note(file, "begun")
    job = outlive.current()
    paid = charge(7, file)
    with psycopg.connect(app.config.database_url or "") as connection:
        if job.once(connection, "ledger"):
            connection.execute("insert into ledger values (%s)", [job.job_id])
    job.sleep("50ms")
    packed = job.receive("packed", Packed)
    return [paid, *job.gather(label.job(n) for n in packed.parcels)]
