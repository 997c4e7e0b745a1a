"""The command ./run, as it is on a machine where nothing is set up yet."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def set_up(tmp_path: Path, script: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run `./run setup` where uv is this script."""
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f"#!/bin/sh\n{script}\n")
    uv.chmod(0o755)
    trust = ("UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "PIP_CERT")
    env = {key: value for key, value in os.environ.items() if key not in trust}
    env |= {"PATH": f"{uv.parent}:{env['PATH']}", "OUTLIVE_VENV": str(tmp_path / "venv"), **environ}
    return subprocess.run([sys.executable, ROOT / "run", "setup"], env=env, capture_output=True, text=True)


def environment_of_uv(tmp_path: Path, **environ: str) -> dict[str, str]:
    """The environment that ./run gives to uv, which only writes it down here."""
    script = 'mkdir -p "$UV_PROJECT_ENVIRONMENT" && env > "$UV_PROJECT_ENVIRONMENT/env"'
    assert set_up(tmp_path, script, **environ).returncode == 0
    lines = (tmp_path / "venv" / "env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_setting_up_trusts_the_certificates_that_the_machine_trusts(tmp_path):
    given = environment_of_uv(tmp_path)
    assert (given["UV_NATIVE_TLS"], given["UV_SYSTEM_CERTS"]) == ("true", "true")


def test_setting_up_leaves_the_choice_of_certificates_to_the_user(tmp_path):
    given = environment_of_uv(tmp_path, UV_NATIVE_TLS="false", UV_SYSTEM_CERTS="false", PIP_CERT="own.crt")
    assert (given["UV_NATIVE_TLS"], given["UV_SYSTEM_CERTS"], given["PIP_CERT"]) == ("false", "false", "own.crt")


def test_setting_up_shows_progress_in_a_pipe_and_no_list_of_packages(tmp_path):
    lines = r"printf 'Downloading numpy (15.2MiB)\nInstalled 2 packages\n + numpy==2.1\n + rich==15.0\n' >&2"
    said = set_up(tmp_path, f'mkdir -p "$UV_PROJECT_ENVIRONMENT"; {lines}').stderr.splitlines()
    assert said[-2:] == ["./run: Downloading numpy (15.2MiB)", "./run: Installed 2 packages"]


def test_setting_up_that_fails_says_what_failed(tmp_path):
    ran = set_up(tmp_path, "echo 'error: no such package' >&2; exit 7")
    first, last = ran.stderr.splitlines()[-2:]
    assert (ran.returncode, first) == (1, "./run: error: no such package")
    assert "failed with exit code 7" in last
