"""The output of a child, divided into that of its jobs, kept, counted and logged."""

import logging
from collections.abc import Iterator

import pytest

from outlive import logs
from outlive.humanize import short_id
from outlive.model import Claimed
from outlive.protocol import MARK
from outlive.worker.processes.job_output import MAX_LINE_BYTES, TAIL_BYTES, JobOutput
from tests.driving.making import NOON, new_worker


def claimed(task: str) -> Claimed:
    return Claimed(1, new_worker(), 1, "default", "", task, 5, NOON, 0, 0, 0, b"{}", None)


FIRST, SECOND = claimed("first"), claimed("second")


@pytest.fixture(autouse=True)
def _log_as_text() -> Iterator[None]:
    logger = logging.getLogger("outlive")
    level, handlers = logger.level, list(logger.handlers)
    logs.configure("text", level="INFO")
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def logged(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of the log, each with the task that said it."""
    return [
        line.partition("[")[2].replace(f" {short_id(FIRST.id)} #1]", ":").replace(f" {short_id(SECOND.id)} #1]", ":")
        for line in capsys.readouterr().err.splitlines()
    ]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_lines_are_logged_for_the_job_that_said_them_however_they_arrive(size, capsys):
    said, stream = JobOutput(), b"one\ntwo\nrest" + MARK + b"three\n"
    for at in range(0, len(stream), size):
        said.add(stream[at : at + size], FIRST)
    assert said.end(FIRST, marked=True) == "one\ntwo\nrest"
    assert logged(capsys) == ["first: one", "first: two", "first: rest"]
    said.add(b"four", SECOND)
    assert said.end(SECOND, marked=False) == "three\nfour"
    assert logged(capsys) == ["second: three", "second: four"]
    assert said.end(FIRST, marked=False) is None


def test_the_output_of_several_jobs_that_arrives_at_once_is_divided_among_them(capsys):
    said = JobOutput()
    said.add(b"one\n" + MARK + b"two\n" + MARK + b"three\n" + MARK, FIRST)
    assert said.end(FIRST, marked=True) == "one\n"
    assert said.end(SECOND, marked=True) == "two\n"
    assert said.end(FIRST, marked=True) == "three\n"
    assert logged(capsys) == ["first: one", "second: two", "first: three"]


def test_a_mark_that_the_job_forges_hides_nothing(capsys):
    said = JobOutput()
    said.add(b"one\n" + MARK + b"two\n", FIRST)
    said.add(b"three\n", FIRST)
    assert said.end(FIRST, marked=False) == "one\ntwo\nthree\n"
    assert logged(capsys) == ["first: one", "first: two", "first: three"]


def test_a_line_without_an_end_is_passed_on_in_pieces_and_kept_as_one(capsys):
    said = JobOutput()
    said.add(b"y" * (MAX_LINE_BYTES + 1), FIRST)
    assert len(logged(capsys)[0]) > MAX_LINE_BYTES - 100
    said.add(b"z\n", FIRST)
    kept = said.end(FIRST, marked=False)
    assert kept == "y" * (TAIL_BYTES - 2) + "z\n"
