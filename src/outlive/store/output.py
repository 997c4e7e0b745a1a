"""statements/output.sql: what attempts say, for people and pages that follow them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from outlive import output
from outlive.model import Said
from outlive.statement import Row, Statement
from outlive.states import State
from outlive.store.building import Names, nothing, pairs, statement


def watch(job: UUID, *, attempt: int | None = None, after: int = 0) -> Statement[Said | None]:
    """What an attempt has said after its line of this number; None: there is no such job.

    Without a number it is the attempt that runs, or else the last one. To follow one that runs, call this again with
    the number of the last line. Its worker writes what it says only while it is followed.
    """

    def decode(_: Names, rows: list[Row]) -> Said | None:
        if not rows:
            return None
        state, number, live, text = rows[0]
        missing, lines = output.split(text or "")
        return Said(State(state), number, live, max(missing, after), lines[max(0, after - missing) :])

    return statement("watch", decode, id=job, attempt=attempt, after=after)


def watched(worker: UUID) -> Statement[dict[int, bool]]:
    """The tokens of this worker's attempts that are followed, and whether any of their output is written."""
    return statement("watched", pairs, worker=worker)


def write_output(worker: UUID, outputs: Iterable[tuple[int, int, str]]) -> Statement[None]:
    """Write the number of lines and the kept output of followed attempts, given with their tokens."""
    rows = [{"token": token, "lines": lines, "output": text} for token, lines, text in outputs]
    return statement("write_output", nothing, worker=worker, outputs=msgspec.json.encode(rows).decode())


def prune_watched() -> Statement[None]:
    return statement("prune_watched", nothing)
