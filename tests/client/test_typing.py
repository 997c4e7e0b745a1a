"""Tasks keep the types of their functions: mypy accepts correct calls, and refuses wrong ones at their lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "tests" / "typing"
Refused = list[tuple[str, int, str]]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Refused:
    """The errors of mypy in the examples: file, line and code of each."""
    settings = tmp_path_factory.mktemp("mypy") / "mypy.ini"
    settings.write_text("[mypy]\nstrict = true\nmypy_path = src\nexplicit_package_bases = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", settings.parent / "cache", EXAMPLES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^tests/typing/(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, flags=re.MULTILINE)
    assert len(found) == done.stdout.count(" error: "), done.stdout
    return [(file, int(line), code) for file, line, code in found]


def test_correct_calls_pass_the_type_checker(refused: Refused) -> None:
    assert [error for error in refused if error[0] != "wrong.py"] == []


def test_wrong_calls_are_refused_line_by_line(refused: Refused) -> None:
    lines = (EXAMPLES / "wrong.py").read_text().splitlines()
    expected = {n: line.split("# error: ")[1] for n, line in enumerate(lines, start=1) if "# error: " in line}
    assert len(expected) > 20
    assert {line: code for file, line, code in reversed(refused) if file == "wrong.py"} == expected
