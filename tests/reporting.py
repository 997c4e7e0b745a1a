"""`--report FILE` writes a table of test results. Each test is a row, with the last line that it printed.

A run of some tests replaces their rows and keeps the others. A test that was never run has a row that says so.
"""

import re
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

_HEAD = """# Results of the long tests: {version}

`./run test --long` writes this page. It runs the tests that take longer than `./run test` allows, one after the other,
with the bounds that the guarantees name. The last column shows what a test has measured. `./run test --long -k NAME`
replaces the rows of the tests that it runs.

{summary}, in {minutes:.0f} minutes.

| test | | s | seen |
|---|---|---|---|
"""
_ROW = re.compile(r"^\| (\S+\.py: .*?) \| ([a-z ]+) \| (\d*) \| (.*) \|$", re.M)
_ROOTS = (Path("tests"), Path("lab", "tests"))


class Report:
    """Remembers every test that was run, and writes the table at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ran: dict[str, tuple[str, str, str]] = {}
        self.collected: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Collect the tests before any of them is left out."""
        self.collected = [_name_of(item.nodeid) for item in items if item.get_closest_marker("long")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            lines = report.capstdout.strip().splitlines()
            why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            seen = (why or (lines[-1] if lines else "")).replace("|", " ")
            self.ran[_name_of(report.nodeid)] = (report.outcome, f"{report.duration:.0f}", seen)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        yield
        if not self.ran:
            return
        found = _ROW.findall(self.path.read_text()) if self.path.exists() else []
        old = {name: (outcome, seconds, seen) for name, outcome, seconds, seen in found}
        looked_at = {_file_of(name) for name in self.collected}
        others = [name for name in old if _file_of(name) not in looked_at and _exists(_file_of(name))]
        rows = dict.fromkeys([*self.collected, *others], ("not run", "", "")) | self.ran
        rows = {name: self.ran.get(name) or old.get(name) or row for name, row in rows.items()}
        counts = Counter(outcome for outcome, _, _ in rows.values())
        summary = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        minutes = sum(int(seconds or 0) for _, seconds, _ in rows.values()) / 60
        table = "".join(f"| {name} | {' | '.join(rows[name])} |\n" for name in sorted(rows, key=_file_of))
        self.path.write_text(_HEAD.format(version=version("outlive"), summary=summary, minutes=minutes) + table)


def _name_of(test: str) -> str:
    """The name of a test as a sentence, with its file."""
    path, _, name = test.partition("::")
    return f"{path.rpartition('tests/')[2]}: {name.removeprefix('test_').replace('_', ' ')}"


def _file_of(name: str) -> str:
    return name.partition(":")[0]


def _exists(file: str) -> bool:
    return any((root / file).exists() for root in _ROOTS)
