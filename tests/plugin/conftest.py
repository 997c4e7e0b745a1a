"""The fixtures of the plugin, for one app: other modules of this process have apps too."""

from collections.abc import Iterator, Sequence

import pytest

import outlive
from tests.plugin import shop


@pytest.fixture(scope="session")
def outlive_apps() -> Sequence[outlive.App]:
    return [shop.app]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    shop.seen.clear()
