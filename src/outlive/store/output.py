"""statements/output.sql: what attempts say, for people and pages that follow them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from outlive.output import LiveOutput, OutputPart, split
from outlive.statement import Row, Statement
from outlive.states import State
from outlive.store.reads import course
from outlive.store.statements import statement


def watch(job: UUID, *, attempt: int | None = None, after: int = 0) -> Statement[OutputPart | None]:
    """What an attempt has printed after its line of this number, and used; None: there is no such job.

    Without a number it is the attempt that runs, or else the last one. To follow one that runs, call this again with
    the number of the last line. Its worker writes what it says only while it is followed.
    """

    def decode(rows: list[Row]) -> OutputPart | None:
        if not rows:
            return None
        state, number, live, text, memory, asked, steps = rows[0]
        missing, lines = split(text or "")
        before, used = max(missing, after), memory and course(memory)
        return OutputPart(State(state), number, live, before, lines[before - missing :], used, asked, steps or "")

    return statement("watch", decode, id=job, attempt=attempt, after=after)


def watched(worker: UUID) -> Statement[dict[int, bool]]: ...
def prune_watched() -> Statement[None]: ...
def write_output(worker: UUID, outputs: Iterable[LiveOutput]) -> Statement[None]: ...
