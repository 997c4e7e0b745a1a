"""The commands of the laboratory, run as tests run those of outlive."""

from outlive_lab.commands import app
from tests.driving.commands import Cli


def lab(url: str | None, *, columns: int = 200) -> Cli:
    return Cli(url, columns, package="outlive_lab", load=lambda _: app)
