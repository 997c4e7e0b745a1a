"""The configuration: one frozen object, built once at the edge. Defaults < file < environment < flags.

A key that nobody knows is refused with a suggestion; a key that is not set follows from those that are
(`_derived`); keys that contradict each other are refused with a sentence (`_contradiction`).
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from outlive import units
from outlive.errors import ConfigError


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    database_url: str | None = None
    home: str | None = None
    jobs_see_database_url: bool = False
    heartbeat_s: float = 30.0
    stale_s: float = 60.0
    dead_s: float = 120.0
    lease_s: float = 300.0
    renew_s: float = 20.0
    sweep_s: float = 30.0
    grace_s: float = 25.0
    slots: int | None = None
    queues: tuple[str, ...] | None = None
    name: str | None = None
    max_attempts: int = 5
    max_crashes: int = 3
    max_losses: int | None = 3
    timeout_s: float | None = 3600.0
    stall_s: float | None = None
    memory_bytes: int | None = None
    backoff_base_s: float = 60.0
    backoff_cap_s: float = 86400.0
    max_args_bytes: int = 1048576
    max_result_bytes: int = 1048576
    keep_finished_s: float = 7 * 86400.0
    keep_failed_s: float = 30 * 86400.0
    log_format: str = "text"
    on_worker_dead: str | None = None
    on_quarantine: str | None = None
    on_source_paused: str | None = None
    cache_ttl_s: float = 3600.0
    cache_enabled: bool = True
    cache_dir: str | None = None
    cache_bytes: int = 256 * 1024 * 1024
    metrics_listen: str | None = None
    dashboard_listen: str = "127.0.0.1:8080"
    dashboard_token: str | None = None

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What people may see of it: configurations end up in logs and on screens, passwords must not."""
        values = [(key, getattr(self, key)) for key in KEYS]
        return [(key, "(secret)" if key in SECRET and value is not None else value) for key, value in values]

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value!r}' for key, value in self.__rich_repr__())})"


KEEP_WORKERS_S = 7 * 86400.0
KEYS = Config.__struct_fields__
SECRET = frozenset({"database_url", "dashboard_token"})
# Names that other systems' operators know.
ALIASES = {
    "WORKER_ID": "name",
    "JOB_LOCK_TIMEOUT_SECONDS": "lease_s",
    "CACHE_TTL_SECONDS": "cache_ttl_s",
    "CACHE_ENABLED": "cache_enabled",
}
# Variables that begin like settings and are none.
_NOT_SETTINGS = frozenset({"OUTLIVE_VENV", "OUTLIVE_CONFIG"})
_UNLIMITED = frozenset({"max_losses", "timeout_s"})
_LARGEST_BYTES = 32 * 1024 * 1024
_FLAGS = frozenset({"cache_enabled", "jobs_see_database_url"})
_COUNTS = frozenset({"slots", "max_attempts", "max_crashes", "max_losses"})


def load(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Config:
    """Read outlive.toml (or `path`, which must then exist), the environment, and flags that are not None."""
    environ = os.environ if environ is None else environ
    said = _from_file(file_in_force(path, environ=environ))
    said |= _from_environment(environ)
    said |= {key: value for key, value in (flags or {}).items() if value is not None}
    values = {key: _parse(key, value) for key, value in said.items()}
    config = Config(**(values | _derived(values)))  # type: ignore[arg-type]  # _parse has checked them
    if problem := _contradiction(config):
        raise ConfigError(problem)
    return config


def file_in_force(path: str | Path | None = None, *, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that settings are read from: the one that is named, or the nearest outlive.toml.

    It is looked for in the current directory and upwards, to the home directory or the root of the file system. Above
    the current directory a stranger's file is passed over: it could name commands to be run, as in a shared /tmp.
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
        with contextlib.suppress(OSError):  # There is none, or the folder can't be searched.
            if file.stat().st_uid in trusted or folder == here:
                return file
        if folder == home:
            break
    return None


def _from_file(file: Path | None) -> dict[str, object]:
    if file is None:
        return {}
    try:
        said = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {file} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {file} is not valid TOML: {error}") from None
    for key in said:
        _known(key, f"the configuration file {file}", KEYS)
    return said


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    said: dict[str, object] = {key: environ[alias] for alias, key in ALIASES.items() if environ.get(alias)}
    for variable, value in environ.items():
        if variable.startswith("OUTLIVE_") and variable not in _NOT_SETTINGS:
            key = variable.removeprefix("OUTLIVE_").lower()
            _known(key, "the environment", KEYS, shown=variable)
            if value:
                said[key] = value
    return said


def _known(key: str, where: str, keys: tuple[str, ...], shown: str | None = None) -> None:
    if key not in keys:
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; the settings are {', '.join(keys)}"
        raise ConfigError(f"{where} has the unknown setting {shown or key}{hint}")


def _parse(key: str, value: object) -> object:
    """One setting from whatever form it came in; the key's ending says what it is."""
    _known(key, "a flag", KEYS)
    parse: Callable[[str, object], object]
    if key in _UNLIMITED and isinstance(value, str) and value.lower() in ("none", "null"):
        return None
    if key.endswith("_s"):
        parse = _seconds
    elif key.endswith("_bytes"):
        parse = _size
    elif key in _COUNTS:
        parse = _count
    elif key == "queues":
        parse = _names
    elif key in _FLAGS:
        parse = _flag
    else:
        parse = _text
    try:
        return parse(key, value)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def _seconds(_: str, value: object) -> float:
    return units.seconds(value)  # type: ignore[arg-type]  # it refuses what is none


def _size(_: str, value: object) -> int:
    return units.size_bytes(value)  # type: ignore[arg-type]


def _count(_: str, value: object) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= units.MOST:
        raise ConfigError(f"{value!r} is not a whole number from 1 to {units.MOST}")
    return number


def _names(_: str, value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError(f"{value!r} is not a list of names")
    return tuple(name.strip() for name in names)


def _flag(_: str, value: object) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    answer = value if isinstance(value, bool) else words.get(str(value).lower())
    if answer is None:
        raise ConfigError(f"{value!r} is neither true nor false")
    return answer


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError("it is not text: write it in quotes")
    if key == "log_format" and value not in ("text", "json"):
        raise ConfigError(f"{value!r} is not a log format: there are text and json")
    return value


def _derived(said: Mapping[str, object]) -> dict[str, object]:
    """Intervals that nobody set follow from those that somebody did."""
    values: dict[str, object] = {}
    lease_s = float(said.get("lease_s", 300.0))  # type: ignore[arg-type]
    values["renew_s"] = said.get("renew_s", min(20.0, lease_s / 4))
    bounds = [30.0, *(float(said[key]) / n for key, n in (("stale_s", 2), ("dead_s", 4)) if key in said)]  # type: ignore[arg-type]
    heartbeat_s = float(said.get("heartbeat_s", min(bounds)))  # type: ignore[arg-type]
    values["heartbeat_s"] = heartbeat_s
    values["stale_s"] = said.get("stale_s", min(heartbeat_s * 2, float(said.get("dead_s", heartbeat_s * 4)) / 2))  # type: ignore[arg-type]
    values["dead_s"] = said.get("dead_s", float(values["stale_s"]) * 2)  # type: ignore[arg-type]
    return values


def _contradiction(c: Config) -> str | None:
    """Why these settings can't hold together, if they can't."""
    if c.lease_s <= 0 or c.renew_s <= 0 or c.heartbeat_s <= 0 or c.sweep_s <= 0:
        return "lease_s, renew_s, heartbeat_s and sweep_s must be more than zero"
    for key, size_bytes in (("max_args_bytes", c.max_args_bytes), ("max_result_bytes", c.max_result_bytes)):
        if size_bytes > _LARGEST_BYTES:
            return f"{key} ({size_bytes}) is more than {_LARGEST_BYTES}: so large a value does not belong into a queue"
    if c.renew_s * 3 > c.lease_s:
        return (
            f"renew_s ({c.renew_s:g}) is more than a third of lease_s ({c.lease_s:g}): a worker gives up its jobs one "
            f"renewal before their lease ends, and one late renewal would give up jobs that are well; "
            f"set renew_s to at most {c.lease_s / 3:g}"
        )
    if c.heartbeat_s >= c.stale_s:
        return (
            f"heartbeat_s ({c.heartbeat_s:g}) is not below stale_s ({c.stale_s:g}): "
            f"every worker would be stale between two heartbeats"
        )
    if c.stale_s >= c.dead_s:
        return (
            f"stale_s ({c.stale_s:g}) is not below dead_s ({c.dead_s:g}): a worker is stale before it is declared dead"
        )
    if c.grace_s <= 5:
        return (
            f"grace_s is {c.grace_s:g}: it must be more than 5, because children get SIGTERM 5 seconds before its end"
        )
    if c.backoff_base_s > c.backoff_cap_s:
        return f"backoff_base_s ({c.backoff_base_s:g}) is more than backoff_cap_s ({c.backoff_cap_s:g})"
    if c.stall_s is not None and c.timeout_s is not None and c.stall_s >= c.timeout_s:
        return f"stall_s ({c.stall_s:g}) is not below timeout_s ({c.timeout_s:g}): it would never be reached"
    return None
