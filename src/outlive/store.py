"""The storage contract: one verb per transition, each a `Statement` that sync and async callers run alike.

The SQL lives in sql/statements; here parameters are packed and rows become data. Python never sends "now". It is
longer than other files because it is a list: one small function for each statement, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from outlive import sql
from outlive.errors import BadArguments, StaleAttempt
from outlive.model import (
    Admitted,
    Attempt,
    Change,
    Claimed,
    Dead,
    Ended,
    Grant,
    JobRequest,
    Lane,
    LaneState,
    Lost,
    Record,
    Sourced,
    SourceLimits,
    Turn,
)
from outlive.policy import Limits
from outlive.protocol import ARGUMENTS_PART_BYTES, Progress
from outlive.statement import (
    BIGINTS,
    BOOLEANS,
    FLOATS,
    INTS,
    JSONBS,
    JSONS,
    SMALLINTS,
    TEXTS,
    TIMES,
    UUIDS,
    Row,
    Statement,
    column,
)
from outlive.states import Outcome, State

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Table = list[dict[str, Any]]

WATERMARK_SLACK = timedelta(milliseconds=20)
_EVER = datetime.min.replace(tzinfo=UTC)

_TEXTS = {name: (text.text.encode(), text.parameters) for name, text in sql.statements().items()}


def _statement(called: str, decode: Any, **values: object) -> Statement[Any]:
    text, parameters = _TEXTS[called]
    given = tuple(values[parameter] for parameter in parameters)
    return Statement(called, text, given, decode, hot=called == "end_and_claim", named=decode is _table)


def _none(_: Sequence[str], rows: list[Row]) -> None:
    return None


def _structs(kind: type[S], _: Sequence[str], rows: list[Row]) -> list[S]:
    return [kind(*row) for row in rows]


def _table(names: Sequence[str], rows: list[Row]) -> Table:
    return [dict(zip(names, row, strict=True)) for row in rows]


def _first(_: Sequence[str], rows: list[Row]) -> list[Any]:
    return [row[0] for row in rows]


def _scalar(_: Sequence[str], rows: list[Row]) -> Any:
    return rows[0][0]


# Clients


def enqueue(jobs: Sequence[JobRequest], *, max_args_bytes: int, notify: bool = False) -> Statement[dict[UUID, UUID]]:
    """Ask for jobs. What comes back: those not made, and the unfinished job that has their dedupe key."""
    if len(jobs) == 1:
        return _enqueue_one(jobs[0], max_args_bytes=max_args_bytes, notify=notify)
    keyed = [job.on_conflict if job.dedupe_key is not None else None for job in jobs]
    return _statement(
        "enqueue",
        lambda _, rows: dict(rows),
        ids=column(UUIDS, (job.id for job in jobs)),
        tasks=column(TEXTS, (job.task for job in jobs)),
        queues=column(TEXTS, (job.queue for job in jobs)),
        sources=column(TEXTS, (job.source for job in jobs)),
        args=column(JSONS, (job.args for job in jobs)),
        priorities=column(SMALLINTS, (job.priority for job in jobs)),
        delays_s=column(FLOATS, (job.delay_s for job in jobs)),
        run_ats=column(TIMES, (job.run_at for job in jobs)),
        keys=column(TEXTS, (job.dedupe_key for job in jobs)),
        on_conflicts=column(TEXTS, keyed),
        options=column(JSONBS, (job.options for job in jobs)),
        max_args_bytes=max_args_bytes,
        notify=notify,
    )


def _enqueue_one(job: JobRequest, *, max_args_bytes: int, notify: bool) -> Statement[dict[UUID, UUID]]:
    plain = (job.dedupe_key, job.options, job.delay_s, job.run_at) == (None, None, None, None)
    return _statement(
        "enqueue_plain" if plain else "enqueue_one",
        lambda _, rows: {} if rows[0][0] == job.id else {job.id: rows[0][0]},
        id=job.id,
        task=job.task,
        args=job.args.decode(),
        queue=job.queue,
        source=job.source,
        priority=job.priority,
        delay_s=job.delay_s,
        run_at=job.run_at,
        dedupe_key=job.dedupe_key,
        on_conflict=job.on_conflict,
        options=job.options and job.options.decode(),
        max_args_bytes=max_args_bytes,
        notify=notify,
    )


def statuses(ids: Sequence[UUID]) -> Statement[dict[UUID, State]]:
    return _statement("statuses", lambda _, rows: {row[0]: State(row[1]) for row in rows}, ids=column(UUIDS, ids))


def outcome(job: UUID) -> Statement[tuple[State, Attempt | None] | None]:
    """A job's state and its last attempt; None if there is no such job."""

    def decode(_: Sequence[str], rows: list[Row]) -> tuple[State, Attempt | None] | None:
        if not rows:
            return None
        state, *attempt = rows[0][1:]
        return State(state), _attempt(attempt) if attempt[0] is not None and attempt[1] is not None else None

    return _statement("outcomes", decode, ids=column(UUIDS, [job]))


def _attempt(row: Sequence[Any]) -> Attempt:
    number, outcome, *evidence, result = row
    return Attempt(*[number, Outcome(outcome), *evidence, None if result is None else msgspec.Raw(result)])


ASKED_FROM_JOBS = frozenset(
    {
        *("enqueue", "enqueue_one", "enqueue_plain", "statuses", "outcomes", "cancel"),
        *("ask_source", "count_outcomes", "list_records"),
    }
)
_SAYS_WHO_ASKS = ("ask_source", "count_outcomes")
"""Their second parameter is the token of the attempt that calls a source."""


def asked(name: str, parameters: Sequence[object], token: int | None) -> Statement[tuple[Sequence[str], list[Row]]]:
    """A statement that the job of this attempt asks for by its name; its rows go back as they are."""
    if name not in ASKED_FROM_JOBS:
        raise BadArguments(f"a job can't ask for the statement {name}")
    if name in _SAYS_WHO_ASKS and parameters[1] not in (None, token, column(BIGINTS, [token])):
        raise StaleAttempt(f"a job asked for {name} in the name of an attempt that its process does not run")
    return Statement(name, _TEXTS[name][0], tuple(parameters), lambda names, rows: (names, rows))


# Workers


def end_and_claim(
    worker: UUID,
    ended: Sequence[Ended] = (),
    lanes: Sequence[Lane] = (),
    *,
    limit: int = 0,
    lease_s: float = 300.0,
    begun: bool = True,
) -> Statement[Turn]:
    """End attempts, claim at most `limit` jobs from the lanes, in one statement. Not `begun`: they wait in a line."""
    ended = sorted(ended, key=lambda end: end.token)
    outcomes = (None if end.outcome is Outcome.SUCCEEDED else end.outcome for end in ended)
    return _statement(
        "end_and_claim",
        _turn,
        worker=worker,
        limit=limit,
        lease_s=lease_s,
        begun=begun,
        tokens=column(BIGINTS, (end.token for end in ended)),
        outcomes=column(TEXTS, outcomes),
        errors=column(TEXTS, (end.error for end in ended)),
        exit_codes=column(INTS, (end.exit_code for end in ended)),
        signals=column(TEXTS, (end.signal for end in ended)),
        peaks_bytes=column(BIGINTS, (end.peak_memory_bytes for end in ended)),
        cpus_s=column(FLOATS, (end.cpu_s for end in ended)),
        outputs=column(TEXTS, (end.output for end in ended)),
        stacks=column(TEXTS, (end.stack for end in ended)),
        results=column(JSONS, (end.result for end in ended)),
        finals=column(BOOLEANS, (end.final or None for end in ended)),
        afters_s=column(FLOATS, (end.after_s for end in ended)),
        queues=column(TEXTS, (lane.queue for lane in lanes)),
        sources=column(TEXTS, (lane.source for lane in lanes)),
        tasks=column(TEXTS, (lane.task for lane in lanes)),
        priorities=column(SMALLINTS, (lane.priority for lane in lanes)),
        marks=column(TIMES, (lane.mark or _EVER for lane in lanes)),
        quotas=column(INTS, (lane.quota for lane in lanes)),
    )


def _turn(_: Sequence[str], rows: list[Row]) -> Turn:
    return Turn(
        [Claimed(*row) for row in rows if row[1] is not None],
        [row[0] for row in rows if row[1] is None],
    )


def locked_ends(worker: UUID, tokens: Iterable[int]) -> Statement[set[int]]:
    """Those that can't be ended now for another transaction's lock."""
    return _statement(
        "locked_ends", lambda _, rows: {row[0] for row in rows}, worker=worker, tokens=column(BIGINTS, tokens)
    )


def claim_sourced(worker: UUID, lanes: Sequence[Lane], *, limit: int, lease_s: float = 300.0) -> Statement[Admitted]:
    """Claim at most `limit` jobs from lanes that have a source, as far as these admit them."""

    def decode(_: Sequence[str], rows: list[Row]) -> Admitted:
        claimed = [Claimed(*row[:13]) for row in rows if row[1] is not None]
        return Admitted(claimed, {row[4]: row[13] for row in rows if row[1] is None})

    return _statement(
        "claim_sourced",
        decode,
        worker=worker,
        queues=column(TEXTS, (lane.queue for lane in lanes)),
        sources=column(TEXTS, (lane.source for lane in lanes)),
        tasks=column(TEXTS, (lane.task for lane in lanes)),
        priorities=column(SMALLINTS, (lane.priority for lane in lanes)),
        limit=limit,
        lease_s=lease_s,
    )


def complete_with_records(worker: UUID, end: Ended) -> Statement[None]:
    """End an attempt as succeeded together with what it has found and what it asks for next."""
    texts = {
        name: None if data is None else data.decode()
        for name, data in (("result", end.result), ("records", end.records), ("spawns", end.spawns))
    }
    evidence = {"peak_memory_bytes": end.peak_memory_bytes, "cpu_s": end.cpu_s, "output": end.output}
    return _statement("complete_with_records", _none, token=end.token, worker=worker, **texts, **evidence)


def add_evidence(worker: UUID, end: Ended) -> Statement[None]:
    """What is known of an attempt that has ended in its own transaction."""
    evidence = {"peak_memory_bytes": end.peak_memory_bytes, "cpu_s": end.cpu_s, "output": end.output}
    return _statement("add_evidence", _none, token=end.token, worker=worker, **evidence)


def claim_suspect(
    worker: UUID, *, tasks: Sequence[str], queues: Sequence[str] | None = None, lease_s: float = 300.0
) -> Statement[list[Claimed]]:
    return _statement(
        "claim_suspect",
        partial(_structs, Claimed),
        worker=worker,
        tasks=column(TEXTS, tasks),
        queues=None if queues is None else column(TEXTS, queues),
        lease_s=lease_s,
    )


def renew(worker: UUID, tokens: Iterable[int], *, lease_s: float = 300.0) -> Statement[dict[int, bool]]:
    """The tokens renewed, and whether each is asked to stop. A token missing here: read `ended` before judging."""
    return _statement(
        "renew", lambda _, rows: dict(rows), worker=worker, tokens=column(BIGINTS, tokens), lease_s=lease_s
    )


def mark_begun(worker: UUID, tokens: Iterable[int]) -> Statement[None]:
    return _statement("mark_begun", _none, worker=worker, tokens=column(BIGINTS, tokens))


def ended(tokens: Iterable[int]) -> Statement[dict[int, tuple[Outcome, State]]]:
    return _statement(
        "ended",
        lambda _, rows: {row[0]: (Outcome(row[2]), State(row[3])) for row in rows},
        tokens=column(BIGINTS, tokens),
    )


def adopt(worker: UUID, tokens: Iterable[int] | None = None) -> Statement[list[Claimed]]:
    """All that this worker has, or the attempts with these tokens."""
    some = None if tokens is None else column(BIGINTS, tokens)
    return _statement("adopt", partial(_structs, Claimed), worker=worker, tokens=some)


def arguments(token: int, part: int) -> Statement[bytes | None]:
    """A part of a job's arguments; None if it does not run any more."""
    return _statement(
        "arguments",
        lambda _, rows: rows[0][0] if rows else None,
        token=token,
        part=part,
        part_bytes=ARGUMENTS_PART_BYTES,
    )


def tokens_of(worker: UUID) -> Statement[list[int]]:
    return _statement("tokens_of", _first, worker=worker)


def expire(*, batch: int = 1000) -> Statement[list[Lost]]:
    return _statement("expire", partial(_structs, Lost), batch=batch)


def reap(*, batch: int = 1000) -> Statement[list[Lost]]:
    return _statement("reap", partial(_structs, Lost), batch=batch)


def convict(worker: UUID, tokens: Iterable[int]) -> Statement[list[UUID]]:
    return _statement("convict", _first, worker=worker, tokens=column(BIGINTS, tokens))


def crashing_tasks(*, jobs: int, within_s: float) -> Statement[Table]:
    return _statement("crashing_tasks", _table, jobs=jobs, within_s=within_s)


def suspects_wait(tasks: Sequence[str], queues: Sequence[str] | None, *, after_s: float) -> Statement[bool]:
    return _statement(
        "suspects_wait",
        _scalar,
        tasks=column(TEXTS, tasks),
        queues=None if queues is None else column(TEXTS, queues),
        after_s=after_s,
    )


def quarantine_killers(*, batch: int = 1000) -> Statement[list[UUID]]:
    return _statement("quarantine_killers", _first, batch=batch)


def untold_killers(*, batch: int = 100, after_s: float = 0.0) -> Statement[Table]:
    return _statement("untold_killers", _table, batch=batch, after_s=after_s)


def let_others_in(worker: UUID, token: int) -> Statement[bool]:
    """Whether other jobs may run beside this suspect now."""
    return _statement("let_others_in", lambda _, rows: bool(rows), worker=worker, token=token)


def unsourced_lanes(tasks: Sequence[str], queues: Sequence[str] | None = None) -> Statement[list[LaneState]]:
    return _statement(
        "unsourced_lanes",
        partial(_structs, LaneState),
        tasks=column(TEXTS, tasks),
        queues=None if queues is None else column(TEXTS, queues),
    )


def sourced_lanes(
    tasks: Sequence[str], queues: Sequence[str] | None = None, *, after: tuple[str, str] = ("", ""), batch: int = 256
) -> Statement[Sourced]:
    """The lanes of at most `batch` sources, after a queue and source."""

    def decode(_: Sequence[str], rows: list[Row]) -> Sourced:
        last = max(rows, key=lambda row: row[7], default=None)
        return Sourced(
            [LaneState(*row[:6]) for row in rows if row[2] is not None],
            {row[1]: row[6] for row in rows if row[6] > 0},
            (last[0], last[1]) if last is not None and last[7] == batch else None,
        )

    return _statement(
        "sourced_lanes",
        decode,
        tasks=column(TEXTS, tasks),
        queues=None if queues is None else column(TEXTS, queues),
        after_queue=after[0],
        after_source=after[1],
        batch=batch,
    )


def register_sources(sources: Iterable[SourceLimits]) -> Statement[list[str]]:
    """The names of those that another transaction has locked."""
    return _statement("register_sources", _first, sources=msgspec.json.encode(list(sources)).decode())


def spread_limits(tasks: Iterable[str]) -> Statement[list[str]]:
    """The names of those that another transaction has locked."""
    return _statement("spread_limits", _first, tasks=column(TEXTS, tasks))


def ask_source(source: str, token: int | None) -> Statement[Grant]:
    return _statement("ask_source", lambda _, rows: Grant(*rows[0]), source=source, token=token)


def count_outcomes(
    outcomes: Sequence[tuple[str, int | None, bool | None]], slots: Iterable[int] = (), *, patient: bool = True
) -> Statement[list[int]]:
    """How calls of sources went: the source, whose attempt, and whether well. None only gives back slot and trial.

    What comes back: the places, from 1, of those that are not counted because their source is locked.
    """
    return _statement(
        "count_outcomes",
        _scalar,
        sources=column(TEXTS, (source for source, _, _ in outcomes)),
        tokens=column(BIGINTS, (token for _, token, _ in outcomes)),
        oks=column(BOOLEANS, (ok for _, _, ok in outcomes)),
        slots=column(BIGINTS, slots),
        patient=patient,
    )


def breakers() -> Statement[Table]:
    return _statement("breakers", _table)


def sleep(worker: UUID) -> Statement[None]:
    return _statement("sleep", _none, worker=worker)


def wake(worker: UUID) -> Statement[None]:
    return _statement("wake", _none, worker=worker)


def register_tasks(limits: Iterable[Limits]) -> Statement[None]:
    return _statement("register_tasks", _none, policies=msgspec.json.encode(list(limits)).decode())


def register_worker(
    id: UUID,
    *,
    name: str,
    hostname: str,
    pid: int,
    version: str,
    queues: Sequence[str] | None,
    slots: int,
    secret: UUID | None = None,
    formerly: UUID | None = None,
) -> Statement[None]:
    """A worker begins. `formerly` is who it was when it was given up.

    The secrets of its attempts are derived from `secret`.
    """
    return _statement(
        "register_worker",
        _none,
        id=id,
        name=name,
        hostname=hostname,
        pid=pid,
        version=version,
        queues=None if queues is None else column(TEXTS, queues),
        slots=slots,
        secret=secret,
        formerly=formerly,
    )


def heartbeat(worker: UUID, state: str, trouble: str | None = None) -> Statement[bool]:
    """False: it was given up. `trouble` says why it can't begin any job at present."""
    return _statement("heartbeat", lambda _, rows: bool(rows), worker=worker, state=state, trouble=trouble)


def stop_worker(worker: UUID) -> Statement[None]:
    return _statement("stop_worker", _none, worker=worker)


def show_life(worker: UUID, key: int) -> Statement[bool]:
    return _statement("show_life", lambda _, rows: bool(rows), worker=worker, key=key)


def absent(worker: UUID | None) -> Statement[dict[UUID, int | None]]:
    """Workers without their lock, by its key. Without a key: this worker, and it was given up."""
    return _statement("absent", lambda _, rows: dict(rows), worker=worker)


def declare_dead(workers: Mapping[UUID, int]) -> Statement[list[Dead]]:
    keys = column(BIGINTS, workers.values())
    return _statement("declare_dead", partial(_structs, Dead), workers=column(UUIDS, workers), keys=keys)


def give_up_silent(*, stale_s: float, dead_s: float) -> Statement[list[Dead]]:
    return _statement("give_up_silent", partial(_structs, Dead), stale_s=stale_s, dead_s=dead_s)


def try_lock(name: str) -> Statement[bool]:
    return _statement("try_lock", _scalar, name=name)


def unlock(name: str) -> Statement[None]:
    return _statement("unlock", _none, name=name)


def cancels(worker: UUID) -> Statement[set[int]]:
    return _statement("cancels", lambda _, rows: {row[0] for row in rows}, worker=worker)


def write_progress(worker: UUID, progress: Iterable[Progress]) -> Statement[None]:
    """One word of each attempt of this worker."""
    said = [
        {
            name: getattr(one, name)
            for name in ("token", "current", "total", "message")
            if getattr(one, name) is not None
        }
        | ({} if one.checkpoint is None else {"checkpoint": msgspec.Raw(one.checkpoint)})
        for one in progress
    ]
    return _statement("write_progress", _none, worker=worker, progress=msgspec.json.encode(said).decode())


def checkpoints(ids: Iterable[UUID]) -> Statement[dict[UUID, bytes]]:
    return _statement("checkpoints", lambda _, rows: dict(rows), ids=column(UUIDS, ids))


# Operators


def cancel(ids: Iterable[UUID]) -> Statement[list[Change]]:
    return _verb("cancel", ids)


def retry(ids: Iterable[UUID]) -> Statement[list[Change]]:
    return _verb("retry", ids)


def release(ids: Iterable[UUID]) -> Statement[list[Change]]:
    return _verb("release", ids)


def block(ids: Iterable[UUID], reason: str) -> Statement[list[Change]]:
    return _verb("block", ids, reason=reason)


def _verb(name: str, ids: Iterable[UUID], **more: object) -> Statement[list[Change]]:
    return _statement(name, partial(_structs, Change), ids=column(UUIDS, ids), **more)


def prune_jobs(ids: Iterable[UUID]) -> Statement[int]:
    return _statement("prune_jobs", _scalar, ids=column(UUIDS, ids))


def prune_finished(state: State, *, keep_s: float, batch: int = 5000) -> Statement[tuple[int, bool]]:
    """How many were forgotten, and whether there may be more."""
    return _statement(
        "prune_finished",
        lambda _, rows: (rows[0][0] or 0, rows[0][1] == batch),
        state=str(state),
        keep_s=keep_s,
        batch=batch,
    )


def prune_workers(*, keep_s: float) -> Statement[None]:
    return _statement("prune_workers", _none, keep_s=keep_s)


def prune_crashes(*, keep_s: float) -> Statement[None]:
    return _statement("prune_crashes", _none, keep_s=keep_s)


def pause_queue(name: str) -> Statement[None]:
    return _statement("pause_queue", _none, name=name)


def set_source(name: str, values: Mapping[str, float | None]) -> Statement[bool]:
    """False: there is no such source."""
    return _statement(
        "set_source",
        lambda _, rows: bool(rows),
        name=name,
        values=msgspec.json.encode({f"set_{key}": value for key, value in values.items()}).decode(),
    )


def pause_source(name: str) -> Statement[bool]:
    return _statement("pause_source", lambda _, rows: bool(rows), name=name)


def resume_source(name: str) -> Statement[bool]:
    return _statement("resume_source", lambda _, rows: bool(rows), name=name)


def resume_queue(name: str) -> Statement[bool]:
    """False: it was not paused."""
    return _statement("resume_queue", lambda _, rows: bool(rows), name=name)


# People


def job(id: UUID) -> Statement[Table]:
    return _statement("job", _table, id=id)


def list_attempts(job: UUID) -> Statement[list[Attempt]]:
    def decode(_: Sequence[str], rows: list[Row]) -> list[Attempt]:
        return [_attempt((row[0], row[1], *row[3:])) for row in rows]

    return _statement("list_attempts", decode, id=job)


def list_jobs(
    *, state: State | None = None, task: str | None = None, queue: str | None = None, limit: int = 50
) -> Statement[Table]:
    return _statement("list_jobs", _table, state=state and str(state), task=task, queue=queue, limit=limit)


def choose(
    states: Iterable[State],
    *,
    task: str | None = None,
    queue: str | None = None,
    older_s: float | None = None,
    limit: int,
) -> Statement[list[UUID]]:
    """Which jobs an operator means, for a verb that takes ids."""
    return _statement(
        "choose",
        lambda _, rows: [row[0] for row in rows],
        states=column(TEXTS, map(str, states)),
        task=task,
        queue=queue,
        older_s=older_s,
        limit=limit,
    )


def list_killers(*, limit: int = 100) -> Statement[Table]:
    return _statement("list_killers", _table, limit=limit)


def list_workers(*, limit: int = 1000) -> Statement[Table]:
    return _statement("list_workers", _table, limit=limit)


def clock() -> Statement[float]:
    return _statement("clock", _scalar)


def list_stuck(*, limit: int = 100) -> Statement[Table]:
    return _statement("list_stuck", _table, limit=limit)


def list_queues() -> Statement[Table]:
    return _statement("list_queues", _table)


def list_sources(*, limit: int = 1000) -> Statement[Table]:
    return _statement("list_sources", _table, limit=limit)


def list_records(*, scope: str | None = None, source: str | None = None, limit: int) -> Statement[list[Record]]:
    def decode(_: Sequence[str], rows: list[Row]) -> list[Record]:
        return [Record(*(*row[:3], msgspec.json.decode(row[3]), *row[4:])) for row in rows]

    return _statement("list_records", decode, scope=scope, source=source, limit=limit)


def stats() -> Statement[Table]:
    return _statement("stats", _table)


def health() -> Statement[Table]:
    return _statement("health", _table)


def task_names() -> Statement[list[str]]:
    return _statement("task_names", _first)
