"""Commands on the test's own database."""

import pytest

from laboratory import lab
from tests.cli.conftest import _log_as_before
from tests.driving.commands import Cli

__all__ = ["_log_as_before"]


@pytest.fixture
def cli(database_url: str) -> Cli:
    return lab(database_url)
