"""The dashboard as a process of its own, and real pages of a real browser."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect

from tests.dashboard.asking import OPERATOR, VIEWER

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def served(url: str, *options: str) -> Iterator[str]:
    """A dashboard as a process of its own."""
    environ = {**os.environ, "OUTLIVE_DATABASE_URL": url, "OUTLIVE_DASHBOARD_TOKEN": OPERATOR}
    environ["OUTLIVE_DASHBOARD_VIEWER_TOKEN"] = VIEWER
    words = [sys.executable, "-m", "outlive", "dashboard", "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            process.wait(10)


@contextmanager
def opened(browser: Browser, address: str, *, zone: str | None = None) -> Iterator[Page]:
    """A page in a time zone, before a login. What the browser complains about fails the test, except that a login is
    asked for.
    """
    with browser.new_context(base_url=address, timezone_id=zone) as context:
        page = context.new_page()
        page.set_default_timeout(15_000)
        complaints: list[str] = []
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        assert [one for one in complaints if "401" not in one] == []


def live(page: Page) -> None:
    expect(page.locator("#pulse")).to_have_text("live")
