"""The report of the long tests names every long test, and a run of some of them keeps the others' rows."""

from pathlib import Path

import pytest

from tests.driving.workers import ROOT
from tests.reporting import NOT_RUN, ROOTS, Row, left_out, merged, name_of, page, rows_of

REPORT = ROOT / "docs" / "reports" / "long-tests.md"
ALL = [ROOT / folder for folder in ROOTS]


class Collected:
    """The tests that pytest has collected."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = {name_of(item.nodeid) for item in session.items}


def long_tests(config: pytest.Config) -> set[str]:
    """All of them. A run of all quick tests has left them out; any other run collects them here."""
    chosen = config.option.keyword or config.option.lf
    if [Path(one).resolve() for one in config.args] == ALL and not chosen:
        return left_out
    collected = Collected()
    words = ["-m", "long", "--collect-only", "-n", "0", "-s", "-p", "no:faulthandler", *map(str, ALL)]
    assert pytest.main(words, [collected]) == 0
    return collected.tests


def test_the_report_names_every_long_test_and_no_other(request: pytest.FixtureRequest) -> None:
    collected = long_tests(request.config)
    told = {row.test for row in rows_of(REPORT.read_text())}
    assert len(collected) > 10
    assert told == collected, "run `./run test --long -k NAME` for those that are missing: it adds their rows"


def test_a_run_of_some_tests_replaces_their_rows_and_keeps_the_others() -> None:
    before = [
        Row("guarantees/test_killers.py: keeps[exact]", "failed", "3", "80 % kept"),
        Row("guarantees/test_killers.py: is gone", "passed", "4"),
        Row("guarantees/test_leases.py: a lease", "passed", "5", "no | line"),
    ]
    ran = {before[0].test: Row(before[0].test, "passed", "6", "95 % kept")}
    rows = merged(before, [before[0].test, "guarantees/test_killers.py: is new"], ran)
    assert rows == [ran[before[0].test], Row("guarantees/test_killers.py: is new", NOT_RUN), before[2]]
    assert rows_of(page(rows)) == rows
