"""What pyproject.toml says of other packages: the tests of the integrations, with the lowest versions of each."""

import os
import subprocess
import sys

import pytest

from tests.driving.workers import ROOT

TESTED = ("tests/integrations", "tests/django", "tests/telemetry", "tests/plugin", "tests/client/test_libraries.py")
OURS = ("httpx", "hypothesis", "psycopg2-binary", "pydantic", "pytest", "pytest-timeout", "pytest-xdist")
"""What the tests themselves need, at versions of today. The `TestClient` of an old Starlette needs httpx."""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_integrations_work_with_the_lowest_versions(tmp_path):
    uv, environ = (sys.executable, "-m", "uv"), {**os.environ, "UV_SYSTEM_CERTS": "true"}
    own = tmp_path / "venv" / "bin" / "python"
    lowest = ("-q", "--resolution", "lowest-direct", "--python", own, "-e", f"{ROOT}[all]")
    for words in (("venv", "-q", "--python", sys.executable, tmp_path / "venv"), ("pip", "install", *lowest)):
        subprocess.run([*uv, *words], check=True, env=environ)
    subprocess.run([*uv, "pip", "install", "-q", "--python", own, *OURS], check=True, env=environ)
    ran = subprocess.run(
        [own, "-m", "pytest", "-m", "not long", "-n", "2", *TESTED],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    print(ran.stdout.splitlines()[-1])
