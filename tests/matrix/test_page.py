"""The page of faults has every fault, and names tests that exist."""

import re

from tests.driving.workers import ROOT

PAGE = (ROOT / "docs" / "explanation" / "faults.md").read_text(encoding="utf-8")
ROWS = {*map(str, range(1, 83)), "4b"}


def test_every_row_of_the_matrix_has_a_test_on_the_page_of_faults():
    told = re.findall(r"^\| ([0-9b, ]+) \|", PAGE, re.MULTILINE)
    assert {number for numbers in told for number in numbers.split(", ")} == ROWS


def test_a_mark_names_faults_of_the_page():
    marks = (re.findall(r"mark\.fault\((.*)\)", path.read_text()) for path in (ROOT / "tests").rglob("test_*.py"))
    assert {number.strip('" ') for found in marks for numbers in found for number in numbers.split(",")} <= ROWS


def test_every_test_on_the_page_of_faults_exists():
    named = re.findall(r"([a-z]+/test_[a-z_]+\.py)::(test_\w+)", PAGE)
    assert len(named) > 50
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{name}"
