"""The text of outputs: records as lines, and how many lines are not kept."""

import pytest

from outlive import output
from outlive.output import Record


@pytest.mark.parametrize(
    "record",
    [
        Record("INFO", "shop", "hello"),
        Record("ERROR", "shop.parser", "failed\nTraceback (most recent call last):\n  …\nValueError: x"),
        Record("Level 15", "root", ""),
        Record("WARNING", "a", "with \x1f a separator"),
    ],
)
def test_a_record_comes_out_as_it_went_in(record):
    line = output.encode_record(*record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert output.read_record(line[:-1]) == record


@pytest.mark.parametrize("line", [b"", b"hello", b"\x1eforged", b"\x1eforged\x1ftwice", b"\xff\xfe"])
def test_other_lines_are_no_records(line):
    assert output.read_record(line) is None


def test_the_middle_of_a_huge_record_is_left_out():
    record = output.read_record(output.encode_record("INFO", "x" * 1000, "a" * 50_000 + "the end")[:-1])
    assert record is not None
    assert len(record.logger) == output.MAX_NAME_CHARS
    assert len(record.message) == output.MAX_RECORD_CHARS + 3
    assert record.message.endswith("athe end")


def test_a_lone_surrogate_and_a_nul_are_kept_as_text_that_postgres_takes():
    line = output.encode_record("INFO", "shop", "\ud800 and \0")
    assert output.kept(line, 1) == "INFO shop: \\ud800 and \n"


@pytest.mark.parametrize(
    ("tail", "lines", "kept", "split"),
    [
        (b"", 0, "", (0, [])),
        (b"one\ntwo\n", 2, "one\ntwo\n", (0, ["one", "two"])),
        (b"one\nlast", 2, "one\nlast", (0, ["one", "last"])),
        (b"two\n", 2, "[1 earlier line is not kept]\ntwo\n", (1, ["two"])),
        (b"last\n", 2310, "[2,309 earlier lines are not kept]\nlast\n", (2309, ["last"])),
        (b"a\n\x1eINFO\x1fshop\x1fb\x1ec\n", 3, "a\nINFO shop: b\nc\n", (0, ["a", "INFO shop: b", "c"])),
    ],
)
def test_an_output_says_how_many_lines_are_not_kept(tail, lines, kept, split):
    assert output.kept(tail, lines) == kept
    assert output.split(kept) == split
