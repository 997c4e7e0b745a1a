"""The configuration: one frozen object, built once at the edge. Defaults < app < file < environment < flags.

An unknown setting is refused with a suggestion; an unknown variable is only a warning. A setting that is not
given follows from those that are (`_derived`). Settings that contradict each other are refused with the reason
(`_contradictions`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from outlive import validation
from outlive.errors import ConfigError
from outlive.states import State
from outlive.validation import Duration


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    database_url: str | None = None
    home: str | None = None
    session_url: str | None = None
    jobs_see_database_url: bool = False
    heartbeat_s: float = 30.0
    stale_s: float = 60.0
    dead_s: float = 120.0
    lease_s: float = 300.0
    renew_s: float = 20.0
    sweep_s: float = 30.0
    grace_s: float = 25.0
    slots: int | None = None
    connections: int = 8
    queues: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    name: str | None = None
    service: str | None = None
    max_attempts: int = 5
    max_crashes: int = 3
    max_losses: int | None = 3
    timeout_s: float | None = 3600.0
    stall_s: float | None = None
    memory_bytes: int | None = None
    block_s: float = 5.0
    park_s: float = 30.0
    park_bytes: int | None = None
    backoff_base_s: float = 60.0
    backoff_cap_s: float = 86400.0
    max_args_bytes: int = 1048576
    max_result_bytes: int = 1048576
    keep_finished_s: float = 7 * 86400.0
    keep_failed_s: float = 30 * 86400.0
    log_format: str = "text"
    log_level: str = "info"
    job_log_level: str = "info"
    on_worker_dead: str | None = None
    on_quarantine: str | None = None
    on_source_paused: str | None = None
    cache_ttl_s: float = 3600.0
    cache_enabled: bool = True
    cache_dir: str | None = None
    cache_bytes: int = 256 * 1024 * 1024
    dashboard_listen: str = "127.0.0.1:8321"
    dashboard_root_path: str = ""
    dashboard_token: str | None = None
    dashboard_viewer_token: str | None = None
    dashboard_proxy: tuple[str, ...] = ()
    dashboard_user_header: str | None = None
    metrics_listen: str | None = None
    otel: bool = False
    sentry: bool = False

    @property
    def keep_s(self) -> dict[State, float]:
        """How long the jobs of each finished state are kept."""
        finished_s = self.keep_finished_s
        return {State.SUCCEEDED: finished_s, State.CANCELLED: finished_s, State.FAILED: self.keep_failed_s}

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The settings without passwords and tokens: a configuration is printed in logs and on screens."""
        values = [(key, getattr(self, key)) for key in KEYS]
        return [(key, "(secret)" if key in _SECRETS and value is not None else value) for key, value in values]

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value!r}' for key, value in self.__rich_repr__())})"


class Settings(TypedDict, total=False):
    """The settings as an app gives them: `App(database_url="postgresql://…", max_attempts=3, timeout_s="10m")`."""

    home: str
    session_url: str
    heartbeat_s: Duration
    stale_s: Duration
    dead_s: Duration
    lease_s: Duration
    renew_s: Duration
    sweep_s: Duration
    grace_s: Duration
    slots: int
    connections: int
    queues: str | list[str] | tuple[str, ...]
    name: str
    service: str
    max_attempts: int
    max_crashes: int
    max_losses: int | None
    timeout_s: Duration | None
    stall_s: Duration
    memory_bytes: int | str
    block_s: Duration
    park_s: Duration
    park_bytes: int | str
    backoff_base_s: Duration
    backoff_cap_s: Duration
    max_args_bytes: int | str
    max_result_bytes: int | str
    keep_finished_s: Duration
    keep_failed_s: Duration
    log_format: str
    log_level: str
    on_worker_dead: str
    on_quarantine: str
    on_source_paused: str
    cache_ttl_s: Duration
    cache_enabled: bool
    cache_dir: str
    cache_bytes: int | str
    otel: bool
    sentry: bool


_SECRETS = frozenset({"database_url", "session_url", "dashboard_token", "dashboard_viewer_token"})
MIN_CONNECTIONS = 6
"""For claims, for life, for watching, and one each for what jobs ask for, for slow ends and for the rest."""
KEEP_WORKERS_S = 7 * 86400.0
KEEP_SCHEDULES_S = 7 * 86400.0
"""How long a schedule is kept that its app no longer declares."""
KEEP_UNUSED_S = 30 * 86400.0
"""How long tasks and sources are kept that nothing uses."""
ALERTS = ("on_worker_dead", "on_quarantine", "on_source_paused")
KEYS = Config.__struct_fields__
ALIASES = {
    "WORKER_ID": "name",
    "JOB_LOCK_TIMEOUT_SECONDS": "lease_s",
    "CACHE_TTL_SECONDS": "cache_ttl_s",
    "CACHE_ENABLED": "cache_enabled",
}
"""Variables without a prefix that outlive understands too; OUTLIVE_… wins."""
_NOT_SETTINGS = frozenset({"OUTLIVE_VENV", "OUTLIVE_CONFIG", "OUTLIVE_TEST_DATABASE_URL"})
_NOT_IN_CODE = {*KEYS} - {"database_url", *Settings.__annotations__}
"""Settings that are needed before the app is imported, or that the app can't decide."""
_UNLIMITED = frozenset({"max_losses", "timeout_s"})
_LARGEST_BYTES = 32 * 1024 * 1024
_LEVELS = ("debug", "info", "warning", "error")
_LOGGERS = ("outlive.worker", "outlive.job")
"""What the worker says itself, and what jobs say."""
_warned: set[str] = set()


def load(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    app: Mapping[str, object] | None = None,
    warn: Callable[[str], object] | None = None,
) -> Config:
    """The settings of the app (`in_code`), of outlive.toml (or `path`, which must then exist), of the environment, and
    the flags that are not None.

    `warn` is called once for each variable OUTLIVE_… that is not a setting: apps have variables of their own.
    """
    environ = os.environ if environ is None else environ
    _warn_of_unknown(environ, warn)
    given = dict(app or {}) | _from_file(file_in_force(path, environ=environ)) | _from_environment(environ)
    set_flags = {key: value for key, value in (flags or {}).items() if value is not None}
    validation.known("a flag", "setting", set_flags, KEYS)
    return _checked({key: _parse(key, value) for key, value in (given | set_flags).items()})


def in_code(given: Mapping[str, object]) -> dict[str, object]:
    """The settings that an app gives, parsed. None is no value, except where it means no limit."""
    if "eager" in given:
        raise ConfigError(
            "eager is not a setting: a job runs in a worker, never where it is enqueued; "
            "in a test, `with outlive_jobs.eager():` runs it at once (docs/how-to/test.md)"
        )
    validation.known("App", "setting", given, KEYS)
    for key in _NOT_IN_CODE & given.keys():
        raise ConfigError(
            f"{key} can't be set in code: it is needed before the app is imported; "
            f"set OUTLIVE_{key.upper()}, or write it into outlive.toml"
        )
    values = {key: _parse(key, value) for key, value in given.items() if value is not None or key in _UNLIMITED}
    _checked(values)
    return values


def _checked(values: Mapping[str, Any]) -> Config:
    config = Config(**{**values, **_derived(values)})
    if problem := next(_contradictions(config), None):
        raise ConfigError(problem)
    return config


def file_in_force(path: str | Path | None = None, *, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that settings are read from: the one that is named, or the nearest outlive.toml.

    The search starts in the current directory and goes up to the home directory or the root of the file system. Above
    the current directory it skips files of other users, for example in a shared /tmp: a file can name commands to run.
    """
    if named := path or (os.environ if environ is None else environ).get("OUTLIVE_CONFIG"):
        return Path(named)
    try:
        here = Path.cwd()
        trusted = {0, os.geteuid(), here.stat().st_uid}
    except OSError:  # The current directory was removed.
        return None
    home = Path(os.path.expanduser("~"))
    for folder in (here, *here.parents):
        file = folder / "outlive.toml"
        with contextlib.suppress(OSError):  # The folder has no such file, or can't be searched.
            if file.stat().st_uid in trusted or folder == here:
                return file
        if folder == home:
            break
    return None


def _from_file(file: Path | None) -> dict[str, object]:
    if file is None:
        return {}
    import tomllib  # Not at the top: most commands and jobs read no file.

    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {file} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {file} is not valid TOML: {error}") from None
    validation.known(f"the configuration file {file}", "setting", given, KEYS)
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    ours = {name.upper(): value for name, value in environ.items() if name.startswith("OUTLIVE_")}
    given: dict[str, object] = {key: environ[alias] for alias, key in ALIASES.items() if environ.get(alias)}
    given |= {key: ours[name] for key in KEYS if ours.get(name := f"OUTLIVE_{key.upper()}")}
    return given | ({"database_url": ""} if ours.get("OUTLIVE_DATABASE_URL") == "" else {})


def unprefixed(config: Config, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The variables without a prefix that are in force, each with its setting: another program may be meant."""
    ours = {name.upper() for name, value in environ.items() if value}
    found = {
        alias: key for alias, key in ALIASES.items() if environ.get(alias) and f"OUTLIVE_{key.upper()}" not in ours
    }
    return [f"{alias} ({key})" for alias, key in found.items() if getattr(config, key) == _parse(key, environ[alias])]


def _warn_of_unknown(environ: Mapping[str, str], warn: Callable[[str], object] | None) -> None:
    known = {f"OUTLIVE_{key.upper()}" for key in KEYS} | _NOT_SETTINGS
    for name in sorted(environ):
        if name.startswith("OUTLIVE_") and name.upper() not in known and name not in _warned:
            import difflib  # Not at the top: each fork of a zygote would pay for them.
            import logging

            _warned.add(name)
            near = difflib.get_close_matches(name.removeprefix("OUTLIVE_").lower(), KEYS, n=1)
            hint = f"did you mean OUTLIVE_{near[0].upper()}?" if near else "see docs/reference/settings.md"
            warn = warn or logging.getLogger("outlive.config").warning
            warn(f"the environment has {name}, which is not a setting of outlive and has no effect; {hint}")


def _count(key: str, value: object) -> int:
    is_number = isinstance(value, str) and value.isdecimal() and len(value) < 10
    return validation.count(key, int(value) if is_number else value)  # type: ignore[call-overload]


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "memory_bytes": validation.memory_bytes,
    **dict.fromkeys(("max_args_bytes", "max_result_bytes", "cache_bytes", "park_bytes"), validation.size_bytes),
    "labels": validation.identifiers,
    "service": validation.identifier,
    "log_format": lambda key, value: validation.choice(key, value, "text", "json"),
    "job_log_level": lambda key, value: validation.choice(key, value, *_LEVELS),
    "log_level": lambda key, value: validation.levels(key, value, _LEVELS, _LOGGERS),
    **dict.fromkeys(("metrics_listen", "dashboard_listen"), validation.address),
    "dashboard_root_path": validation.url_path,
    "dashboard_proxy": validation.networks,
    "dashboard_user_header": validation.header,
    # All others, by their type
    "float": validation.seconds,
    "int": _count,
    "bool": validation.flag,
    "tuple[str, ...]": validation.names,
    "str": validation.text,
}


def _parse(key: str, value: object) -> object:
    """One setting, from whichever place."""
    if key == "database_url" and value == "":
        raise ConfigError(
            "database_url is empty: give it an address, or unset it (OUTLIVE_DATABASE_URL) for the embedded server"
        )
    if key in _UNLIMITED and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
        return None
    check = _CHECKS.get(key) or _CHECKS[Config.__annotations__[key].removesuffix(" | None")]
    return check(key, value)


def _derived(given: Mapping[str, Any]) -> dict[str, object]:
    """The intervals that are not given, in proportion to those that are."""
    renew_s = given.get("renew_s", min(20.0, given.get("lease_s", 300.0) / 4))
    bounds = [30.0, *(given[key] / n for key, n in (("stale_s", 2), ("dead_s", 4)) if key in given)]
    heartbeat_s = given.get("heartbeat_s", min(bounds))
    stale_s = given.get("stale_s", min(heartbeat_s * 2, given.get("dead_s", heartbeat_s * 4) / 2))
    dead_s = given.get("dead_s", stale_s * 2)
    return {"renew_s": renew_s, "heartbeat_s": heartbeat_s, "stale_s": stale_s, "dead_s": dead_s}


def _contradictions(c: Config) -> Iterator[str]:
    """Why these settings can't be used together."""
    if c.lease_s <= 0 or c.renew_s <= 0 or c.heartbeat_s <= 0 or c.sweep_s <= 0:
        yield "lease_s, renew_s, heartbeat_s and sweep_s must be more than zero"
    for key in ("max_args_bytes", "max_result_bytes"):
        if (size := getattr(c, key)) > _LARGEST_BYTES:
            yield f"{key} ({size}) is more than {_LARGEST_BYTES}: store large values elsewhere and pass a reference"
    if c.renew_s * 3 > c.lease_s:
        yield (
            f"renew_s ({c.renew_s:g}) is more than a third of lease_s ({c.lease_s:g}): a worker gives up its jobs one "
            f"renewal before their lease ends, so one late renewal would end healthy jobs; "
            f"set renew_s to at most {c.lease_s / 3:g}"
        )
    for low, high, why in (
        ("heartbeat_s", "stale_s", "every worker would be stale between two heartbeats; set stale_s to twice that"),
        ("stale_s", "dead_s", "a worker is stale before it is declared dead; set dead_s to twice that"),
        ("stall_s", "timeout_s", "every job would time out first; set stall_s lower"),
    ):
        low_s, high_s = getattr(c, low), getattr(c, high)
        if low_s is not None and high_s is not None and low_s >= high_s:
            yield f"{low} ({low_s:g}) is not below {high} ({high_s:g}): {why}"
    if c.dashboard_user_header and not c.dashboard_proxy:
        yield (
            "dashboard_user_header is set, but dashboard_proxy is not: without the address of the proxy, "
            "any client could send that header"
        )
    if c.dashboard_user_header and any(network.endswith("/0") for network in c.dashboard_proxy):
        yield (
            "dashboard_user_header is set, but dashboard_proxy names every address: any client could send that header; "
            "name only the proxy"
        )
    if c.connections < MIN_CONNECTIONS:
        yield f"connections is {c.connections}: a worker needs {MIN_CONNECTIONS}, though not all the time"
    if c.grace_s <= 5:
        yield f"grace_s is {c.grace_s:g}: it must be more than 5, because children get SIGTERM 5 seconds before its end"
    if c.backoff_base_s > c.backoff_cap_s:
        yield f"backoff_base_s ({c.backoff_base_s:g}) is more than backoff_cap_s ({c.backoff_cap_s:g}): raise the cap"
