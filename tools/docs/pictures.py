"""./run docs --pictures: takes the pictures of the dashboard in the documents, from real jobs of a small shop.

Workers, killers and deaths are real, on a temporary Postgres. The hour before them is made with the clock of
the database set back.
"""

from __future__ import annotations

import io
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from outlive import db, linux, migrate, store
from outlive.errors import OutliveError
from outlive.model import Ended, JobRequest, Lane, new_job_id
from outlive.states import Outcome
from outlive.temporary.program import Program, await_end, started, worker, worker_environment
from outlive.temporary.server import temporary_home, temporary_server

HERE = Path(__file__).parent
SCENE = HERE / "scene"
IMAGES = HERE.parents[1] / "docs" / "images"
TOKEN = "the-token-of-the-pictures"
MOST_BYTES = 150_000
COLOURS = 200
DESK, PHONE = (1200, 820), (390, 844)
PATIENCE_S = 60.0
PAST = UUID(int=7)


def main(folder: Path = IMAGES) -> int:
    folder.mkdir(exist_ok=True)
    with scene() as (address, jobs), browsing() as browser:
        for name, path, size, scheme in shots(jobs):
            data = shot(browser, address, path, size, scheme)
            (folder / f"{name}.png").write_bytes(data)
            print(f"wrote {folder / name}.png, {len(data):,} bytes")
            if len(data) > MOST_BYTES:
                print(f"{name}.png is larger than {MOST_BYTES:,} bytes", file=sys.stderr)
                return 1
    return 0


def shots(jobs: dict[str, UUID]) -> Iterator[tuple[str, str, tuple[int, int], str]]:
    """The name, address, size and colours of each picture."""
    yield "dashboard-overview", "", DESK, "light"
    yield "dashboard-job", f"jobs/{jobs['thumbnails']}", DESK, "light"
    yield "dashboard-workers", "workers", (1200, 480), "dark"
    yield "dashboard-phone", "killers", PHONE, "dark"


@contextmanager
def scene() -> Iterator[tuple[str, dict[str, UUID]]]:
    """The address of a dashboard, and some jobs of the shop by the names of their tasks."""
    with ExitStack() as stack:
        home = stack.enter_context(temporary_home("pictures"))
        url = stack.enter_context(temporary_server(home))
        connection = stack.enter_context(db.connect(url))
        migrate.migrate(connection)
        connection.execute(SETTABLE_CLOCK)
        make_past(connection)
        # Stacks name the path at which a reader would have the app.
        source = (SCENE / "shop.py").read_text(encoding="utf-8")
        (home / "shop.py").write_text(f"exec(compile({source!r}, '/srv/shop/shop.py', 'exec'))", encoding="utf-8")
        workers = []
        for name in ("web-1", "web-2", "web-3"):
            named = {"PYTHONPATH": str(home), "OUTLIVE_NAME": name, "OUTLIVE_HEARTBEAT_S": "2"}
            workers.append(stack.enter_context(worker("shop:app", url=url, slots=4, directory=home, more=named)))
        wait(
            lambda: holds(connection, "select count(*) = 3 from outlive.workers where tasks is not null"),
            "workers start",
        )
        jobs = make_present(connection)
        kill_one(connection, workers)
        environment = worker_environment(url) | {"OUTLIVE_DASHBOARD_TOKEN": TOKEN}
        words = [sys.executable, "-m", "outlive", "dashboard", "--listen", "127.0.0.1:0"]
        program = stack.enter_context(started(words, environment=environment, directory=home))
        yield address_of(program), jobs


def address_of(program: Program) -> str:
    wait(lambda: "dashboard: " in program.tail(), "the dashboard listens")
    return program.tail().split()[1]


def wait(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise OutliveError(f"this took too long: {what}")
        time.sleep(0.1)


def holds(connection: db.Connection, query: str) -> bool:
    return bool(connection.execute(query.encode()).fetchall()[0][0])


def kill_one(connection: db.Connection, workers: list[Program]) -> None:
    """Kill a worker while it runs a job, and wait until that is noticed."""
    busy = "select k.pid from outlive.running r join outlive.workers k on k.id = r.worker order by k.name desc limit 1"
    wait(lambda: connection.execute(busy.encode()).fetchall(), "a worker runs a job")
    [(pid,)] = connection.execute(busy.encode()).fetchall()
    [process] = [one.process for one in workers if one.process.pid == pid]
    below = linux.descendants_of(pid)
    process.kill()
    await_end(below)
    wait(lambda: holds(connection, "select count(*) > 0 from outlive.workers where died_at is not null"), "a death")


def make_past(connection: db.Connection) -> None:
    """An hour of jobs that have ended, most of them well."""
    chance = random.Random(7)
    now = datetime.now(UTC)
    set_clock(connection, now - timedelta(minutes=61))
    about: dict[str, Any] = {"name": "web-0", "hostname": "shop-eu-1", "pid": 4012, "version": "0.2"}
    db.run(connection, store.register_worker(PAST, **about, queues=None, slots=8))
    for minute in range(-60, 0):
        number = max(4, round(30 + 18 * chance.gauss(0, 0.4) + (25 if -25 < minute < -12 else 0)))
        at = now + timedelta(minutes=minute, seconds=chance.random() * 20)
        set_clock(connection, at)
        requests = [JobRequest(new_job_id(), "shop.fetch", b'{"url": "https://example.org/"}') for _ in range(number)]
        db.run(connection, store.enqueue(requests, max_args_bytes=10_000, notify=False))
        lane, later_s = Lane("default", "", "shop.fetch", 5), 0.002
        for _ in range(6):
            later_s += chance.expovariate(8)
            set_clock(connection, at + timedelta(seconds=later_s))
            some = db.run(connection, store.end_and_claim(PAST, [], [lane], limit=number // 6 + 1)).claimed
            set_clock(connection, at + timedelta(seconds=later_s + 0.05 + chance.expovariate(2)))
            db.run(connection, store.end_and_claim(PAST, [past_end(one.token, minute, chance) for one in some]))
    db.run(connection, store.stop_worker(PAST))
    set_clock(connection, None)


def past_end(token: int, minute: int, chance: random.Random) -> Ended:
    rolled = chance.random()
    if -24 < minute < -14 and rolled < 0.12:
        return Ended(token, Outcome.TIMED_OUT, error="Hard timeout of 30 s exceeded", killed=True, final=True)
    if rolled < 0.03:
        return Ended(token, Outcome.FAILED, error="ConnectionError: connection reset by peer", final=True)
    return Ended(token, result=b"19")


SETTABLE_CLOCK = b"""
create or replace function outlive.now() returns timestamptz language sql stable parallel safe
return coalesce(nullif(current_setting('pictures.now', true), '')::timestamptz, statement_timestamp())
"""


def set_clock(connection: db.Connection, at: datetime | None) -> None:
    connection.execute("select set_config('pictures.now', %s, false)", [at.isoformat() if at else ""])


def make_present(connection: db.Connection) -> dict[str, UUID]:
    """Jobs of now, two killers among them. Returns when these are in quarantine and the others run."""
    wanted = {
        "parse_pdf": {"path": "/data/invoices/2026-11-poison.pdf"},
        "thumbnails": {"album": "holidays-2026"},
        "charge": {"order": 88121},
        "import_catalog": {"supplier": "north-wind"},
    }
    jobs = {name: new_job_id() for name in wanted}
    requests = [JobRequest(jobs[name], f"shop.{name}", msgspec.json.encode(args)) for name, args in wanted.items()]
    suppliers = ("south-gate", "east-wood", "west-field", "upper-mill")
    imports = [msgspec.json.encode({"supplier": supplier}) for supplier in suppliers]
    requests += [JobRequest(new_job_id(), "shop.import_catalog", args) for args in imports]
    requests += [JobRequest(new_job_id(), "shop.fetch", b'{"url": "https://example.org/new"}') for _ in range(60)]
    later = b'{"url": "https://example.org/later"}'
    requests += [JobRequest(new_job_id(), "shop.fetch", later, delay_s=7200.0) for _ in range(3)]
    db.run(connection, store.enqueue(requests, max_args_bytes=10_000, notify=True))
    caught = "select count(*) = 2 from outlive.held where why = 'quarantined'"
    wait(lambda: holds(connection, caught), "two killers are caught")
    return jobs


@contextmanager
def browsing() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise OutliveError("there is no chromium: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def shot(browser: Browser, address: str, path: str, size: tuple[int, int], scheme: Any) -> bytes:
    """A picture of a page, with few colours, which makes it small."""
    width, height = size
    with browser.new_context(
        base_url=address,
        color_scheme=scheme,
        viewport={"width": width, "height": height},
        device_scale_factor=1.5,
        timezone_id="Europe/Berlin",
    ) as context:
        page = context.new_page()
        page.goto(f"/?token={TOKEN}")
        page.goto(f"/{path}")
        settle(page)
        taken = Image.open(io.BytesIO(page.screenshot()))
    small = io.BytesIO()
    taken.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def settle(page: Page) -> None:
    """Wait until the script has drawn local times, and the page is live."""
    page.wait_for_function("document.querySelector('#pulse')?.textContent === 'live'")
    page.wait_for_timeout(300)
