"""statements/workers.sql: how a worker registers, shows that it is alive, is declared dead, and stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from outlive.config import ALERTS, Config
from outlive.model import Dead
from outlive.policy import TaskRow
from outlive.statement import Row, Statement
from outlive.store.statements import Table, decoded_by, first_column, nothing, statement, structs


class Absent(msgspec.Struct, frozen=True):
    """A worker that does not hold the lock that shows its life."""

    worker: UUID
    reason: Literal["lock missing", "never locked"]
    """Its session is gone; or it took no lock since the server started, though it had one before."""
    key: int
    """The key of its lock, or 0 for none."""


class Rival(msgspec.Struct, frozen=True):
    """Another app with tasks of the same name, and whether their functions are the same too."""

    app: str
    same: bool
    tasks: list[str]


class Wanted(msgspec.Struct, frozen=True):
    """What operators want of a worker."""

    drain: bool
    reload_requested_at: datetime | None
    slots: int
    queues: tuple[str, ...] | None


def register_tasks(policies: Iterable[TaskRow]) -> Statement[None]: ...


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
    columns |= {"queues": queues, "secret": secret, "formerly": formerly}
    keys = ("heartbeat_s", "renew_s", "stale_s", "dead_s", "labels", "connections")
    columns |= {key: config and getattr(config, key) for key in keys}
    alerts = [key for key in ALERTS if getattr(config, key, None)]
    return statement("register_worker", nothing, **columns, alerts=alerts)


def tell_tasks(
    worker: UUID, tasks: Iterable[str], *, app: str | None = None, schedules: Iterable[str] = ()
) -> Statement[None]:
    """Which tasks this worker has, so that people learn of jobs that no worker can run; and which schedules its app
    declares, so that no other worker withdraws them.
    """


def rival_tasks(app: str, tasks: Iterable[str], functions: Iterable[str | None]) -> Statement[list[Rival]]: ...
def taken_over_tasks(app: str, tasks: Iterable[str], functions: Iterable[str | None]) -> Statement[list[Rival]]: ...


def _wanted(rows: list[Row]) -> list[Wanted]:
    """Queues as a worker has them: to compare them with a list would find them changed."""
    return [Wanted(drain, reload, slots, queues and tuple(queues)) for drain, reload, slots, queues in rows]


@decoded_by(_wanted)
def heartbeat(
    worker: UUID,
    state: str,
    trouble: str | None = None,
    memory_bytes: int | None = None,
    reloaded: datetime | None = None,
    reload_error: str | None = None,
) -> Statement[list[Wanted]]:
    """What operators want of this worker; empty: it was declared dead.

    `trouble` says why it can't start jobs at present. `memory_bytes` is that of all its processes, if it was measured.
    `reloaded` is the last request to reload that it has answered, and `reload_error` why it has the old code.
    """


def drain_workers(name: str) -> Statement[list[UUID]]: ...


def set_worker(name: str, values: Mapping[str, Any]) -> Statement[list[UUID]]:
    """Give the workers of this name other `slots` or `queues` (empty: all), until they stop. Returns them."""
    return statement("set_worker", first_column, name=name, slots=values.get("slots"), queues=values.get("queues"))


def reload_workers(name: str) -> Statement[list[UUID]]: ...
def stop_worker(worker: UUID) -> Statement[None]: ...
def hold_liveness_lock(worker: UUID, key: int) -> Statement[bool]: ...
def limited_roles() -> Statement[Table]: ...
def absent() -> Statement[list[Absent]]: ...
def note_missed(workers: Iterable[UUID], *, for_s: float) -> Statement[set[UUID]]: ...
def untold_deaths(*, within_s: float, batch: int) -> Statement[list[Dead]]: ...
def slowest(own_s: float) -> Statement[float]: ...
def place() -> Statement[list[Any]]: ...
def try_lock(name: str) -> Statement[bool]: ...
def unlock(name: str) -> Statement[None]: ...
def prune_workers(*, keep_s: float) -> Statement[None]: ...


def give_up_silent(*, by: float | None = None, reconnected_s: float | None = None) -> Statement[list[Dead]]:
    why = "no heartbeat for %s s"
    return statement("give_up_silent", structs(Dead), by=by, reconnected_s=reconnected_s, why=why)


def declare_dead(workers: Mapping[UUID, int]) -> Statement[list[Dead]]:
    """Declare workers dead that still don't hold the locks with these keys."""
    why = "its session is gone"
    return statement("declare_dead", structs(Dead), workers=workers.keys(), keys=workers.values(), why=why)
