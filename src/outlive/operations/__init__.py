"""What operators look at and do, for the command line and the dashboard alike: what it is called, which jobs are meant,
what is wrong, and the facts of a job. Nothing here knows a terminal or a request, and nothing here runs a statement.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from outlive.statement import Statement
from outlive.statement import acarry_out as arun
from outlive.statement import carry_out as run

__all__ = ["By", "Steps", "arun", "run"]
T = TypeVar("T")
Steps = Generator[Statement[Any], Any, T]
"""An operation of several statements. It yields each, and is sent the answer."""


class By(NamedTuple):
    """Who does something, and the entry of the audit that says so."""

    who: str
    entry: UUID
