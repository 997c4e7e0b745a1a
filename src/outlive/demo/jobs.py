"""The demo's app: healthy jobs, and one of each kind that takes its process down."""

import ctypes
import os
import time

import outlive

BACKOFF = [0.2]
OWN_PROCESS = "process "
"""How a job's progress says which process it is, before the number."""

app = outlive.App()


@app.task(backoff=BACKOFF)
def resize(picture: int) -> str:
    """A healthy job."""
    time.sleep(0.1)
    return f"picture {picture}: 320 × 200"


@app.task(backoff=BACKOFF, max_attempts=5)
def fetch(page: int) -> str:
    """A job whose web site does not answer the first two times."""
    if outlive.current().attempt <= 2:
        raise ConnectionError(f"page {page} does not answer")
    return f"page {page}"


@app.task(backoff=BACKOFF, max_crashes=3)
def parse(document: str) -> None:
    """A job whose native code reads where nothing is."""
    print(f"parsing {document}")
    print("xref table: 4294967295 entries", flush=True)
    ctypes.string_at(0)


@app.task(backoff=BACKOFF, max_crashes=3, memory="96MB")
def unpack(archive: str) -> None:
    """A job that holds on to all that it unpacks."""
    kept: list[bytes] = []
    while True:
        kept.append(b"x" * 8_000_000)
        print(f"{archive}: {len(kept) * 8} MB", flush=True)
        time.sleep(0.02)


@app.task(backoff=BACKOFF, max_attempts=2, timeout="1s")
def render(page: str) -> None:
    """A job that waits for what never comes."""
    print(f"waiting for {page} to load", flush=True)
    time.sleep(600)


@app.task(backoff=BACKOFF)
def export(year: int) -> str:
    """A job whose process is killed from outside while it runs for the first time."""
    context = outlive.current()
    print(f"exporting {year}", flush=True)
    if context.attempt == 1:
        context.progress(message=f"{OWN_PROCESS}{os.getpid()}")
        time.sleep(20)
    return f"{year}.csv"
