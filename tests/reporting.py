"""A table of what tests have shown: `--report FILE`. Each is a row, with the last line that it printed."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

_HEAD = """# What the long tests have shown: {version}

`./run test --long` writes this: the tests that need longer than `./run test` allows, one after the other, with the
bounds that the specification names. The last column is what a test has measured itself.

{summary}

| test | | s | seen |
|---|---|---|---|
"""


class Report:
    """Remembers every test that was run, and writes the table at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[tuple[str, str, float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            lines = report.capstdout.strip().splitlines()
            why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            seen = why or (lines[-1] if lines else "")
            self.rows.append((report.nodeid, report.outcome, report.duration, seen))

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        yield
        if not self.rows:
            return
        outcomes = [outcome for _, outcome, _, _ in self.rows]
        summary = ", ".join(f"{outcomes.count(one)} {one}" for one in dict.fromkeys(sorted(outcomes)))
        minutes = sum(seconds for _, _, seconds, _ in self.rows) / 60
        rows = [
            f"| {_name(test)} | {outcome} | {seconds:.0f} | {seen.replace('|', ' ')} |\n"
            for test, outcome, seconds, seen in self.rows
        ]
        head = _HEAD.format(version=version("outlive"), summary=f"{summary}, in {minutes:.0f} minutes.")
        self.path.write_text(head + "".join(rows))


def _name(test: str) -> str:
    """As a sentence, in its file."""
    path, _, name = test.partition("::")
    return f"{Path(path).relative_to('tests')}: {name.removeprefix('test_').replace('_', ' ')}"
