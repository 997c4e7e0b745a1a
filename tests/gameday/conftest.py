"""Commands, as the tests of the command line have them."""

from tests.cli.conftest import _log_as_before, cli

__all__ = ["_log_as_before", "cli"]
