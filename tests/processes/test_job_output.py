"""The output of a child, divided into that of its jobs, kept, counted and logged."""

import logging
from collections.abc import Iterator

import pytest

from outlive import logs, output
from outlive.humanize import short_id
from outlive.model import Claimed
from outlive.protocol import MARK
from outlive.worker.processes.job_output import LOGGED_LINES, MAX_LINE_BYTES, TAIL_BYTES, JobOutput
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


def test_what_comes_between_two_jobs_counts_for_the_next(capsys):
    said = JobOutput()
    said.add(b"late\n", None)
    assert logged(capsys) == []
    assert said.end(SECOND, marked=False) == "late\n"
    assert logged(capsys) == ["second: late"]


def test_a_mark_that_the_job_forges_hides_nothing(capsys):
    said = JobOutput()
    said.add(b"one\n" + MARK + b"two\n", FIRST)
    said.add(b"three\n", FIRST)
    assert said.end(FIRST, marked=False) == "one\ntwo\nthree\n"
    assert logged(capsys) == ["first: one", "first: two", "first: three"]


def test_a_flood_is_counted_and_its_end_is_kept(capsys):
    said, line = JobOutput(), b"x" * 99 + b"\n"
    for _ in range(100):
        said.add(line * 500, FIRST)
    said.add(b"the end\n", FIRST)
    assert said.lines == 50_001
    before, lines = output.split(said.end(FIRST, marked=False) or "")
    assert before + len(lines) == 50_001
    assert lines[-1] == "the end"
    assert TAIL_BYTES - 200 < sum(len(one) + 1 for one in lines) <= TAIL_BYTES
    *shown, left_out = capsys.readouterr().err.splitlines()
    assert len(shown) == LOGGED_LINES
    assert f"{50_001 - LOGGED_LINES:,} lines of job {short_id(FIRST.id)} were left out" in left_out


def test_a_line_without_an_end_is_passed_on_in_pieces_and_kept_as_one(capsys):
    said = JobOutput()
    said.add(b"y" * (MAX_LINE_BYTES + 1), FIRST)
    assert len(logged(capsys)[0]) > MAX_LINE_BYTES - 100
    said.add(b"z\n", FIRST)
    kept = said.end(FIRST, marked=False)
    assert kept == "y" * (TAIL_BYTES - 2) + "z\n"


def test_records_are_kept_as_text_and_counted_by_their_lines(capsys):
    said = JobOutput()
    said.add(output.encode_record("ERROR", "shop", "failed\nTraceback:\nValueError"), FIRST)
    said.add(b"printed\n", FIRST)
    assert said.so_far() == (4, "ERROR shop: failed\nTraceback:\nValueError\nprinted\n")
    assert logged(capsys) == [
        "first: shop: failed",
        "first: shop: Traceback:",
        "first: shop: ValueError",
        "first: printed",
    ]


def test_a_quiet_log_has_only_what_is_loud_enough(capsys):
    logs.configure("text", level="WARNING")
    said = JobOutput()
    said.add(b"printed\n" * 1000 + output.encode_record("INFO", "shop", "quiet"), FIRST)
    said.add(output.encode_record("WARNING", "shop", "loud") + b"printed\n", FIRST)
    assert said.end(FIRST, marked=False)
    assert logged(capsys) == ["first: shop: loud"]
