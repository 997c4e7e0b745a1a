"""What a task's author decides about its jobs, parsed and checked when the task is declared.

What is left unset here follows the worker's configuration (`resolved`), which then writes it to the database,
so that any reaper can decide by SQL.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import msgspec

from outlive import units
from outlive.config import Config
from outlive.errors import ConfigError

Duration = float | str | timedelta
Backoff = Duration | Sequence[Duration] | Callable[[int], Duration]
OnWorkerDeath = Literal["retry", "fail"]
QuarantineBy = Literal["job", "fingerprint"]

MAX_BACKOFF_STEPS = 32
DEFAULT_QUEUE = "default"
MAX_BACKOFF_S = 365 * 86400.0


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
        return tuple(_step(value(n)) for n in range(MAX_BACKOFF_STEPS))
    if isinstance(value, float | int | str | timedelta):
        return exponential(units.seconds(value), cap_s)
    steps = tuple(_step(step) for step in value)
    if not 0 < len(steps) <= 1000:
        raise ConfigError("a list of backoff delays has from 1 to 1000 steps")
    return steps


def _step(delay: Duration) -> float:
    """No delay is longer than a year: so a function may grow as fast as it likes."""
    return MAX_BACKOFF_S if isinstance(delay, int | float) and delay > MAX_BACKOFF_S else units.seconds(delay)


def known(where: str, options: Iterable[str], names: Collection[str]) -> None:
    """Refuse an option that is none: a misspelt one would silently mean nothing."""
    for option in options:
        if option not in names:
            near = difflib.get_close_matches(option, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"{where} has no option {option}; {hint}")


def parse_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """The limits that a task may have, and one job in its stead, checked and under the names of `Policy`."""
    said: dict[str, Any] = {}
    for name in ("max_attempts", "max_crashes", "max_losses"):
        if name in options:
            unlimited = name == "max_losses" and options[name] is None
            said[name] = None if unlimited else count(name, options[name])
    if "timeout" in options:
        said["timeout_s"] = None if options["timeout"] is None else units.seconds(options["timeout"])
    if "stall" in options:
        said["stall_s"] = units.seconds(options["stall"])
    if "memory" in options:
        said["memory_bytes"] = units.size_bytes(options["memory"])
    if "on_worker_death" in options:
        said["on_worker_death"] = word("on_worker_death", options["on_worker_death"], "retry", "fail")
    return said


def word(name: str, value: object, *words: str) -> str:
    if value not in words:
        raise ConfigError(f"{name} is {value!r:.100}: it can be {', '.join(words[:-1])} or {words[-1]}")
    return str(value)


def exceptions(name: str, value: object) -> tuple[type[BaseException], ...]:
    """One exception class or a tuple of them, as `except` takes them."""
    classes = value if isinstance(value, tuple) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ConfigError(f"{name} has {each!r}: it takes an exception class, or a tuple of them")
    return classes


def count(name: str, value: int, *, least: int = 1, most: int = units.MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r:.100}: it must be a whole number from {least} to {most}")
    return value


def identifier(what: str, name: str) -> str:
    """Names of tasks, queues and sources: printable, not too long, without surprises."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= 200 or name != name.strip():
        raise ConfigError(f"{name!r:.100} can't be the name of a {what}: use 1 to 200 bytes of printable characters")
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
        queue=policy.queue or DEFAULT_QUEUE,
        source=policy.source or "",
        max_attempts=policy.max_attempts or config.max_attempts,
        max_crashes=policy.max_crashes or config.max_crashes,
        max_losses=config.max_losses if isinstance(policy.max_losses, Unset) else policy.max_losses,
        on_worker_death=policy.on_worker_death,
        quarantine_by=policy.quarantine_by,
        backoff_s=policy.backoff_s or exponential(config.backoff_base_s, config.backoff_cap_s),
    )
