"""Checks of what people write: settings, and the options of tasks, jobs and sources.

A check takes the name of an option and its value, and returns the value parsed: "10m" becomes 600.0, "512MB"
512000000. A value that does not fit raises a ConfigError that names the option and says what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, time, timedelta, tzinfo
from typing import TypeVar
from uuid import UUID

from outlive.errors import ConfigError

T = TypeVar("T")
Duration = float | str | timedelta
Moment = Duration | datetime
MAX_COUNT = 30000  # The highest count that can be set: the database stores counts as small integers.
MAX_S = 1e10  # The longest duration, a little over 300 years: the database can subtract it from any time.

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"": 1, "B": 1}
for _n, _letter in enumerate("KMGT", start=1):
    _BYTES |= {f"{_letter}B": 1000**_n, f"{_letter}IB": 1024**_n}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)", re.IGNORECASE)
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def refused(name: str, value: object, must_be: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r:.100}: it must be {must_be}")


def known(where: str, kind: str, given: Iterable[str], names: Collection[str]) -> None:
    """Refuse a name that does not exist: a misspelt option would have no effect and no error."""
    for name in given:
        if name not in names:
            import difflib  # Not at the top: each fork of a zygote would pay for it.

            from outlive import foreign_options

            near = difflib.get_close_matches(name, names, n=1)
            option = kind == "option"
            other = foreign_options.suggestion(name, names) if option else foreign_options.SETTINGS.get(name)
            hint = other or (f"did you mean {near[0]}?" if near else f"use one of {', '.join(names)}")
            raise ConfigError(f"{where} has the unknown {kind} {name}; {hint}")


def hinting(what: str) -> Callable[[object, str], object]:
    """`__getattr__` for a class: its error says what to write, if another job system has such an attribute."""

    def lacks(owner: object, name: str) -> object:
        from outlive import foreign_options  # Not at the top: only an error needs it.

        raise foreign_options.missing(what, owner, name)

    return lacks


def seconds(name: str, value: object) -> float:
    """A duration: 600, 600.0, "600", "10m", "1h30m" or a timedelta."""
    return _seconds(name, value, "a duration: seconds, or a text like '90s', '10m', '1h30m' or '7d'")


def moment(name: str, value: object, *, zone: tzinfo | None = None, now: datetime | None = None) -> datetime | float:
    """A moment, or how many seconds ago it was: a datetime with a time zone, "2026-11-19T14:05Z", or a duration.

    Where people read times in a zone (None: that of this machine), `now` is the time there. A text may then leave out
    its zone, as "2026-11-19T14:05", and its day: "14:05" is today's, or yesterday's if that lies in the future.
    """
    at = value
    if isinstance(value, str) and re.search("[:-]", value):  # No duration has one of these.
        at = _parse_moment(value.strip(), zone, now)
    if isinstance(at, datetime) and at.tzinfo and 1900 <= at.year <= 9000:  # Python can tell it in any zone.
        return at
    example = "14:05 or 2026-11-19T14:05" if now else "2026-11-19T14:05Z, or a datetime with a time zone"
    return _seconds(name, value, f"a duration like 90s, 10m, 1h30m or 7d, or a moment like {example}")


def address(name: str, value: object) -> str:
    """Where to listen: 127.0.0.1:9464, [::1]:9464, localhost:9464."""
    given = text(name, value)
    host, port = host_and_port(given)
    if not host or port is None:
        raise refused(name, value, "a host and a port, like '127.0.0.1:9464'")
    return given


def url_path(name: str, value: object) -> str:
    """A path of a web server, without a slash at its end: /jobs, /ops/jobs; empty for the whole server."""
    path = text(name, value).rstrip("/")
    if not re.fullmatch(r"(/[\w~-][\w.~-]*)*", path, re.ASCII):
        raise refused(name, value, "a path like '/jobs'")
    return path


def host_and_port(address: str) -> tuple[str, int | None]:
    """The two parts of an address. An IPv6 host is written in brackets."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else -1
    return host[1:-1] if bracketed else host if ":" not in host else "", number if 0 <= number <= 65535 else None


def interval(name: str, value: object) -> float:
    """The time between two firings of a schedule."""
    result = seconds(name, value)
    if not 1 <= result <= 1e9:
        raise refused(name, value, "a duration of at least one second")
    return result


def _seconds(name: str, value: object, must_be: str) -> float:
    if isinstance(value, timedelta):
        result: float | None = value.total_seconds()
    elif isinstance(value, str):
        result = _parse_duration(value.strip())
    else:
        result = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if result is None or not result >= 0:  # NaN is neither.
        raise refused(name, value, must_be)
    if result > MAX_S:
        raise refused(name, value, f"a duration of at most 300 years ({MAX_S:.0f} seconds)")
    return result


def _parse_moment(text: str, zone: tzinfo | None, now: datetime | None) -> datetime | None:
    """A time as ISO 8601 writes it. None: it is malformed, or needs the zone in which people read times."""
    try:
        if re.match(r"\d\d:", text):
            bare = time.fromisoformat(text)
            if now is None or bare.tzinfo:
                return None
            today = datetime.combine(now.date(), bare)
            at = _placed(today, zone)
            return at if at <= now else _placed(today - timedelta(days=1), zone)
        at = datetime.fromisoformat(text)
        return at if at.tzinfo else None if now is None else _placed(at, zone)
    except (ValueError, OverflowError):
        return None


def _placed(at: datetime, zone: tzinfo | None) -> datetime:
    return at.replace(tzinfo=zone).astimezone(zone)  # Without a zone, this is the machine's.


def _parse_duration(text: str) -> float | None:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def size_bytes(name: str, value: object) -> int:
    """A size: 536870912, "512MB" or "512MiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(float(match[1]) * _BYTES.get(match[2].upper(), 0)) if match else 0
    if size < 1:
        raise refused(name, value, "a size: bytes, or a text like '512MB' or '2GiB'")
    return size


def memory_bytes(name: str, value: object) -> int:
    """A limit of memory. No process of a job fits into less than 1 MB: a number below that is meant in other units."""
    size = size_bytes(name, value)
    if size < 1_000_000:
        raise refused(name, value, "at least 1MB: bytes, or a text like '512MB' or '2GiB'")
    return size


def count(name: str, value: object, *, least: int = 1, most: int = MAX_COUNT) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise refused(name, value, f"a whole number from {least} to {most}")
    return value


def positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise refused(name, value, "a number above zero and below a thousand million")
    return value


def optional(check: Callable[[str, object], T]) -> Callable[[str, object], T | None]:
    """The same check, which also takes None."""
    return lambda name, value: None if value is None else check(name, value)


def choice(name: str, value: object, *choices: str) -> str:
    if value not in choices:
        raise refused(name, value, f"{', '.join(choices[:-1])} or {choices[-1]}")
    return str(value)


def levels(name: str, value: object, choices: Collection[str], loggers: Collection[str]) -> str:
    """A level, and perhaps other levels for some loggers: `info,outlive.worker=warning`."""
    overall, *others = "".join(str(value).split()).split(",")
    given = [one.partition("=") for one in others]
    if overall not in choices or any(logger not in loggers or level not in choices for logger, _, level in given):
        one_of = f"{', '.join([*choices][:-1])} or {[*choices][-1]}"
        raise refused(name, value, f"{one_of}, and may go on with {' or '.join(f',{one}=LEVEL' for one in loggers)}")
    return ",".join([overall, *others])


def identifier(name: str, value: object) -> str:
    """The name of a task, a queue, a source or a service."""
    printable = isinstance(value, str) and value.isprintable() and value == value.strip()
    if not isinstance(value, str) or not printable or not 0 < len(value.encode()) <= 200:
        raise refused(name, value, "1 to 200 bytes of printable characters, without a space at either end")
    return value


def flag(name: str, value: object) -> bool:
    answer = value if isinstance(value, bool) else _FLAGS.get(str(value).lower())
    if answer is None:
        raise refused(name, value, "true or false")
    return answer


def names(name: str, value: object) -> tuple[str, ...]:
    """A list of names, or one text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and part.strip() for part in parts):
        raise refused(name, value, "a list of names")
    return tuple(part.strip() for part in parts)


def identifiers(name: str, value: object) -> tuple[str, ...]:
    return tuple(identifier(name, one) for one in names(name, value))


def networks(name: str, value: object) -> tuple[str, ...]:
    """Addresses of machines, or networks such as 10.0.0.0/24."""
    import ipaddress  # Not at the top: few processes need it.

    given = names(name, value)
    try:
        return tuple(str(ipaddress.ip_network(one)) for one in given)
    except ValueError:
        raise refused(name, value, "IP addresses or networks, such as 10.0.0.4 or 10.0.0.0/24") from None


def header(name: str, value: object) -> str:
    """The name of a header of HTTP."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9-]{1,100}", value):
        raise refused(name, value, "the name of a header, such as X-Forwarded-User")
    return value.lower()


def text(name: str, value: object) -> str:
    """The error does not quote the value: it may be a password."""
    if not isinstance(value, str):
        advice = (
            "write it in quotes" if type(value).__module__ == "builtins" else "write str(…), or what gives its text"
        )
        raise ConfigError(f"{name} is of type {type(value).__name__}, not text: {advice}")
    return value


def uuid(name: str, value: object) -> UUID:
    try:
        return value if isinstance(value, UUID) else UUID(value)  # type: ignore[arg-type]
    except (AttributeError, TypeError, ValueError):
        raise refused(name, value, "a UUID") from None


def exceptions(name: str, value: object) -> tuple[type[BaseException], ...]:
    """One exception class or a tuple of them, as in an `except` clause."""
    classes = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        raise refused(name, value, "an exception class, or a tuple of them")
    return classes
