"""The app whose jobs are in the pictures of the dashboard: a shop with two tasks that kill their process."""

import ctypes
import random
import time

import outlive

app = outlive.App()
supplier = app.source("supplier", rate_limit_per_minute=120, burst=10)


@app.task(recycle_after=1000)
def fetch(url: str) -> int:
    time.sleep(random.uniform(0.02, 0.2))
    return len(url)


@app.task(max_crashes=2, backoff=["1s"])
def parse_pdf(path: str) -> int:
    print(f"opening {path}")
    print("page 3 of 41: cross-reference table at byte 18,221")
    return _read_xref(path)


def _read_xref(path: str) -> int:
    time.sleep(0.4)
    ctypes.string_at(0)  # As a broken C library would.
    return 0


@app.task(memory="256MB", max_crashes=1)
def thumbnails(album: str) -> int:
    kept: list[bytes] = []
    for photo in range(100):
        print(f"{album}: photo {photo} is decoded")
        picture = b"x" * random.randrange(14_000_000, 40_000_000)
        time.sleep(0.15)
        kept.append(picture[: len(picture) // 2])  # The leak.
        del picture
        time.sleep(0.1)
    return len(kept)


@app.task(max_attempts=1)
def charge(order: int) -> None:
    raise ValueError(f"order {order}: the card was refused (insufficient funds)")


@app.task(source="supplier", timeout="10m")
def import_catalog(supplier: str) -> None:
    context = outlive.current()
    for page in range(1, 401):
        context.progress(page, 400, f"page {page}")
        if page % 25 == 1:
            print(f"{supplier}: page {page}, {page * 48:,} articles so far")
        time.sleep(0.15)


@app.schedule("0 6 * * *", timezone="Europe/Berlin")
@app.task
def daily_report() -> str:
    return "sent"
