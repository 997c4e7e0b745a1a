"""A receiver of spans (OTLP over HTTP) and of events of Sentry on this machine, which keeps what it is sent."""

import gzip
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from uuid import UUID

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Encoded


class Span(NamedTuple):
    """A span that was received."""

    name: str
    trace_id: bytes
    id: bytes
    parent_id: bytes
    kind: str
    start_ns: int
    end_ns: int
    status: int
    description: str
    attributes: dict[str, object]
    events: list[tuple[str, dict[str, object]]]
    links: list[bytes]
    service: object

    @property
    def job(self) -> object:
        return self.attributes.get("messaging.message.id")


class Receiver:
    """What was received. Each request is kept as it came, with its path and the headers."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.silent = threading.Event()
        """While this is set, no request is answered."""
        self.released = threading.Event()

    def spans(self) -> list[Span]:
        return [span for path, _, body in list(self.requests) if path == "/v1/traces" for span in _decoded(body)]

    def events(self) -> list[dict[str, Any]]:
        """The events in the envelopes of Sentry."""
        return self.items("event")

    def items(self, kind: str) -> list[dict[str, Any]]:
        """What is of this kind in the envelopes of Sentry, such as `transaction`."""
        return [item for body in self._envelopes() for item in _items(body, kind)]

    def heads(self) -> list[dict[str, Any]]:
        """The headers of the envelopes of Sentry."""
        return [json.loads(body.splitlines()[0]) for body in self._envelopes()]

    def _envelopes(self) -> list[bytes]:
        found = [body for path, _, body in list(self.requests) if path.endswith("/envelope/")]
        return [gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body for body in found]

    def trace(self, trace_id: bytes) -> list[Span]:
        return [span for span in self.spans() if span.trace_id == trace_id]

    def of_job(self, job: UUID) -> list[Span]:
        """The spans that name this job, and all below them."""
        found = self.spans()
        wanted = [span for span in found if span.job == str(job)]
        for span in wanted:
            wanted += [one for one in found if one.parent_id == span.id and one not in wanted]
        return wanted


def tree(spans: list[Span]) -> dict[str, object]:
    """The names of spans, each with those below it. A name that is there twice has a number."""
    known = {span.id for span in spans}

    def below(parent_id: bytes | None) -> dict[str, object]:
        found: dict[str, object] = {}
        for span in sorted(spans, key=lambda span: span.start_ns):
            if span.parent_id == parent_id or (parent_id is None and span.parent_id not in known):
                again = sum(name.partition(" #")[0] == span.name for name in found)
                found[f"{span.name} #{again + 1}" if again else span.name] = below(span.id)
        return found

    return below(None)


@contextmanager
def receiving() -> Iterator[Receiver]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.receiver = receiver = Receiver(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.released.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        receiver: Receiver = self.server.receiver  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if receiver.silent.is_set():
            receiver.released.wait(60)
        receiver.requests.append((self.path, dict(self.headers), body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _items(envelope: bytes, kind: str) -> Iterator[dict[str, Any]]:
    """An envelope is lines of JSON: a header, and for each item a header and its content."""
    lines = envelope.splitlines()[1:]
    for header, content in zip(lines[::2], lines[1::2], strict=False):
        if json.loads(header)["type"] == kind:
            yield json.loads(content)


def _decoded(body: bytes) -> Iterator[Span]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _attributes(of_resource.resource.attributes).get("service.name")
        for of_scope in of_resource.scope_spans:
            for one in of_scope.spans:
                yield Span(
                    one.name,
                    one.trace_id,
                    one.span_id,
                    one.parent_span_id,
                    Encoded.SpanKind.Name(one.kind).removeprefix("SPAN_KIND_"),
                    one.start_time_unix_nano,
                    one.end_time_unix_nano,
                    one.status.code,
                    one.status.message,
                    _attributes(one.attributes),
                    [(event.name, _attributes(event.attributes)) for event in one.events],
                    [link.span_id for link in one.links],
                    service,
                )


def _attributes(found: Iterable[KeyValue]) -> dict[str, object]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in found}
