"""An app that sets up OpenTelemetry and Sentry itself."""

import sentry_sdk
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import outlive

provider = TracerProvider(resource=Resource.create({"service.name": "own"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=600_000))
trace.set_tracer_provider(provider)
sentry_sdk.init(environment="own", auto_enabling_integrations=False)
app = outlive.App(otel=True, sentry=True)
tracer = trace.get_tracer("provided")


@app.task(recycle_after=100)
def warm() -> None:
    with tracer.start_as_current_span("warm"):
        pass


@app.task(max_attempts=1)
def fresh() -> None:
    with tracer.start_as_current_span("fresh"):
        raise ValueError("of the app")
