"""What a job knows and may ask for while it runs: `outlive.current()`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString, Protocol
from uuid import UUID

import msgspec

from outlive import job_gateway, wire
from outlive.errors import BadArguments, Fail, OutliveError, Retry
from outlive.model import JobRequest
from outlive.policy import Policy
from outlive.protocol import MAX_BROUGHT_BYTES, MAX_CHECKPOINT_BYTES, MAX_PROGRESS_CHARS, Progress

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from outlive.child.channel import Channel

MAX_KEY_BYTES = 1000
"""Scope, source and key are one row of an index, and such a row takes at most 2704 bytes."""


class Enqueuing(Protocol):
    def check(self, request: JobRequest) -> None: ...


class Spawned(Protocol):
    """What `task.job(…)` gives."""

    @property
    def app(self) -> Enqueuing: ...
    @property
    def request(self) -> JobRequest: ...


class NoJob(OutliveError):
    """outlive.current() was called where no job runs."""


@dataclass(slots=True)
class Context:
    """One attempt, seen from inside."""

    _id: bytes
    attempt: int
    token: int
    worker: str
    last_checkpoint: object
    source: str
    _policy: Policy
    _channel: Channel
    _max_result_bytes: int
    counted: BaseException | None = None
    """The exception that a source was blamed for already."""
    answered: bool = False
    """All that it wanted of its own source was in the cache."""
    called: bool = False
    """Something that it wanted of its own source was not in the cache."""
    source_ok: bool | None = None
    """What the end of this attempt says about its source; None if nothing."""
    _records: list[object] = field(default_factory=list)
    _spawns: list[msgspec.Raw] = field(default_factory=list)
    _record_bytes: int = 0
    _spawn_bytes: int = 0
    _paid: bool = False

    @property
    def job_id(self) -> UUID:
        return UUID(bytes=self._id)

    @property
    def stopping(self) -> bool:
        """The worker drains: save what you have and come to an end."""
        return self._channel.told_to_stop()

    def progress(self, current: float | None = None, total: float | None = None, message: str | None = None) -> None:
        """Shown live, handed to nobody, and proof that the job does not stall."""
        if message is not None:
            # Cut first: each of the steps copies what there is.
            message = message[:MAX_PROGRESS_CHARS].replace("\0", "").encode("utf-8", "replace").decode()
        now, most = (None if number is None else float(number) for number in (current, total))
        self._channel.send(Progress(self.token, now, most, message, None))

    def checkpoint(self, data: object) -> None:
        """Kept for the next attempt, which finds it in `last_checkpoint`."""
        encoded = wire.encode(data, "the checkpoint")
        if len(encoded) > MAX_CHECKPOINT_BYTES:
            raise BadArguments(
                f"the checkpoint has {len(encoded):,} bytes, over the limit of {MAX_CHECKPOINT_BYTES:,}:"
                " keep the data elsewhere, and here what finds it again"
            )
        self.last_checkpoint = data
        self._channel.send(Progress(self.token, None, None, None, encoded))

    def record(self, scope: str, key: str, data: object, *, strength: float = 1.0) -> None:
        """Keep a finding under its key, if there is none as strong; written together with the job's success."""
        for name, text in (("scope", scope), ("key", key)):
            if not isinstance(text, str) or not 0 < _utf8_bytes(text) <= MAX_KEY_BYTES:
                raise BadArguments(
                    f"the {name} of a record is {text!r:.100}: it must be text of 1 to {MAX_KEY_BYTES} bytes of UTF-8"
                )
        found = {"scope": scope, "key": key, "data": data, "strength": float(strength)}
        self._record_bytes += len(wire.encode(found, "the record"))
        if self._record_bytes > MAX_BROUGHT_BYTES:
            raise BadArguments(f"the records of one job have more than {MAX_BROUGHT_BYTES:,} bytes")
        self._records.append(found)

    def spawn(self, *jobs: Spawned) -> None:
        """Enqueue these when this job succeeds, in the same transaction; not at all if it does not."""
        for job in jobs:
            job.app.check(job.request)
        asked = [msgspec.Raw(_as_json(job.request)) for job in jobs]
        self._spawn_bytes += sum(map(len, asked))
        if self._spawn_bytes > MAX_BROUGHT_BYTES:
            raise BadArguments(f"the jobs that one job spawns have more than {MAX_BROUGHT_BYTES:,} bytes")
        self._spawns += asked

    def found(self) -> tuple[bytes | None, bytes | None]:
        """Its records and what it spawns, as JSON."""
        records = wire.encode(self._records) if self._records else None
        return records, msgspec.json.encode(self._spawns) if self._spawns else None

    def pays_for(self, source: str) -> bool:
        """The token that this job was claimed with pays for one request of its source."""
        if source != self.source or self._paid:
            return False
        self._paid = True
        return True

    def blames_source(self, error: BaseException) -> bool:
        """What its task would try again is the source's fault; what it fails on is its own."""
        if not isinstance(error, Exception) or isinstance(error, OutliveError):
            return isinstance(error, Retry)
        return not isinstance(error, self._policy.fail_on) or isinstance(error, self._policy.retry_on)

    def praise_source(self) -> None:
        """The attempt ends well, and so has its call; whoever makes requests has said of each how it went.

        What the cache has answered says nothing about the source.
        """
        self.source_ok = None if self._paid or self.answered else True

    def blame_source(self, error: BaseException) -> None:
        """The attempt ends with this error: its source's fault, unless that was counted when it was raised.

        Nor is it if the source was not called at all: what is wrong with a page in the cache says nothing about today.
        """
        counted = self.counted is not None and self.counted in (error, error.__cause__, error.__context__)
        only_cached = self.answered and not self._paid
        if not counted and not only_cached and self.blames_source(error):
            self.source_ok = False

    def complete(self, connection: Connection[Any], result: object = None) -> None:
        """End this attempt as succeeded in the transaction of `connection`: all commits together, or nothing."""
        _check_connection(connection, "Connection", "complete")
        connection.execute(*self._completion(result))

    async def acomplete(self, connection: AsyncConnection[Any], result: object = None) -> None:
        """The async twin of `complete`."""
        _check_connection(connection, "AsyncConnection", "acomplete")
        await connection.execute(*self._completion(result))

    def _completion(self, result: object) -> tuple[LiteralString, tuple[object, ...]]:
        """What the database is told. From here on the supervisor leaves the end of this attempt to the job."""
        encoded = wire.encode(result, "the result")
        if encoded is not None and len(encoded) > self._max_result_bytes:
            raise Fail(f"the result has {len(encoded):,} bytes, over the limit of {self._max_result_bytes:,}")
        brought = self.found()
        secret = self._channel.secret(self.token)
        texts = [None if data is None else data.decode() for data in (encoded, *brought)]
        return "select outlive.complete(%s, %s, %s, %s, %s)", (self.token, secret, *texts)


def _check_connection(connection: object, kind: str, verb: str) -> None:
    """Before anything is written: another kind would write nothing, or write it beside the job's transaction."""
    psycopg = sys.modules.get("psycopg")  # A job that has such a connection has imported it.
    if psycopg is not None and isinstance(connection, getattr(psycopg, kind)):
        return
    if psycopg is not None and isinstance(connection, psycopg.AsyncConnection):
        raise TypeError("complete takes a psycopg.Connection, and this one is async: use `await context.acomplete(…)`")
    found = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise TypeError(f"{verb} takes a psycopg.{kind}, and this is a {found}: nothing was written")


def _utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))  # What is no valid text is refused as such, later.


def _as_json(job: JobRequest) -> bytes:
    """A job as the database is asked for it."""
    said = {name: getattr(job, name) for name in JobRequest.__struct_fields__ if getattr(job, name) is not None}
    said["args"] = msgspec.Raw(job.args)
    if job.options:
        said["options"] = msgspec.Raw(job.options)
    return msgspec.json.encode(said)


_current: Context | None = None


def current() -> Context:
    """The job that this process runs."""
    if _current is None:
        raise NoJob("outlive.current() is for code that runs inside a job")
    return _current


def enter(context: Context | None) -> None:
    global _current
    _current = job_gateway.job = context
