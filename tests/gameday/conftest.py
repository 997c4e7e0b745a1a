"""Commands and jobs, as the tests of the command line have them."""

from tests.cli.conftest import _log_as_before, cli, world

__all__ = ["_log_as_before", "cli", "world"]
