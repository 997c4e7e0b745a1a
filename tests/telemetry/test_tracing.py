"""Traces of jobs: real workers send their spans to a receiver on this machine."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from psycopg.conninfo import conninfo_to_dict

from outlive import State, config
from outlive.cli.worker import _reap
from outlive.telemetry import carried
from tests.driving.databases import new_database
from tests.driving.receiving import Receiver, Span, receiving, tree
from tests.driving.workers import Worker
from tests.telemetry import observed
from tests.waiting import eventually

UNSET, ERROR = 0, 2
TARGET = "tests.telemetry.observed:app"


class ToReceiver(SpanExporter):
    """Where the spans of this process go. OpenTelemetry can be set up once in a process."""

    exporter: OTLPSpanExporter | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self.exporter.export(spans) if self.exporter else SpanExportResult.FAILURE


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as one, pytest.MonkeyPatch.context() as environ:
        environ.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.address)
        environ.setenv("OTEL_SERVICE_NAME", "shop-worker")
        yield one


@pytest.fixture(scope="module")
def url(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        yield url


@pytest.fixture(scope="module")
def client(receiver: Receiver, url: str) -> Iterator[trace.Tracer]:
    """A client that has set up OpenTelemetry as its documents say, and the tracer of its own code."""
    provider = TracerProvider(resource=Resource.create({"service.name": "shop-web"}), shutdown_on_exit=False)
    trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(ToReceiver()))
    ToReceiver.exporter = OTLPSpanExporter()
    observed.app.configure(config.load(flags={"database_url": url, "otel": True}))
    yield provider.get_tracer("web")
    observed.app.configure(None)
    ToReceiver.exporter = None


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    made: list[Worker] = []
    yield made
    for one in made:
        if one.process.poll() is None:
            one.stop()


@pytest.fixture
def worker(workers: list[Worker], client: trace.Tracer, url: str, tmp_path: Path) -> Worker:
    """One worker for all tests of this file, unless one has killed it: the libraries take long to import."""
    if not workers or workers[-1].process.poll() is not None:
        settings = {"otel": "true", "log_format": "json"}
        workers.append(Worker(url, tmp_path / "worker.log", slots=2, settings=settings, target=TARGET).started())
    return workers[-1]


def one(spans: list[Span], name: str) -> Span:
    (found,) = (span for span in spans if span.name == name)
    return found


def received(receiver: Receiver, trace_id: int, count: int) -> list[Span]:
    """All spans of a trace. It must have so many of them."""
    key = trace_id.to_bytes(16)
    eventually(lambda: len(receiver.trace(key)) >= count, within_s=20, what=f"{tree(receiver.spans())}")
    found = receiver.trace(key)
    assert len(found) == len({span.id for span in found}) == count, tree(found)
    return found


def test_a_trace_shows_the_request_the_wait_the_run_and_what_the_job_did(worker, client, receiver, url):
    with client.start_as_current_span("request") as request:
        job = observed.work.using(timeout="5m").enqueue(7)
    trace_id = request.get_span_context().trace_id
    assert job.result(timeout=20) == f"{trace_id:032x}"
    spans = received(receiver, trace_id, 10)
    ran: dict[str, object] = {"wait later": {}, "run later": {}}
    below = {"step": {"enqueue later": ran}, **ran}
    assert tree(spans) == {"request": {"enqueue default": {"wait default": {}, "run default": below}}}
    sent, run = one(spans, "enqueue default"), one(spans, "run default")
    common = {
        "messaging.system": "outlive",
        "messaging.destination.name": "default",
        "outlive.task": observed.work.name,
    }
    common["messaging.message.id"] = str(job.id)
    sending: dict[str, object] = {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    sending["server.address"] = conninfo_to_dict(url)["host"]  # A socket, which has no port.
    assert (sent.kind, sent.attributes, sent.service) == ("PRODUCER", common | sending, "shop-web")
    running = {"messaging.operation.name": "run", "messaging.operation.type": "process", "outlive.attempt": 1}
    measured = {key: run.attributes.pop(key) for key in ("outlive.cpu_s", "outlive.peak_memory_bytes")}
    assert all(measured.values())
    assert run.attributes == common | running | {"outlive.outcome": "succeeded"}
    assert (run.kind, run.status, run.links, run.service) == ("CONSUMER", UNSET, [sent.id], "shop-worker")
    waited, step = one(spans, "wait default"), one(spans, "step")
    assert sent.start_ns <= waited.start_ns <= waited.end_ns == run.start_ns <= step.start_ns
    assert step.end_ns <= run.end_ns
    assert step.attributes["n"] == 7
    (record,) = [line for line in map(json.loads, worker.log().splitlines()) if line["message"] == "step 7"]
    assert record["extra"] == {"request": "r-7", "trace_id": f"{trace_id:032x}", "span_id": step.id.hex()}


def test_jobs_that_share_a_process_have_their_own_traces(worker, client, receiver, tmp_path):
    requests, jobs = {}, {}
    for name in ("a", "b"):
        with client.start_as_current_span(f"request {name}") as request:
            jobs[name] = observed.beside.enqueue(name, str(tmp_path / "meeting"), failing=False)
        eventually((tmp_path / f"meeting.{name}").exists, within_s=20)
        requests[name] = request.get_span_context().trace_id
    assert jobs["a"].result(timeout=20) == f"{requests['a']:032x}"
    (tmp_path / "meeting.over").touch()
    assert jobs["b"].result(timeout=20) == f"{requests['b']:032x}"
    for name, trace_id in requests.items():
        ran: dict[str, object] = {"wait default": {}, "run default": {f"{name} waits": {}}}
        assert tree(received(receiver, trace_id, 5)) == {f"request {name}": {"enqueue default": ran}}
    assert "Failed to detach context" not in worker.log(), "neither ends the trace of the other"


def test_each_attempt_has_a_span_with_its_exception_or_its_death(worker, client, receiver):
    with client.start_as_current_span("request") as request:
        failing, dying, far = observed.fail.enqueue(), observed.die.enqueue(), observed.apart.enqueue()
    eventually(lambda: failing.status() is State.FAILED and dying.status() is State.QUARANTINED, within_s=30)
    assert far.result(timeout=30) is None
    spans = received(receiver, request.get_span_context().trace_id, 16)
    failed: dict[str, object] = {"wait default": {}, "run default": {"risky": {}}}
    assert tree(receiver.of_job(failing.id)) == {
        "enqueue default": {**failed, "wait default #2": {}, "run default #2": {"risky": {}}}
    }
    # The span in which the process died never ended. The one before it did, and is not lost.
    died = receiver.of_job(dying.id)
    assert {span.name for span in died} == {"enqueue default", "wait default", "run default"}
    run = one(died, "run default")
    assert [span.name for span in spans if span.parent_id not in {one.id for one in spans} | {b""}] == ["before"]
    assert tree(receiver.of_job(far.id)) == {"enqueue default": {"wait default": {}, "run default": {"alone": {}}}}
    assert (run.status, run.description) == (ERROR, "the process was killed by SIGKILL: last words")
    assert {key: run.attributes[key] for key in ("outlive.outcome", "outlive.signal", "error.type")} == {
        "outlive.outcome": "crashed",
        "outlive.signal": "SIGKILL",
        "error.type": "crashed",
    }
    runs = [span for span in receiver.of_job(failing.id) if span.name == "run default"]
    assert [span.attributes["outlive.attempt"] for span in runs] == [1, 2]
    assert [span.description for span in runs] == ["ValueError: no such thing", "ValueError"]
    assert [span.attributes["error.type"] for span in runs] == ["ValueError", "ValueError"]
    assert "exception.message" not in runs[1].events[0][1]
    (event,) = runs[0].events
    assert event[0] == "exception"
    assert (event[1]["exception.type"], event[1]["exception.message"]) == ("ValueError", "no such thing")
    assert "observed.py" in str(event[1]["exception.stacktrace"])


def test_no_job_inherits_the_context_of_the_one_before_it_in_its_process(worker, client):
    jobs = observed.app.enqueue_many([observed.leak.job() for _ in range(5)])
    assert [job.result(timeout=20) for job in jobs] == [(carried.span_of(job.id, 1, "run"), None) for job in jobs]


def test_many_jobs_share_the_span_that_has_enqueued_them(worker, client, receiver):
    with client.start_as_current_span("request") as request:
        assert observed.app.enqueue_stream(observed.follow.job() for _ in range(3)) == 3
        with observed.app.batch("some", on_done=observed.follow.job()) as batch:
            pass
    batch.wait(timeout=20)
    ran: dict[str, object] = {"wait later": {}, "run later": {}}
    ran |= {f"{name} #{n}": {} for n in (2, 3) for name in ("wait later", "run later")}
    spans = received(receiver, request.get_span_context().trace_id, 10)
    assert tree(spans) == {"request": {"enqueue later": ran, "wait later": {}, "run later": {}}}
    assert one(spans, "enqueue later").attributes["messaging.batch.message_count"] == 3


def test_a_job_that_is_enqueued_in_sql_has_the_trace_of_its_id_or_the_one_that_it_is_given(worker, url, receiver):
    parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-0"
    with psycopg.connect(url, autocommit=True) as connection:
        plain, sampled, unsampled = (
            connection.execute("select outlive.enqueue(%s, options => %s)", [observed.follow.name, options]).fetchone()
            for options in (None, f'{{"traceparent": "{parent}1"}}', f'{{"traceparent": "{parent}0"}}')
        )
    assert plain
    assert sampled
    assert unsampled
    assert tree(received(receiver, carried.trace_of(plain[0]), 2)) == {"wait later": {}, "run later": {}}
    assert observed.app.get_job(unsampled[0]).result(timeout=20) is None
    found = received(receiver, 0x0123456789ABCDEF0123456789ABCDEF, 2)
    assert {span.job for span in found} == {str(sampled[0])}


def test_the_span_of_an_attempt_whose_worker_died_is_made_by_the_reaper(worker, client, url, receiver):
    with client.start_as_current_span("request") as request:
        job = observed.stay.enqueue()
    eventually(lambda: [span for span in receiver.spans() if span.name == "inside"], within_s=20)
    worker.kill()
    assert asyncio.run(_reap(config.load(flags={"database_url": url, "otel": True}), url, once=True)) == 1
    spans = received(receiver, request.get_span_context().trace_id, 4)
    assert tree(spans) == {"request": {"enqueue default": {"run default": {"inside": {}}}}}
    run = one(spans, "run default")
    assert (run.job, run.status, run.attributes["outlive.outcome"]) == (str(job.id), ERROR, "lost")
