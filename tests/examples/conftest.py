"""The apps of the examples, and the table of one of them, for the fixtures of the pytest plugin."""

from collections.abc import Callable, Sequence

import pytest

import outlive
from coins import tasks as coins
from orders import tasks as orders
from orders.database import make_tables


@pytest.fixture(scope="session")
def outlive_apps() -> Sequence[outlive.App]:
    return [coins.app, orders.jobs]


@pytest.fixture(scope="session")
def outlive_db_setup() -> Callable[[str], object]:
    return make_tables
