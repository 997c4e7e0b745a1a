"""An app whose jobs make spans and fail in several ways."""

import faulthandler
import logging
import os
import signal
from pathlib import Path

import sentry_sdk
from opentelemetry import context, trace

import outlive
from tests.waiting import aeventually

app = outlive.App()
tracer = trace.get_tracer("observed")


@app.task
def work(n: int) -> str:
    with tracer.start_as_current_span("step", attributes={"n": n, "parts": ["a", "b"]}):
        follow.enqueue()
        logging.getLogger("shop").info("step %d", n, extra={"request": "r-7"})
    outlive.current().spawn(follow.job())
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


@app.task(queue="later")
def follow() -> None:
    pass


@app.task(max_attempts=2, backoff=[0])
def fail() -> None:
    with tracer.start_as_current_span("risky"):
        raise ValueError("no such thing" if outlive.current().attempt == 1 else "")


@app.task(max_attempts=5, backoff=[0])
def ask_again(end: str) -> None:
    raise {"retry": outlive.Retry("not yet"), "memory": MemoryError(), "fix": LookupError()}[end]


@app.task(max_attempts=3, backoff=[0])
def recover() -> None:
    if outlive.current().failures < 2:
        raise ConnectionError("not yet")


@app.task(fail_on=ValueError)
def refuse() -> None:
    raise ValueError("for good")


@app.task(max_crashes=1)
def die() -> None:
    with tracer.start_as_current_span("all"):
        with tracer.start_as_current_span("before"):
            pass
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


@app.task
def stay() -> None:
    with tracer.start_as_current_span("inside"):
        pass
    signal.pause()


@app.task(recycle_after=100)
def leak() -> tuple[int, object]:
    """What is current when the job begins. What the job attaches must not reach the next one."""
    found = trace.get_current_span().get_span_context().span_id, context.get_value("leaked")
    context.attach(context.set_value("leaked", True, trace.set_span_in_context(tracer.start_span("leaked"))))
    return found


@app.task(preload=False)
def apart() -> None:
    with tracer.start_as_current_span("alone"):
        pass


@app.task(share=10, max_attempts=1)
async def beside(name: str, meeting: str, failing: bool) -> str:
    """Runs beside another one in one process: neither goes on before both have begun, and b ends after a."""
    sentry_sdk.set_tag("name", name)
    with tracer.start_as_current_span(f"{name} waits"):
        Path(f"{meeting}.{name}").touch()  # noqa: ASYNC240
        awaited = (f"{meeting}.a", f"{meeting}.b") if name == "a" else (f"{meeting}.over",)
        await aeventually(lambda: all(map(os.path.exists, awaited)))
    if failing:
        raise ValueError(name)
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


@app.task(max_crashes=1)
def fault() -> None:
    print("about to fault", flush=True)
    faulthandler._sigsegv()  # type: ignore[attr-defined]


@app.task(max_attempts=1, recycle_after=100)
def tagged(failing: bool) -> None:
    """What a job sets in its scope must not reach the next one."""
    if failing:
        raise KeyError("plain")
    sentry_sdk.set_tag("mine", "yes")


@app.task(recycle_after="clean")
def clean() -> int:
    return os.getpid()


@app.task
def quick() -> None:
    pass


@app.task(max_attempts=1)
def on_purpose() -> None:
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise outlive.Fail("as intended") from error


@app.task
def reported() -> None:
    try:
        raise KeyError("the cause")
    except KeyError as error:
        sentry_sdk.capture_exception(error)
        raise outlive.Fail("as intended") from error


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


@app.task(max_attempts=1, max_crashes=1)
def unprintable() -> None:
    raise Unprintable


@app.task(timeout=1, max_attempts=1)
def hang() -> None:
    signal.pause()
