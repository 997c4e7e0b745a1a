"""statements/attempts.sql: how attempts begin, stay alive and end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from outlive.model import ARGUMENTS_PART_BYTES, Claimed, Ended, Lane, Lost, LostRun, Turn
from outlive.statement import Row, Statement
from outlive.states import Outcome, State
from outlive.store.statements import decoded_by, nothing, statement

if TYPE_CHECKING:
    from outlive.protocol import Progress

_EVER = datetime.min.replace(tzinfo=UTC)


def end_and_claim(
    worker: UUID,
    ended: Sequence[Ended] = (),
    lanes: Sequence[Lane] = (),
    *,
    limit: int = 0,
    lease_s: float = 300.0,
    begun: bool = True,
) -> Statement[Turn]:
    """End attempts and claim at most `limit` jobs from the lanes. Jobs that will wait behind others are not `begun`.

    All lanes have a source that must be asked, or none has.
    """

    def decode(rows: list[Row]) -> Turn:
        waits_s = {row[5]: row[14] for row in rows if row[14] is not None}
        return Turn([Claimed(*row[1:14]) for row in rows if row[1] is not None], rows[0][0], waits_s)

    ended = sorted(ended, key=attrgetter("token"))
    all_succeeded = all(end.outcome is Outcome.SUCCEEDED for end in ended)
    others = () if all_succeeded else ended  # A success has no value in their columns.
    return statement(
        "end_and_claim",
        decode,
        worker=worker,
        limit=limit,
        lease_s=lease_s,
        begun=begun,
        tokens=[end.token for end in ended],
        outcomes=[end.outcome for end in others],
        errors=[end.error for end in others],
        exit_codes=[end.exit_code for end in others],
        signals=[end.signal for end in others],
        peaks_bytes=[end.peak_memory_bytes for end in ended],
        cpus_s=[end.cpu_s for end in ended],
        outputs=[end.output for end in ended],
        memories=[end.memory for end in ended],
        tooks_s=[end.took_s for end in ended],
        stacks=[end.stack for end in others],
        results=[end.result for end in ended],
        kills=[end.killed or None for end in others],
        finals=[end.final or None for end in others],
        afters_s=[end.after_s for end in others],
        queues=[lane.queue for lane in lanes],
        sources=[lane.source for lane in lanes],
        tasks=[lane.task for lane in lanes],
        priorities=[lane.priority for lane in lanes],
        marks=[lane.watermark or _EVER for lane in lanes],
        quotas=[lane.quota for lane in lanes],
        asks=bool(lanes) and lanes[0].asks,
    )


def write_end(worker: UUID, end: Ended) -> Statement[None]:
    """The end of an attempt that is not plain."""
    name = "complete_with_records" if end.restart is None else "restart"
    return statement(name, nothing, worker=worker, **msgspec.structs.asdict(end))


def add_evidence(worker: UUID, end: Ended) -> Statement[None]:
    return statement("add_evidence", nothing, worker=worker, **msgspec.structs.asdict(end))


def locked_ends(worker: UUID, tokens: Iterable[int]) -> Statement[set[int]]: ...
@decoded_by(lambda rows: {token: (Outcome(outcome), State(state)) for token, _, outcome, state in rows})
def ended(tokens: Iterable[int]) -> Statement[dict[int, tuple[Outcome, State]]]: ...
def renew(worker: UUID, tokens: Iterable[int], *, lease_s: float = 300.0) -> Statement[dict[int, bool]]: ...
def mark_begun(worker: UUID, tokens: Iterable[int]) -> Statement[set[int]]: ...
def held_attempts(worker: UUID, tokens: Iterable[int] | None = None) -> Statement[list[Claimed]]: ...
def tokens_of(worker: UUID) -> Statement[list[int]]: ...
def arguments(token: int, part: int, part_bytes: int = ARGUMENTS_PART_BYTES) -> Statement[bytes | None]: ...
def inputs(token: int, first: int, skip: int) -> Statement[list[Row]]:
    """Some results of the jobs that a job has waited for, from this one on: their sizes, and as much as fits."""


def cancels(worker: UUID) -> Statement[set[int]]: ...
@decoded_by(lambda rows: {token: (state, next_try) for token, state, next_try in rows})
def next_tries(tokens: Iterable[int]) -> Statement[dict[int, tuple[str, datetime | None]]]: ...
def kept_by_jobs(ids: Iterable[UUID]) -> Statement[dict[UUID, bytes | None]]: ...
def take_back(worker: UUID, tokens: Iterable[int]) -> Statement[int]: ...
def expire(
    *, by: float | None = None, young_s: float = 0.0, after: int = 0, batch: int = 1000
) -> Statement[list[Lost]]: ...
def reap(*, after: int = 0, batch: int = 1000, lately_s: float | None = None) -> Statement[list[Lost]]: ...


def _lost_runs(rows: list[Row]) -> list[LostRun]:
    return [
        LostRun(Claimed(*job), Ended(job[0], Outcome.LOST, error=error, killed=True), started_at, ended_at)
        for *job, error, started_at, ended_at in rows
    ]


@decoded_by(_lost_runs)
def lost_runs(tokens: Iterable[int]) -> Statement[list[LostRun]]: ...


def write_progress(worker: UUID, progress: Iterable[Progress]) -> Statement[None]:
    """The last report of each attempt. A field without a value leaves the stored one as it is."""
    fields = ("token", "current", "total", "message")
    reports = [{name: getattr(one, name) for name in fields if getattr(one, name) is not None} for one in progress]
    return statement("write_progress", nothing, worker=worker, progress=msgspec.json.encode(reports))
