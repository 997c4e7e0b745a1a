"""The wheel, built and installed in an environment of its own, as a user would have it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def call(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**{k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}, **environ}
    return subprocess.run([str(word) for word in words], cwd="/", env=env, text=True, capture_output=True, check=False)


def test_the_wheel_installs_in_a_clean_environment_and_its_command_works(tmp_path: Path, database_url: str) -> None:
    uv = (sys.executable, "-m", "uv")
    built = call(*uv, "build", "--wheel", "--quiet", "--out-dir", tmp_path / "dist", ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    python = tmp_path / "venv" / "bin" / "python"
    assert call(*uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv").returncode == 0
    installed = call(*uv, "pip", "install", "--quiet", "--python", python, wheel)
    assert installed.returncode == 0, installed.stderr

    outlive = tmp_path / "venv" / "bin" / "outlive"
    assert "create table outlive.jobs" in call(outlive, "migrate", "--sql").stdout
    checked = call(outlive, "migrate", "--check", OUTLIVE_DATABASE_URL=database_url)
    assert checked.returncode == 0, checked.stderr
    listed = call(outlive, "jobs", "--json", OUTLIVE_DATABASE_URL=database_url)
    assert (listed.returncode, listed.stdout.strip()) == (0, "[]"), listed.stderr

    # The demo is in the wheel, with the example that it runs; what that needs is an extra.
    assert list((tmp_path / "venv").glob("lib/*/site-packages/outlive/examples/coins/tasks.py"))
    played = call(outlive, "demo")
    assert (played.returncode, "outlive[demo]" in played.stderr) == (2, True), played.stderr
