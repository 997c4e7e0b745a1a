"""Running commands against the test's own database, and jobs in every state to run them on."""

import logging
from collections.abc import Iterator

import pytest

from outlive import db
from tests.cli.world import Cli, World


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(database_url)


@pytest.fixture
def world(connection: db.Connection) -> World:
    return World(connection)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Commands that run in this process set up its log lines; the next test finds them as they were."""
    logger = logging.getLogger("outlive")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
