"""The report of the long tests names every long test, and a run of some of them keeps the others' rows."""

import subprocess
import sys

from tests.processes.conftest import ROOT
from tests.reporting import NOT_RUN, Row, merged, name_of, page, rows_of

REPORT = ROOT / "docs" / "reports" / "long-tests-0.1.md"


def test_the_report_names_every_long_test_and_no_other() -> None:
    words = ["-m", "long", "--collect-only", "-n", "0", "-p", "no:cacheprovider", "tests"]
    ran = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    collected = {name_of(line) for line in ran.stdout.splitlines() if "::" in line}
    told = {row.test for row in rows_of(REPORT.read_text())}
    assert len(collected) > 10
    assert told == collected, "run `./run test --long -k NAME` for those that are missing: it adds their rows"


def test_a_run_of_some_tests_replaces_their_rows_and_keeps_the_others() -> None:
    before = [
        Row("spec/test_k.py: K3 keeps[exact]", "failed", "3", "80 % kept"),
        Row("spec/test_k.py: is gone", "passed", "4"),
        Row("spec/test_w.py: W4", "passed", "5", "no | line"),
    ]
    ran = {before[0].test: Row(before[0].test, "passed", "6", "95 % kept")}
    rows = merged(before, [before[0].test, "spec/test_k.py: is new"], ran)
    assert rows == [ran[before[0].test], Row("spec/test_k.py: is new", NOT_RUN), before[2]]
    assert rows_of(page(rows)) == rows
