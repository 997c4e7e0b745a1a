"""What a worker sends to Sentry: events of attempts whose process died, which are made from the evidence, and the
transactions of jobs, which come from their processes. Threads send them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlive import stacks
from outlive.errors import ConfigError, not_installed
from outlive.model import Claimed, Ended, LostRun
from outlive.states import FAULTS, Outcome
from outlive.telemetry.background import Background
from outlive.telemetry.carried import trace_of_attempt

try:
    import sentry_sdk
    from sentry_sdk.envelope import Envelope
    from sentry_sdk.utils import BadDsn
except ImportError:
    raise not_installed("sentry", "its SDK", extra="sentry") from None

MAX_OUTPUT_CHARS = 8_000
MOST_AT_ONCE = 50
"""How many transactions the SDK is given before it has sent them. It drops those for which it has no room: 100."""
SEND_S = 10.0
CAUSES = FAULTS - {Outcome.FAILED}
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$', re.MULTILINE)


class Crashes:
    def __init__(self, worker: str, options: Mapping[str, Any]) -> None:
        """The options are those of the app's client. This one has no integrations: errors here are no events."""
        self._worker, self._options = worker, options
        try:
            self._client = self._start_client()
        except BadDsn as error:
            raise ConfigError(f"sentry is set, but SENTRY_DSN is not valid: {error}") from None
        self._scope = sentry_sdk.Scope(client=self._client)
        self._background: Background[tuple[Claimed, Ended]] = Background("events", self._send, _size)
        self._relaying: sentry_sdk.Client | None = None
        self._relayed: Background[bytes] | None = None

    def _start_client(self) -> sentry_sdk.Client:
        return sentry_sdk.Client(**self._options, default_integrations=False, auto_enabling_integrations=False)

    def ended(self, job: Claimed, end: Ended) -> None:
        """An attempt has ended. If its process raised an exception, the child has made the event."""
        if end.outcome in CAUSES and not end.told:
            self._background.put([(job, end)])

    def lost(self, run: LostRun) -> None:
        self.ended(run.job, run.end)

    def _send(self, crashes: list[tuple[Claimed, Ended]]) -> None:
        for job, end in crashes:
            self._client.capture_event(event_of(job, end, self._worker), scope=self._scope)  # type: ignore[arg-type]

    def relay(self, transaction: bytes) -> None:
        """A child sends a transaction, in its envelope. They have threads of their own: no event waits behind them."""
        if self._relayed is None:
            self._relaying, self._relayed = self._start_client(), Background("transactions", self._relay, len)
        self._relayed.put([transaction])

    def _relay(self, transactions: list[bytes]) -> None:
        assert self._relaying is not None
        for begin in range(0, len(transactions), MOST_AT_ONCE):
            for data in transactions[begin : begin + MOST_AT_ONCE]:
                if self._relaying.transport is not None:
                    self._relaying.transport.capture_envelope(Envelope.deserialize(data))
            self._relaying.flush(timeout=SEND_S)

    def close(self, within_s: float) -> None:
        if self._relayed is not None and self._relaying is not None:
            self._relayed.close(within_s / 4)
            self._relaying.close(timeout=within_s / 4)
            within_s /= 2
        self._background.close(within_s / 2)
        self._client.close(timeout=within_s / 2)


def _size(crash: tuple[Claimed, Ended]) -> int:
    job, end = crash
    return len(end.output or "") + len(end.stack or "") + len(job.args or b"")


def event_of(job: Claimed, end: Ended, worker: str) -> dict[str, Any]:
    kind = "".join(word.title() for word in end.outcome.split("_"))
    exception = {"type": kind, "value": end.error, "mechanism": {"type": "outlive", "handled": False}}
    if frames := frames_of(end.stack):
        exception["stacktrace"] = {"frames": frames}
    evidence = {name: getattr(end, name) for name in ("signal", "exit_code", "peak_memory_bytes", "cpu_s", "took_s")}
    return {
        "level": "fatal",
        "platform": "python",
        "logger": "outlive",
        "transaction": job.task,
        "exception": {"values": [exception]},
        "fingerprint": ["outlive", job.task, str(end.outcome), end.signal or str(end.exit_code)],
        "tags": {
            "outlive.task": job.task,
            "outlive.job_id": str(job.id),
            "outlive.attempt": str(job.attempt),
            "outlive.queue": job.queue,
            "outlive.outcome": str(end.outcome),
            "outlive.worker": worker,
        },
        "contexts": {
            "outlive": {key: value for key, value in evidence.items() if value is not None},
            "trace": dict(zip(("trace_id", "parent_span_id", "span_id"), trace_of_attempt(job), strict=True)),
        },
        "extra": {"output": (end.output or "")[-MAX_OUTPUT_CHARS:], "stack": end.stack},
    }


def frames_of(stack: str | None) -> list[dict[str, Any]]:
    """The frames of a dump, the innermost last."""
    return [
        {"abs_path": path, "filename": path, "lineno": int(line), "function": name}
        for path, line, name in reversed(_FRAME.findall(stacks.of_job(stack or "")))
    ]
