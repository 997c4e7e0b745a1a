"""The page of guarantees and the tests beside this file name each other."""

import re

from tests.driving.workers import ROOT

PAGE = (ROOT / "docs" / "reference" / "guarantees.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`guarantees/(test_\w+\.py)::(test_\w+)`", PAGE))


def test_every_guarantee_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| Guarantee")]
    assert len(rows) > 40
    for row in rows:
        assert "`guarantees/test_" in row, row


def test_every_test_of_a_guarantee_is_on_the_page_and_exists():
    written = {
        (file.name, name)
        for file in (ROOT / "tests" / "guarantees").glob("test_*.py")
        if file.name != "test_page.py"
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert written == NAMED
