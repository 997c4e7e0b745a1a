"""What a job asks its supervisor, and what it makes of the answers, without a word on how it waits for them.

A talk yields its questions, a verb and a body each, and is sent the answers, by `Channel.talk` or `Channel.atalk`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import msgspec

from outlive import protocol
from outlive.model import ARGUMENTS_PART_BYTES

T = TypeVar("T")
Talk = Generator[tuple[str, bytes], bytes, T]
Steps = list[tuple[str, bytes | None, str | None]]  # Names, values and arguments of kept steps.

encoded = msgspec.msgpack.Encoder().encode
_waited = msgspec.msgpack.Decoder(protocol.Waited)
_inputs = msgspec.msgpack.Decoder(list[tuple[int | None, bytes | None]])
_steps = msgspec.msgpack.Decoder(Steps)


def keep(step: protocol.KeptStep) -> Talk[bytes]:
    """Keep a step. Returns the value that is kept."""
    return (yield "step", encoded(step))


def wait(wait: protocol.Wait) -> Talk[protocol.Waited]:
    """Suspend the job. This returns when the wait is over, if the process is kept for so long."""
    return _waited.decode((yield "wait", encoded(wait)))


def secret(*, completing: bool) -> Talk[str]:
    """What proves to the database that the job owns its attempt. `completing`: the supervisor must not end that."""
    return (yield "complete" if completing else "secret", b"").decode()


def arguments() -> Talk[bytes]:
    """The arguments of the job, if they are too large to come with it."""
    parts = [(yield "arguments", b"0")]
    while len(parts[-1]) == ARGUMENTS_PART_BYTES:
        parts.append((yield "arguments", b"%d" % len(parts)))
    return b"".join(parts)


def inputs() -> Talk[list[bytes | None]]:
    """The results of the jobs that this one has waited for, as JSON. They come in parts, as arguments do."""
    results: list[bytes | None] = []
    begun = b""
    while rows := _inputs.decode((yield "inputs", b"%d %d" % (len(results), len(begun)))):
        for size, part in rows:
            begun += part or b""
            if size is None or len(begun) == size:
                results.append(None if size is None else begun)
                begun = b""
    return results


def steps() -> Talk[Steps]:
    """The steps that earlier attempts have kept, if they are too many to come with the job."""
    kept: Steps = []
    while part := _steps.decode((yield "steps", kept[-1][0].encode() if kept else b"")):
        kept += part
    return kept
