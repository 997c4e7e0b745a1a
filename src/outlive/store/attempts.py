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
from outlive.store.statements import (
    as_they_are,
    first_column,
    first_column_set,
    nothing,
    pairs,
    scalar,
    statement,
    structs,
)

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
    """End attempts and claim at most `limit` jobs from the lanes. Jobs that will wait behind others are not `begun`."""
    ended = sorted(ended, key=attrgetter("token"))
    all_succeeded = all(end.outcome is Outcome.SUCCEEDED for end in ended)
    others = () if all_succeeded else ended  # A success has no value in their columns.
    return statement(
        "end_and_claim",
        lambda rows: Turn([Claimed(*row[1:]) for row in rows if row[1] is not None], rows[0][0]),
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
    )


def complete_with_records(worker: UUID, end: Ended) -> Statement[None]:
    """End an attempt as succeeded, and write its records and spawned jobs in the same transaction."""
    return statement(
        "complete_with_records",
        nothing,
        token=end.token,
        worker=worker,
        result=end.result,
        records=end.records,
        spawns=end.spawns,
        peak_memory_bytes=end.peak_memory_bytes,
        cpu_s=end.cpu_s,
        output=end.output,
        memory=end.memory,
    )


def add_evidence(worker: UUID, end: Ended) -> Statement[None]:
    """Add what the worker measured to an attempt that the job completed in its own transaction."""
    return statement(
        "add_evidence",
        nothing,
        token=end.token,
        worker=worker,
        peak_memory_bytes=end.peak_memory_bytes,
        cpu_s=end.cpu_s,
        output=end.output,
        memory=end.memory,
    )


def locked_ends(worker: UUID, tokens: Iterable[int]) -> Statement[set[int]]:
    """The attempts that can't end now because another transaction holds a lock."""
    return statement("locked_ends", first_column_set, worker=worker, tokens=tokens)


def ended(tokens: Iterable[int]) -> Statement[dict[int, tuple[Outcome, State]]]:
    """The attempts among these that have ended."""
    return statement(
        "ended",
        lambda rows: {row[0]: (Outcome(row[2]), State(row[3])) for row in rows},
        tokens=tokens,
    )


def renew(worker: UUID, tokens: Iterable[int], *, lease_s: float = 300.0) -> Statement[dict[int, bool]]:
    """The renewed tokens, and whether each attempt is asked to stop. Read `ended` before judging a missing token."""
    return statement("renew", pairs, worker=worker, tokens=tokens, lease_s=lease_s)


def mark_begun(worker: UUID, tokens: Iterable[int]) -> Statement[set[int]]:
    """The code of these jobs starts now: from here on a death of the worker counts against them.

    Returns the tokens that are marked. Others have ended or are locked: try again.
    """
    return statement("mark_begun", first_column_set, worker=worker, tokens=tokens)


def held_attempts(worker: UUID, tokens: Iterable[int] | None = None) -> Statement[list[Claimed]]:
    """The attempts that the database has under this worker's id; with `tokens`, only these."""
    return statement("held_attempts", structs(Claimed), worker=worker, tokens=tokens)


def tokens_of(worker: UUID) -> Statement[list[int]]:
    return statement("tokens_of", first_column, worker=worker)


def arguments(token: int, part: int) -> Statement[bytes | None]:
    """One part of a job's arguments; None if the attempt has ended."""
    return statement(
        "arguments",
        lambda rows: rows[0][0] if rows else None,
        token=token,
        part=part,
        part_bytes=ARGUMENTS_PART_BYTES,
    )


def inputs(token: int, first: int, skip: int) -> Statement[list[Row]]:
    """Some results of the jobs that a job has waited for, from this one on: their sizes, and as much as fits."""
    return statement("inputs", as_they_are, token=token, first=first, skip=skip)


def cancels(worker: UUID) -> Statement[set[int]]:
    """This worker's attempts that an operator wants stopped."""
    return statement("cancels", first_column_set, worker=worker)


def next_tries(tokens: Iterable[int]) -> Statement[dict[int, tuple[str, datetime | None]]]:
    """The state that each of these attempts gave its job, and when the next may begin. Running ones are left out."""
    return statement("next_tries", lambda rows: {row[0]: (row[1], row[2]) for row in rows}, tokens=tokens)


def lost_runs(tokens: Iterable[int]) -> Statement[list[LostRun]]:
    """Those of these attempts that were lost."""

    def decode(rows: list[Row]) -> list[LostRun]:
        return [
            LostRun(Claimed(*job), Ended(job[0], Outcome.LOST, error=error, killed=True), started_at, ended_at)
            for *job, error, started_at, ended_at in rows
        ]

    return statement("lost_runs", decode, tokens=tokens)


def write_progress(worker: UUID, progress: Iterable[Progress]) -> Statement[None]:
    """The last report of each attempt. A field without a value leaves the stored one as it is."""
    fields = ("token", "current", "total", "message")
    reports = [
        {name: getattr(one, name) for name in fields if getattr(one, name) is not None}
        | ({} if one.checkpoint is None else {"checkpoint": msgspec.Raw(one.checkpoint)})
        for one in progress
    ]
    return statement("write_progress", nothing, worker=worker, progress=msgspec.json.encode(reports))


def checkpoints(ids: Iterable[UUID]) -> Statement[dict[UUID, bytes]]:
    """The checkpoints that earlier attempts of these jobs left."""
    return statement("checkpoints", pairs, ids=ids)


def take_back(worker: UUID, tokens: Iterable[int]) -> Statement[int]:
    """Take back the losses of attempts that this worker gave up while it was alive. Returns how many there were."""
    return statement("take_back", scalar, worker=worker, tokens=tokens)


def expire(
    *, by: float | None = None, young_s: float = 0.0, after: int = 0, batch: int = 1000
) -> Statement[list[Lost]]:
    """End attempts whose lease has expired as lost, a batch of those with tokens after this one.

    `by` is the caller's own reckoning of the database's time; without it, the database's clock is trusted. While the
    server has run for less than `young_s`, only leases that were renewed since its start expire.
    """
    return statement("expire", structs(Lost), by=by, young_s=young_s, after=after, batch=batch)


def reap(*, after: int = 0, batch: int = 1000) -> Statement[list[Lost]]:
    """End the attempts of dead workers as lost, a batch of those with tokens after this one."""
    return statement("reap", structs(Lost), after=after, batch=batch)
