"""Durations and sizes as people write them, parsed once at the edge: "10m" becomes 600.0, "512MB" 512000000."""

import re
from datetime import timedelta

from outlive.errors import ConfigError

MOST = 30000
"""The highest count that people may set: the database counts in small integers."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"": 1, "B": 1}
for _n, _letter in enumerate("KMGT", start=1):
    _BYTES |= {f"{_letter}B": 1000**_n, f"{_letter}IB": 1024**_n}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)", re.IGNORECASE)


def seconds(value: float | str | timedelta) -> float:
    """600, 600.0, "600", "10m", "1h30m" or a timedelta."""
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, str):
        result = _parse_duration(value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{value!r} is not a duration: write seconds, or a text like '10m'")
    else:
        result = float(value)
    if not 0 <= result < 1e12:
        raise ConfigError(f"{value!r} is not a duration: it must be a finite number of seconds, zero or more")
    return result


def _parse_duration(text: str) -> float:
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text):
        raise ConfigError(f"{text!r} is not a duration: write it like '90s', '10m', '1h30m' or '7d'")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def size_bytes(value: int | str) -> int:
    """536870912, "512MB" or "512MiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(float(match[1]) * _BYTES.get(match[2].upper(), 0)) if match else 0
    if size < 1:
        raise ConfigError(f"{value!r} is not a size: write bytes, or a text like '512MB' or '2GiB'")
    return size
