"""The coin example on databases of the test's own, with workers that the test may kill."""

from tests.processes.conftest import start

__all__ = ["start"]
