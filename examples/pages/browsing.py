"""Opens a page in headless Chromium. A page may do anything to its browser, and nothing here relies on its manners."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from playwright.sync_api import Error, Page, sync_playwright

ROOM = Path(tempfile.gettempdir()) / f"pages-{os.getuid()}"
"""Where browsers keep their files, each in a folder that is named by the process of its job."""
HEAP = "--js-flags=--max-old-space-size=128"
"""How much the scripts of a page may keep, in MB. The memory limit of the task is for all processes of the browser."""


class Seen(TypedDict):
    """What a page shows once its scripts have run."""

    title: str
    links: list[str]


class BrowserDied(Exception):
    """The page has killed its browser, or the part of it that shows the page."""


def see(url: str, timeout_s: float = 60.0) -> Seen:
    """Open one page in a browser of its own. BrowserDied if the page kills it."""
    with _folder(), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=[HEAP])
        page = browser.new_page()
        try:
            seen = _read(page, url, timeout_s)
        except Error as error:
            if "crashed" in error.message or "closed" in error.message:
                raise BrowserDied(f"{url}: {error.message.splitlines()[0]}") from None
            raise
        browser.close()
        return seen


def _read(page: Page, url: str, timeout_s: float) -> Seen:
    answer = page.goto(url, timeout=timeout_s * 1000)
    if answer is None or not answer.ok:
        raise ConnectionError(f"{url} answers {answer.status if answer else 'nothing'}")
    links = page.eval_on_selector_all("a[href]", "all => all.map(one => one.href)")
    return Seen(title=page.title(), links=sorted({*links} - {url}))


def _chromium() -> str:
    """The browser of this machine, as Debian and others install it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise FileNotFoundError("there is no Chromium here: apt install chromium")
    return found


@contextmanager
def _folder() -> Iterator[None]:
    """A folder for all files of a browser. Those of jobs that were killed are removed by the next one."""
    ROOM.mkdir(mode=0o700, exist_ok=True)
    for left in ROOM.iterdir():
        if not Path("/proc", left.name).exists():
            shutil.rmtree(left, ignore_errors=True)
    mine = ROOM / str(os.getpid())
    mine.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(mine)  # Only of this process: each job has its own.
    try:
        yield
    finally:
        shutil.rmtree(mine, ignore_errors=True)
