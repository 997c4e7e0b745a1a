"""Running commands on the test's own database."""

import logging
from collections.abc import Iterator

import pytest

from tests.driving.commands import Cli


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(database_url)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Undo what commands that run in the test's process do to its logging."""
    logger = logging.getLogger("outlive")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
