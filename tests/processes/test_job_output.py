"""The output of a child, divided into that of its jobs, kept, counted and logged."""

import asyncio

import pytest

from outlive import logs
from outlive.humanize import short_id
from outlive.model import Claimed, Ended
from outlive.output import encode_record
from outlive.protocol import MARK
from outlive.worker.processes.job_output import MAX_LINE_BYTES, TAIL_BYTES, JobOutput
from tests.driving import slots as driving
from tests.driving.making import NOON, new_worker
from tests.waiting import aeventually, eventually

pytestmark = pytest.mark.usefixtures("log_as_text")


def claimed(token: int, task: str) -> Claimed:
    return Claimed(token, new_worker(), 1, "default", "", task, 5, NOON, 0, 0, 0, b"{}", None)


FIRST, SECOND, THIRD = claimed(1, "first"), claimed(2, "second"), claimed(3, "third")
END_1, END_2, END_3 = MARK % 1, MARK % 2, MARK % 3


def logged(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of the log, each with the task that said it."""
    lines = capsys.readouterr().err
    for job in (FIRST, SECOND, THIRD):
        lines = lines.replace(f" {short_id(job.id)} #1]", ":")
    return [line.partition("[")[2] for line in lines.splitlines()]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_lines_are_logged_for_the_job_that_said_them_however_they_arrive(size, capsys):
    said, stream = JobOutput(), b"one\ntwo\nrest" + END_1 + b"three\n"
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
    said.add(b"one\n" + END_1 + b"two\n" + END_2 + b"three\n" + END_3, FIRST)
    assert said.end(FIRST, marked=True) == "one\n"
    assert said.end(SECOND, marked=True) == "two\n"
    assert said.end(THIRD, marked=True) == "three\n"
    assert said.end(FIRST) is None
    assert logged(capsys) == ["first: one", "second: two", "third: three"]


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("forged", [END_1, END_2, MARK % 10**15, END_1 + END_3 + END_1])
def test_a_mark_that_the_job_forges_hides_nothing_and_changes_no_other_job(forged, marked, capsys):
    said, as_text = JobOutput(), forged.replace(b"\0", b"").decode()
    said.add(b"one\n" + forged + b"two\n", FIRST)
    said.add(b"three\n" + (END_1 + b"four\n" + END_2 + b"five\n" if marked else b""), FIRST)
    assert said.end(FIRST, marked=marked) == f"one\n{as_text}two\nthree\n"
    if not marked:
        said.add(b"four\n" + END_2 + b"five\n", SECOND)
    assert said.end(SECOND, marked=True) == "four\n"
    assert said.end(THIRD) == "five\n"


def test_what_is_printed_between_two_jobs_counts_for_the_next(capsys):
    said = JobOutput()
    said.add(b"one\n" + END_1, FIRST)
    said.add(b"late\n", FIRST)
    assert said.end(FIRST, marked=True) == "one\n"
    said.add(b"lat", None)
    said.add(b"er\n", None)
    said.add(b"two\n", SECOND)
    assert said.end(SECOND) == "late\nlater\ntwo\n"
    assert logged(capsys) == ["first: one", "second: late", "second: later", "second: two"]


def test_a_job_of_which_nothing_is_unread_has_no_part_in_what_the_next_one_prints(tmp_path, monkeypatch):
    async def play() -> dict[int, Ended]:
        async with driving.one_slot() as (slots, _, heard):
            names = ("first", "silent", "third")
            slots.accept(driving.claimed(*(str(tmp_path / one) for one in names), task=driving.SAYING), {})
            keep = heard.ended

            def go_on(job: Claimed, end: Ended, *, completing: bool = False) -> None:
                """Stand still while the next job ends and the one after it prints."""
                keep(job, end)
                (tmp_path / "silent").touch()
                eventually((tmp_path / "third.begun").exists)

            monkeypatch.setattr(heard, "ended", go_on)
            (tmp_path / "first").touch()
            eventually((tmp_path / "silent.begun").exists)
            (child,) = slots.busy
            slots.reader.read_output(child)
            (tmp_path / "third").touch()
            await aeventually(lambda: len(heard.ends) == 3)
            return heard.ends

    ends = asyncio.run(play())
    assert [ends[token].output for token in (1, 2, 3)] == ["first\n", None, "third\n"]


def test_the_output_of_a_job_waits_until_the_large_end_of_the_one_before_it_is_read(tmp_path):
    async def play() -> dict[int, Ended]:
        async with driving.one_slot() as (slots, _, heard):
            paths = tmp_path / "large", tmp_path / "second"
            slots.accept(driving.claimed(*map(str, paths), task=driving.SAYING), {})
            (child,) = slots.busy

            def most_is_read() -> bool:
                slots.reader.read(child)
                return len(child.frames.rest()) > 150_000

            eventually((tmp_path / "large.begun").exists)
            slots.reader.read_output(child)
            for path in paths:
                path.touch()
            eventually(most_is_read)
            eventually((tmp_path / "second.begun").exists)
            slots.reader.read_output(child)
            assert len(child.given) == 2
            await aeventually(lambda: len(heard.ends) == 2)
            return heard.ends

    ends = asyncio.run(play())
    assert [ends[token].output for token in (1, 2)] == ["large\n", "second\n"]


def test_a_line_above_the_level_of_the_log_is_found_among_hundreds_below_it(capsys):
    below = b'{"event": "sold", "level": "info"}\nplain\n' + encode_record("INFO", "shop", "sold")
    logs.configure(level="WARNING")
    said = JobOutput()
    said.add(below * 500 + b'{"event": "no price", "level": "error"}\n', FIRST)
    said.end(FIRST)
    assert logged(capsys) == ["first: no price"]


def test_a_line_without_an_end_is_passed_on_in_pieces_and_kept_as_one(capsys):
    said = JobOutput()
    said.add(b"y" * (MAX_LINE_BYTES + 1), FIRST)
    assert len(logged(capsys)[0]) > MAX_LINE_BYTES - 100
    said.add(b"z\n", FIRST)
    kept = said.end(FIRST, marked=False)
    assert kept == "y" * (TAIL_BYTES - 2) + "z\n"
