"""What leaves a worker: spans of jobs that may be forged, and receivers that don't answer."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import uuid4

import msgspec
import pytest

from outlive.model import Claimed, Ended, new_job_id
from outlive.states import Outcome
from outlive.telemetry import background, carried, producing
from outlive.telemetry.background import Background
from outlive.telemetry.spans import Event, Span, of_attempt
from outlive.telemetry.tracing import Tracing, context_of, parent_of, parse
from tests.driving.receiving import Receiver, receiving
from tests.waiting import eventually

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.address)
        yield one


def claimed(options: bytes | None = None) -> Claimed:
    now = datetime.now(UTC)
    return Claimed(1, new_job_id(), 1, "default", "", "shop.pay", 5, now, 0, 0, 0, b"{}", options)


def span(name: str, **changes: object) -> Span:
    return msgspec.structs.replace(Span(name, bytes(15) + b"\1", 1, None, "", 0, 1, 2), **changes)


def sending(things: list[Span | bytes]) -> None:
    tracing = Tracing()
    tracing.send(things)
    tracing.close(0)


def test_spans_that_a_job_forges_spoil_no_others(receiver):
    forged = [
        span("too many bits", span_id=2**63, attributes={"n": 2**64 - 1}),
        span("no such kind", kind=77),
        span("no such state", status=-1),
        span("no id", trace_id=b"", span_id=0),
        span("deep", attributes={"a": [[[[{"b": None}]]]]}),
    ]
    frames: list[Span | bytes] = [b"", b"\xff\x00", msgspec.msgpack.encode([[1, 2, 3]])]
    frames += [msgspec.msgpack.encode([one]) for one in forged]
    sending([*frames, span("of the worker"), msgspec.msgpack.encode([span("of a job"), span("of a job")])])
    names = [one.name for one in receiver.spans()]
    assert names.count("of the worker") == 1
    assert names.count("of a job") == 2


@pytest.mark.parametrize(
    "forged",
    [
        [span("x")] * 10_000,
        [span("x", attributes={"a": [1] * 200_000})],
        [span("x", attributes={"a": [[]] * 200_000})],
        [span("x", attributes={f"{n}": n for n in range(30_000)})],
        [span("x", events=[Event("", 0, {})] * 50_000)],
    ],
    ids=["spans", "numbers", "lists", "attributes", "events"],
)
def test_spans_that_take_far_more_memory_than_they_have_bytes_are_refused(forged, receiver):
    sending([msgspec.msgpack.encode(forged), msgspec.msgpack.encode([span("of another job")])])
    assert [one.name for one in receiver.spans()] == ["of another job"]


def test_a_job_with_too_many_spans_takes_no_room_from_attempts(receiver):
    receiver.silent.set()
    tracing, job = Tracing(), claimed()
    for _ in range(2 * background.MOST):
        tracing.relay(msgspec.msgpack.encode([span("flood")]))
    tracing.begin(job)
    tracing.ended(job, Ended(job.token, took_s=0.1))
    assert isinstance(tracing._background._waiting[-1], Span)
    tracing.close(0)


def test_a_portion_has_a_limit_of_bytes():
    sent: list[list[int]] = []
    one: Background[int] = Background("numbers", sent.append, size=lambda number: number)
    half = background.PORTION_BYTES // 2
    one.put([2 * half + 1, half, half, 1, 1])
    one.close(10)
    assert sent == [[2 * half + 1], [half, half], [1, 1]]


def test_a_receiver_that_does_not_answer_delays_nothing(receiver, caplog):
    receiver.silent.set()
    tracing = Tracing()
    for _ in range(background.MOST):
        job = claimed()
        tracing.begin(job)
        tracing.ended(job, Ended(job.token, took_s=0.1))
    tracing.relay(b"x" * background.MOST_BYTES)
    assert tracing._background._dropped > 0
    assert len(tracing._background._waiting) <= background.MOST
    began = time.monotonic()
    tracing.close(0.2)
    assert time.monotonic() - began < 10


def test_things_are_sent_in_order_and_an_error_costs_only_its_portion(caplog):
    sent: list[list[int]] = []

    def send(things: list[int]) -> None:
        sent.append(things)
        if len(sent) == 1:
            raise ValueError("refused")

    one: Background[int] = Background("numbers", send)
    one.put([1, 2])
    eventually(lambda: sent)
    one.put([3])
    one.close(10)
    assert sent == [[1, 2], [3]]
    told = [record.message for record in caplog.records if "numbers" in record.message]
    assert told == ["2 numbers could not be sent: ValueError: refused"]


@pytest.mark.parametrize(
    "options",
    [
        b'{"traceparent": 7}',
        b'{"traceparent": "00-00000000000000000000000000000000-b7ad6b7169203331-01"}',
        b'{"traceparent": "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
        b'{"timeout_s": 3}',
        b'["traceparent"]',
        None,
    ],
)
def test_a_job_without_a_valid_context_has_a_trace_of_its_own(options, receiver):
    job, tracing = claimed(options), Tracing()
    parent, state = tracing.begin(job)
    assert (parent[3:35], state) == (f"{carried.trace_of(job.id):032x}", "")
    tracing.close(0)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a=1,tenant@vendor=x y", "a=1,tenant@vendor=x y"),
        ("a=1\n2026-01-01 ERROR forged", ""),
        ("a=" + "x" * 1_000_000, ""),
        ("=,=", ""),
    ],
    ids=["valid", "another line", "huge", "empty"],
)
def test_a_state_that_is_not_valid_is_left_out(written, read):
    options = msgspec.json.encode({"traceparent": PARENT, "tracestate": written})
    assert parent_of(options) == parse(PARENT, read)


def test_a_context_goes_from_the_options_of_a_job_to_its_span():
    parent = parent_of(b'{"timeout_s":3,"traceparent":"%s","tracestate":"a=b"}' % PARENT.encode())
    assert parent
    assert f"00-{parent.trace_id:032x}-{parent.span_id:016x}-01" == PARENT
    job = claimed()
    context = context_of(job.id, 1, parent.trace_id, parent, sampled=True)
    end = Ended(1, Outcome.LOST, error="Worker died unexpectedly")
    wait, run = of_attempt(job, end, context, parent, start_ns=10**18 + 5, end_ns=10**18)
    assert (wait.parent_id, run.parent_id) == (parent.span_id, parent.span_id)
    assert (run.start_ns, run.end_ns, run.status, run.state) == (10**18, 10**18, 2, "a=b")
    assert wait.end_ns == run.start_ns
    assert len({carried.span_of(uuid, n, kind) for uuid in (job.id, uuid4()) for n in (1, 2) for kind in "rw"}) == 8


@pytest.mark.parametrize(
    ("url", "attributes"),
    [
        ("postgresql://ada@db.example/shop", {"server.address": "db.example", "server.port": 5432}),
        ("host=10.0.0.7 port=6000", {"server.address": "10.0.0.7", "server.port": 6000}),
        ("postgresql://a.example,b.example/shop", {}),
        (None, {}),
    ],
)
def test_the_span_of_an_enqueue_names_the_server_if_there_is_one(url, attributes):
    assert producing._server(url) == attributes
