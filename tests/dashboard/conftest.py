"""The dashboard on the test's database, and browsers that ask it over ASGI."""

from collections.abc import Iterator

import pytest

from tests.dashboard.asking import Dashboard


@pytest.fixture
def dashboard(database_url: str) -> Iterator[Dashboard]:
    with Dashboard(database_url) as dashboard:
        yield dashboard
