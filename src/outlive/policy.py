"""What a task's author decides about its jobs, parsed and checked when the task is declared.

What is left unset here follows the worker's configuration (`resolved`), which then writes it to the database,
so that any reaper can decide by SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal

import msgspec

from outlive import units
from outlive.config import Config
from outlive.errors import ConfigError

Duration = float | str | timedelta
Backoff = Duration | Sequence[Duration] | Callable[[int], Duration]
OnWorkerDeath = Literal["retry", "fail"]
QuarantineBy = Literal["job", "fingerprint"]

MAX_BACKOFF_STEPS = 32


class Unset(msgspec.Struct, frozen=True):
    """Not said, where None means "without limit"."""


UNSET = Unset()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A task's options; None (or UNSET, where None has a meaning) follows the worker's configuration."""

    queue: str | None = None
    source: str | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    max_losses: int | Unset | None = UNSET
    timeout_s: float | Unset | None = UNSET
    stall_s: float | None = None
    memory_bytes: int | None = None
    recycle_after: int = 1
    preload: bool = True
    backoff_s: tuple[float, ...] | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    fail_on: tuple[type[BaseException], ...] = ()
    on_worker_death: OnWorkerDeath = "retry"
    quarantine_by: QuarantineBy = "job"


def exponential(base_s: float, cap_s: float) -> tuple[float, ...]:
    """base · 2^n up to the cap, as the list that the database uses: its last step is repeated for ever."""
    steps = [min(base_s * 2.0**n, cap_s) for n in range(MAX_BACKOFF_STEPS)]
    last = steps.index(steps[-1])
    return tuple(steps[: last + 1])


def parse_backoff(value: Backoff, cap_s: float = 86400.0) -> tuple[float, ...]:
    """One base, a list of delays, or a function of n: always a list, because after a crash nobody can call it."""
    if callable(value):
        return tuple(units.seconds(value(n)) for n in range(MAX_BACKOFF_STEPS))
    if isinstance(value, float | int | str | timedelta):
        return exponential(units.seconds(value), cap_s)
    steps = tuple(units.seconds(step) for step in value)
    if not 0 < len(steps) <= 1000:
        raise ConfigError("a list of backoff delays has from 1 to 1000 steps")
    return steps


def count(name: str, value: int, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 30000:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number from {least} to 30000")
    return value


def identifier(what: str, name: str) -> str:
    """Names of tasks, queues and sources: printable, not too long, without surprises."""
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable() or name != name.strip():
        raise ConfigError(f"{name!r} can't be the name of a {what}: use 1 to 200 printable characters")
    return name


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The row of `tasks` that one task's policy becomes."""

    name: str
    queue: str
    source: str
    max_attempts: int
    max_crashes: int
    max_losses: int | None
    on_worker_death: OnWorkerDeath
    quarantine_by: QuarantineBy
    backoff_s: tuple[float, ...]


def limits(name: str, policy: Policy, config: Config) -> Limits:
    """What the database is told of a task: its own policy, and the worker's configuration where it has none."""
    return Limits(
        name=name,
        queue=policy.queue or "default",
        source=policy.source or "",
        max_attempts=policy.max_attempts or config.max_attempts,
        max_crashes=policy.max_crashes or config.max_crashes,
        max_losses=config.max_losses if isinstance(policy.max_losses, Unset) else policy.max_losses,
        on_worker_death=policy.on_worker_death,
        quarantine_by=policy.quarantine_by,
        backoff_s=policy.backoff_s or exponential(config.backoff_base_s, config.backoff_cap_s),
    )
