"""The dashboard on the test's database, and browsers that ask it over ASGI."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.dashboard.asking import Dashboard
from tests.dashboard.browsing import CHROMIUM


@pytest.fixture
def dashboard(database_url: str) -> Iterator[Dashboard]:
    with Dashboard(database_url) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
