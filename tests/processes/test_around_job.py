"""What an app runs around each of its jobs."""

import importlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from outlive import State
from tests.driving.jobs import attempts, finished

SOURCE = """
import asyncio, pathlib, time
from contextvars import ContextVar
import outlive

app, other = outlive.App(), outlive.App()
here = pathlib.Path(__file__).parent
number = ContextVar("number")

def note(what: str) -> None:
    with (here / "noted").open("a") as noted:
        print(outlive.current().task.partition(".")[0], what, file=noted)

@app.around_job
def tell():
    note("begins")
    try:
        yield
    except BaseException as error:
        note(f"raised {type(error).__name__} {'at last' if outlive.current().last_attempt else 'at first'}")
        raise
    else:
        note("returned")

@app.around_job
def give_number():
    if (here / "broken").exists():
        raise ConnectionError("no client")
    token = number.set(outlive.current().args["n"])
    with outlive.baggage(n=str(number.get())):
        yield
    number.reset(token)

def plain(n: int) -> int:
    if n == 0 and outlive.current().attempt == 1:
        raise outlive.Retry(after=0)
    if n < 0:
        raise ValueError("too small")
    if n > 100:
        time.sleep(n)
    return number.get()

async def later(n: int) -> int:
    await asyncio.sleep(0.01)
    return number.get()

once = app.task(name=f"once.{__name__}", max_attempts=1, timeout="1s")(plain)
again = app.task(name=f"again.{__name__}", max_attempts=2)(plain)
alone = app.task(name=f"alone.{__name__}")(later)
shared = app.task(name=f"shared.{__name__}", share=50)(later)
elsewhere = other.task(name=f"elsewhere.{__name__}", max_attempts=1)(plain)
"""
CAUGHT = """
@app.around_job
def take():
    try:
        yield
    except ValueError:
        pass
"""


@pytest.fixture
def shop(apps: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    name = f"surrounded_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(SOURCE + getattr(request, "param", ""))
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def noted(tmp_path: Path) -> list[str]:
    return (tmp_path / "noted").read_text().splitlines()


def test_it_sees_how_each_attempt_begins_and_ends(start, shop, tmp_path):
    start(slots=1, target=f"{shop.__name__}:app", folder=tmp_path)
    assert shop.again.enqueue(0).result(timeout=30) == 0
    assert noted(tmp_path) == ["again begins", "again raised Retry at first", "again begins", "again returned"]
    failed, late = shop.once.enqueue(-1), shop.once.enqueue(200)
    assert [finished(job) for job in (failed, late)] == [State.FAILED] * 2
    assert noted(tmp_path)[4:] == [
        *("once begins", "once raised ValueError at last"),
        *("once begins", "once raised Stopped at last"),
    ]


def test_what_it_sets_is_set_for_the_job_and_for_no_other_in_its_process(start, shop, tmp_path):
    start(slots=2, target=f"{shop.__name__}:app", folder=tmp_path)
    jobs = shop.app.enqueue_many([task.job(n) for n in range(20) for task in (shop.alone, shop.shared)])
    assert [job.result(timeout=30) for job in jobs] == [n for n in range(20) for _ in range(2)]


def test_a_task_of_another_app_and_a_call_as_a_function_have_nothing_around_them(start, shop, tmp_path, queue):
    start(target=f"{shop.__name__}:other", folder=tmp_path)
    job = shop.elsewhere.enqueue(1)
    assert finished(job) is State.FAILED
    assert "LookupError: <ContextVar name='number'" in str(attempts(queue, job)[0].error)
    with pytest.raises(LookupError):
        shop.once(1)


@pytest.mark.parametrize("shop", [CAUGHT], indirect=True)
def test_an_exception_that_it_keeps_to_itself_is_said(start, shop, tmp_path, queue):
    start(target=f"{shop.__name__}:app", folder=tmp_path)
    job = shop.once.enqueue(-1)
    assert finished(job) is State.FAILED
    (attempt,) = attempts(queue, job)
    said = "caught under @app.around_job, and not raised again (functions there: tell, give_number, take)"
    assert said in str(attempt.error)


def test_what_it_raises_before_the_job_is_the_error_of_the_job(start, shop, tmp_path, queue):
    (tmp_path / "broken").touch()
    start(target=f"{shop.__name__}:app", folder=tmp_path)
    job = shop.once.enqueue(1)
    assert finished(job) is State.FAILED
    (attempt,) = attempts(queue, job)
    assert attempt.error == "ConnectionError: no client"
    assert noted(tmp_path) == ["once begins", "once raised ConnectionError at last"]
