"""Tasks keep the types of their functions: type checkers accept correct calls, and refuse wrong ones at their lines."""

import json
import os
import re
import shutil
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


def test_correct_calls_pass_the_type_checker(refused):
    assert [error for error in refused if error[0] != "wrong.py"] == []


def test_wrong_calls_are_refused_line_by_line(refused):
    expected = wrong_lines()
    assert len(expected) > 20
    assert {line: code for file, line, code in reversed(refused) if file == "wrong.py"} == expected


def wrong_lines() -> dict[int, str]:
    """The lines of the wrong examples, with mypy's code of each error."""
    lines = (EXAMPLES / "wrong.py").read_text().splitlines()
    return {n: line.split("# error: ")[1] for n, line in enumerate(lines, start=1) if "# error: " in line}


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("npm"), reason="pyright comes by npm, which is not installed")
def test_pyright_refuses_the_same_lines_as_mypy_and_no_others(tmp_path):
    settings: dict[str, object] = {
        "include": [os.path.relpath(EXAMPLES, tmp_path)],
        "extraPaths": [str(ROOT / "src"), str(ROOT)],
    }
    settings |= {"typeCheckingMode": "strict", "reportUnusedExpression": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--project", tmp_path, "--pythonpath", sys.executable, "--outputjson"],
        env={**os.environ, "PYRIGHT_PYTHON_CACHE_DIR": str(tmp_path / "cache"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright can't be had: {(done.stdout + done.stderr)[-300:]}")
    errors = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    found = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors}
    assert found == {("wrong.py", line) for line in wrong_lines()}
