"""The baggage of jobs: texts that a job carries, such as the id of the request that asked for it, and that the jobs
which it enqueues carry on. They are among the options of a job, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from outlive import job_gateway, validation, wire
from outlive.errors import ConfigError
from outlive.model import JobRequest

MAX_BYTES = 4096


class _Options(msgspec.Struct):
    baggage: dict[str, str] = {}


@contextmanager
def baggage(**texts: str) -> Iterator[None]:
    """Let the jobs that are enqueued in this block carry these texts: `with outlive.baggage(request_id=…):`.

    A job reads them as `outlive.current().baggage`, the JSON log has them in each of its lines, and the jobs that it
    enqueues carry them too. Tasks of asyncio that begin in the block inherit them.
    """
    now = {**job_gateway.carried(), **{name: validation.text(name, value) for name, value in texts.items()}}
    try:
        size = len(wire.encode(now, "the baggage"))
    except wire.NotJson as error:  # Postgres stores no NUL, say.
        raise ConfigError(str(error)) from None
    if size > MAX_BYTES:
        raise ConfigError(f"the baggage of a job has {size:,} bytes, over the limit of {MAX_BYTES:,}: it is for ids")
    before = job_gateway.baggage.set(now)
    try:
        yield
    finally:
        job_gateway.baggage.reset(before)


def of(options: bytes | None) -> dict[str, str]:
    """The baggage of a job. Anyone can write options in SQL, so they may be anything, and what is too large is left."""
    if options is None or b'"baggage"' not in options:
        return {}
    try:
        texts = msgspec.json.decode(options, type=_Options).baggage
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return texts if len(wire.encode(texts)) <= MAX_BYTES else {}


def loaded(requests: list[JobRequest], headers: Mapping[str, str] | None = None) -> list[JobRequest]:
    """The same jobs with what is carried now, and with the headers of a trace."""
    options: dict[str, object] = dict(headers or {})
    if texts := job_gateway.carried():
        options["baggage"] = texts
    return with_options(requests, options) if options else requests


def with_options(requests: list[JobRequest], more: Mapping[str, object]) -> list[JobRequest]:
    own = wire.encode(more)
    # A job has no empty options.
    return [replace(one, options=one.options[:-1] + b"," + own[1:] if one.options else own) for one in requests]
