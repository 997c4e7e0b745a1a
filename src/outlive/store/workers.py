"""statements/workers.sql: how a worker registers, shows that it is alive, is declared dead, and stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal
from uuid import UUID

import msgspec

from outlive.config import ALERTS, Config
from outlive.model import Dead
from outlive.policy import TaskRow
from outlive.statement import Statement
from outlive.store.statements import any_row, first_column, first_column_set, nothing, scalar, statement, structs


class Absent(msgspec.Struct, frozen=True):
    """A worker that does not hold the lock that shows its life."""

    worker: UUID
    reason: Literal["lock missing", "never locked", "declared dead"]
    """Its session is gone; it took no lock since the server started, though it had one before; or it is the worker that
    looks, and another one has declared it dead."""
    key: int
    """The key of its lock, or 0 for none."""


def register_tasks(limits: Iterable[TaskRow]) -> Statement[None]:
    """Write the limits of this worker's tasks, so that any reaper can apply them."""
    return statement("register_tasks", nothing, policies=msgspec.json.encode(list(limits)))


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
    config: Config | None = None,
) -> Statement[None]:
    """Register a worker. Its attempts' secrets are derived from `secret`, and by its `config` others judge whether it
    lives, and which alerts to leave to it.

    `formerly` is the id under which this process was declared dead; the losses that this cost its jobs are taken back.
    """
    columns = {"id": id, "name": name, "hostname": hostname, "pid": pid, "version": version, "slots": slots}
    settings = {key: config and getattr(config, key) for key in ("heartbeat_s", "renew_s", "stale_s", "dead_s")}
    alerts = [key for key in ALERTS if getattr(config, key, None)]
    given = {**columns, **settings, "queues": queues, "secret": secret, "formerly": formerly, "alerts": alerts}
    return statement("register_worker", nothing, **given)


def tell_tasks(
    worker: UUID, tasks: Iterable[str], *, app: str | None = None, schedules: Iterable[str] = ()
) -> Statement[None]:
    """Which tasks this worker has, so that people learn of jobs that no worker can run; and which schedules its app
    declares, so that no other worker withdraws them."""
    return statement("tell_tasks", nothing, worker=worker, tasks=tasks, app=app, schedules=schedules)


def heartbeat(
    worker: UUID, state: str, trouble: str | None = None, memory_bytes: int | None = None
) -> Statement[list[bool]]:
    """Whether an operator wants this worker to drain; empty: it was declared dead.

    `trouble` says why it can't start jobs at present. `memory_bytes` is that of all its processes, if it was measured.
    """
    return statement("heartbeat", first_column, worker=worker, state=state, trouble=trouble, memory_bytes=memory_bytes)


def drain_workers(name: str) -> Statement[list[UUID]]:
    """Tell the workers of this name to finish their jobs and stop. Returns them."""
    return statement("drain_workers", first_column, name=name)


def stop_worker(worker: UUID) -> Statement[None]:
    return statement("stop_worker", nothing, worker=worker)


def show_life(worker: UUID, key: int) -> Statement[bool]:
    """Take the worker's advisory lock in this session. False: another session holds a lock with this key."""
    return statement("show_life", any_row, worker=worker, key=key)


def absent(worker: UUID | None) -> Statement[list[Absent]]:
    """Workers that don't hold their lock, and this worker itself, if it was declared dead."""
    return statement("absent", structs(Absent), worker=worker)


def note_missed(workers: Iterable[UUID], *, for_s: float) -> Statement[set[UUID]]:
    """Note that these workers show no life. Those of them that have shown none for so long since the server started."""
    return statement("note_missed", first_column_set, workers=workers, for_s=for_s)


def declare_dead(workers: Mapping[UUID, int]) -> Statement[list[Dead]]:
    """Declare workers dead that still don't hold the locks with these keys."""
    why = "its session is gone"
    return statement("declare_dead", structs(Dead), workers=workers.keys(), keys=workers.values(), why=why)


def give_up_silent(*, by: float | None = None, reconnected_s: float | None = None) -> Statement[list[Dead]]:
    """Declare workers stale, and then dead, whose heartbeat is as old as their own settings say. `by` is as for
    `expire`. `reconnected_s`: how long the server has been back, if it was away."""
    why = "no heartbeat for %s s"
    return statement("give_up_silent", structs(Dead), by=by, reconnected_s=reconnected_s, why=why)


def untold_deaths(*, within_s: float, batch: int) -> Statement[list[Dead]]:
    """Workers that were declared dead within this time, by whichever reaper, and for which no command was run."""
    return statement("untold_deaths", structs(Dead), within_s=within_s, batch=batch)


def slowest(own_s: float) -> Statement[float]:
    """How long the slowest living worker may take until it renews its leases and beats again, at least `own_s`."""
    return statement("slowest", scalar, own_s=own_s)


def try_lock(name: str) -> Statement[bool]:
    return statement("try_lock", scalar, name=name)


def unlock(name: str) -> Statement[None]:
    return statement("unlock", nothing, name=name)


def prune_workers(*, keep_s: float) -> Statement[None]:
    return statement("prune_workers", nothing, keep_s=keep_s)
