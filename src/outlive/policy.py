"""The policy of a task: the limits and options that its author sets, checked when the task is declared.

An option that is not set follows the worker's configuration (`limits`). The worker writes the result to the database,
so that any reaper can decide by SQL what becomes of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from outlive.config import Config
from outlive.errors import ConfigError
from outlive.validation import MAX_COUNT, Duration, choice, count, memory_bytes, optional, refused, seconds

Backoff = Duration | Sequence[Duration] | Callable[[int], Duration]
OnWorkerDeath = Literal["retry", "fail"]
QuarantineBy = Literal["job", "fingerprint"]
RecycleAfter = int | Literal["clean"]

MAX_SHARE = 5000
MAX_BACKOFF_STEPS = 32
DEFAULT_QUEUE = "default"
MAX_BACKOFF_S = 365 * 86400.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A task's options. What is UNSET follows the worker's configuration, under the same name."""

    queue: str | None = None
    source: str | None = None
    priority: int | None = None
    max_attempts: int | UnsetType = UNSET
    max_crashes: int | UnsetType = UNSET
    max_losses: int | UnsetType | None = UNSET
    timeout_s: float | UnsetType | None = UNSET
    stall_s: float | UnsetType | None = UNSET
    memory_bytes: int | UnsetType | None = UNSET
    recycle_after: RecycleAfter | None = None
    preload: bool = True
    share: int = 1
    needs: tuple[str, ...] = ()
    backoff_s: float | tuple[float, ...] | None = None  # A base that doubles up to the configured cap, or all delays.
    retry_on: tuple[type[BaseException], ...] = ()
    fail_on: tuple[type[BaseException], ...] = ()
    on_worker_death: OnWorkerDeath = "retry"
    quarantine_by: QuarantineBy = "job"
    keep_finished_s: float | None = None
    expires_s: float | None = None
    deadline_s: float | None = None

    @property
    def max_jobs(self) -> int:
        """How many jobs a child of this task runs at most."""
        if self.recycle_after is None:
            return MAX_COUNT if self.share > 1 else 1  # A process that jobs share is replaced now and then.
        return MAX_COUNT if self.recycle_after == "clean" else self.recycle_after

    def is_final(self, error: BaseException) -> bool:
        """Whether this error ends the job. An error in both lists is retried."""
        return isinstance(error, self.fail_on) and not isinstance(error, self.retry_on)


def exponential(base_s: float, cap_s: float) -> tuple[float, ...]:
    """base · 2^n up to the cap, as the list that the database uses. The last step repeats."""
    steps = [min(base_s * 2.0**n, cap_s) for n in range(MAX_BACKOFF_STEPS)]
    return tuple(steps[: steps.index(steps[-1]) + 1])


def parse_backoff(value: Backoff) -> float | tuple[float, ...]:
    """A base, or the delays of a list or a function of n, which is called now: a reaper in SQL can't call it."""
    if callable(value):
        return tuple(_step(value(n)) for n in range(MAX_BACKOFF_STEPS))
    if isinstance(value, float | int | str | timedelta):
        return seconds("backoff", value)
    if not isinstance(value, Sequence):
        raise refused("backoff", value, "a duration, a list of durations, or a function of the number of failures")
    steps = tuple(_step(step) for step in value)
    if not 0 < len(steps) <= 1000:
        raise ConfigError(f"backoff has {len(steps)} steps: give it from 1 to 1000 steps")
    return steps


def parse_recycle_after(name: str, value: object) -> RecycleAfter:
    """How many jobs a child runs, or "clean": as many as leave it as it was."""
    if isinstance(value, str) and value != "clean":
        raise refused(name, value, f"'clean' or a whole number from 1 to {MAX_COUNT}")
    return "clean" if value == "clean" else count(name, value)


def parse_priority(name: str, value: object) -> int:
    """How urgent a job is: 0 is the most urgent."""
    return count(name, value, least=0, most=9)


def _step(delay: Duration) -> float:
    """A delay of at most a year, so that a function may grow without bound."""
    too_long = isinstance(delay, int | float) and delay > MAX_BACKOFF_S
    return MAX_BACKOFF_S if too_long else min(MAX_BACKOFF_S, seconds("backoff", delay))


class LimitOptions(TypedDict, total=False):
    """The limits that a task can set and a job can override, as people write them."""

    max_attempts: int
    """The job fails for good after this many failures, the first try included. This and the next five have defaults in
    the settings."""
    max_crashes: int
    """The job is quarantined after its process has died this many times."""
    max_losses: int | None
    """The job runs alone after it has lost one worker less, and is quarantined if two more die with it. None: without
    limit."""
    timeout: Duration | None
    """How long an attempt may take. Then its process gets SIGTERM, and five seconds later SIGKILL; what it returns then
    is not kept. None: without limit."""
    stall: Duration | None
    """How long an attempt may run without a call of `progress` or `checkpoint`. None: without limit."""
    memory: int | str | None
    """How much memory the processes of the job may use together, beyond what they share with the zygote. None: without
    limit."""
    on_worker_death: OnWorkerDeath
    """What becomes of the job when its worker dies: retry, the default, or fail."""


Checks = Mapping[str, tuple[str, Callable[[str, Any], object]]]  # For each option, its name in `Policy` and its check.

LIMITS: Checks = {
    "max_attempts": ("max_attempts", count),
    "max_crashes": ("max_crashes", count),
    "max_losses": ("max_losses", optional(count)),
    "timeout": ("timeout_s", optional(seconds)),
    "stall": ("stall_s", optional(seconds)),
    "memory": ("memory_bytes", optional(memory_bytes)),
    "on_worker_death": ("on_worker_death", lambda name, value: choice(name, value, "retry", "fail")),
}


def parse(options: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
    """The options that have a check, under the names of `Policy`."""
    return {field: check(name, options[name]) for name, (field, check) in checks.items() if name in options}


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter of a task's function, as a form shows it. `default` is JSON; None: it has none, or JSON has no form
    for it.
    """

    name: str
    annotation: str = ""
    required: bool = False
    positional: bool = False  # It can't be given by name.
    default: str | None = None


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """What others know about a task without importing its code: the row of the table `tasks`, and below `needs` what
    only the supervisor of its jobs reads."""

    name: str
    queue: str
    source: str
    max_attempts: int
    max_crashes: int
    max_losses: int | None
    on_worker_death: OnWorkerDeath
    quarantine_by: QuarantineBy
    backoff_s: tuple[float, ...]
    keep_finished_s: float | None = None  # None: as the settings say.
    app_keep_finished_s: float | None = None  # This and the next are what the settings say: another process may prune.
    app_keep_failed_s: float | None = None
    expires_s: float | None = None
    deadline_s: float | None = None
    on_failed: Mapping[str, Any] | None = None
    """The job that is enqueued when one of the task fails for good and names none itself."""
    function: str | None = None  # With its parameters: it tells tasks of one name in two apps apart.
    priority: int = 5
    signature: tuple[Parameter, ...] | None = None  # What a form asks for; None: not known.
    share: int = 1  # How many of its jobs run at once in one process, which has one slot.
    needs: tuple[str, ...] = ()  # The labels that a worker must have to run its jobs.
    timeout_s: float | None = None
    stall_s: float | None = None
    memory_bytes: int | None = None
    max_jobs: int = 1  # How many jobs a child runs: `recycle_after` as a number.
    preload: bool = True
    retries_timeouts: bool = True  # False: `fail_on` and `retry_on` of the task make a TimeoutError final.


_FOLLOWING = ("max_attempts", "max_crashes", "max_losses", "timeout_s", "stall_s", "memory_bytes")
_AS_SAID = ("on_worker_death", "quarantine_by", "keep_finished_s", "expires_s", "deadline_s", "share", "needs",
            "max_jobs", "preload")  # fmt: skip


def task_row(
    name: str,
    policy: Policy,
    config: Config,
    on_failed: Mapping[str, Any] | None = None,
    function: Callable[..., Any] | None = None,
    signature: tuple[Parameter, ...] | None = None,
) -> TaskRow:
    """The row of a task: its own policy, and the worker's configuration where the policy sets nothing."""
    backoff_s = config.backoff_base_s if policy.backoff_s is None else policy.backoff_s
    limits = {key: getattr(config if getattr(policy, key) is UNSET else policy, key) for key in _FOLLOWING}
    as_said = {key: getattr(policy, key) for key in _AS_SAID}
    return TaskRow(
        name=name,
        queue=policy.queue or DEFAULT_QUEUE,
        source=policy.source or "",
        backoff_s=backoff_s if isinstance(backoff_s, tuple) else exponential(backoff_s, config.backoff_cap_s),
        app_keep_finished_s=config.keep_finished_s,
        app_keep_failed_s=config.keep_failed_s,
        on_failed=on_failed,
        function=None if function is None else _described(function),
        priority=5 if policy.priority is None else policy.priority,
        signature=signature,
        retries_timeouts=not policy.is_final(TimeoutError()),
        **limits,
        **as_said,
    )


def _described(function: Callable[..., Any]) -> str:
    """Without defaults and annotations: their text may differ from process to process."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return f"{function.__module__}.{function.__qualname__}({', '.join(parameters)})"
