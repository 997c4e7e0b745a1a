"""`--report FILE` writes a table of test results. Each test is a row, with the last line that it printed.

A run of some tests replaces their rows and keeps the others. A test that was never run has a row that says so.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

_HEAD = """# Results of the long tests: {version}

`./run test --long` writes this page. It runs the tests that take longer than `./run test` allows, one after the other,
with the bounds that the guarantees name. The last column shows what a test has measured. `./run test --long -k NAME`
replaces the rows of the tests that it runs.

{summary}

| test | | s | seen |
|---|---|---|---|
"""
_ROW = re.compile(r"^\| (?P<test>\S+\.py: .*?) \| (?P<outcome>[a-z ]+) \| (?P<seconds>\d*) \| (?P<seen>.*) \|$", re.M)
NOT_RUN = "not run"
ROOTS = (Path("tests"), Path("lab", "tests"))


@dataclass(frozen=True, slots=True)
class Row:
    test: str
    outcome: str
    seconds: str = ""
    seen: str = ""

    @property
    def file(self) -> str:
        return self.test.partition(":")[0]

    def __str__(self) -> str:
        return f"| {self.test} | {self.outcome} | {self.seconds} | {self.seen} |\n"


class Report:
    """Remembers every test that was run, and writes the table at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        self.collected: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Collect the tests before any of them is left out."""
        self.collected = [name_of(item.nodeid) for item in items if item.get_closest_marker("long")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            lines = report.capstdout.strip().splitlines()
            why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            seen = (why or (lines[-1] if lines else "")).replace("|", " ")
            name = name_of(report.nodeid)
            self.rows[name] = Row(name, report.outcome, f"{report.duration:.0f}", seen)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        yield
        if self.rows:
            before = rows_of(self.path.read_text()) if self.path.exists() else []
            self.path.write_text(page(merged(before, self.collected, self.rows)))


def merged(before: Sequence[Row], collected: Sequence[str], ran: dict[str, Row]) -> list[Row]:
    """The new rows, and the old rows of tests that were not run and may still exist."""
    looked_at = {Row(name, "").file for name in collected}
    old = {row.test: row for row in before}
    names = [*collected, *(name for name in ran if name not in collected)]
    elsewhere = [
        row for row in before if row.file not in looked_at and any((root / row.file).exists() for root in ROOTS)
    ]
    rows = [ran.get(name) or old.get(name) or Row(name, NOT_RUN) for name in names]
    return sorted([*rows, *elsewhere], key=lambda row: row.file)


def rows_of(text: str) -> list[Row]:
    return [Row(**found.groupdict()) for found in _ROW.finditer(text)]


def page(rows: Sequence[Row]) -> str:
    outcomes = [row.outcome for row in rows]
    summary = ", ".join(f"{outcomes.count(one)} {one}" for one in dict.fromkeys(sorted(outcomes)))
    minutes = sum(int(row.seconds or 0) for row in rows) / 60
    head = _HEAD.format(version=version("outlive"), summary=f"{summary}, in {minutes:.0f} minutes.")
    return head + "".join(str(row) for row in rows)


def name_of(test: str) -> str:
    """The name of a test as a sentence, with its file."""
    path, _, name = test.partition("::")
    return f"{path.rpartition('tests/')[2]}: {name.removeprefix('test_').replace('_', ' ')}"
