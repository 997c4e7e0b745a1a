"""Fixtures of the tests of guarantees: an app, and hands that do a worker's part."""

from collections.abc import Callable, Iterator

import pytest

from outlive import App
from outlive.client.task import Task
from tests.driving.hand import Hand
from tests.driving.making import Queue
from tests.faults import add


@pytest.fixture
def app(database_url: str) -> Iterator[App]:
    app = App(database_url)
    yield app
    app.connections.close()


@pytest.fixture
def task(app: App) -> Task[[int, int], int, int]:
    return app.task(add.function)


@pytest.fixture
def new_hand(connect: Callable[[], Queue]) -> Callable[[], Hand]:
    return lambda: Hand(connect())


@pytest.fixture
def hand(new_hand: Callable[[], Hand]) -> Hand:
    return new_hand()
