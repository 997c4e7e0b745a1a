"""The command ./run, as it is on a machine where nothing is set up yet."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment_of_uv(tmp_path: Path, **environ: str) -> dict[str, str]:
    """The environment that ./run gives to uv. Here uv is a program that only writes it down."""
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text('#!/bin/sh\nmkdir -p "$UV_PROJECT_ENVIRONMENT" && env > "$UV_PROJECT_ENVIRONMENT/env"\n')
    uv.chmod(0o755)
    trust = ("UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "PIP_CERT")
    env = {key: value for key, value in os.environ.items() if key not in trust}
    env |= {"PATH": f"{uv.parent}:{env['PATH']}", "OUTLIVE_VENV": str(tmp_path / "venv"), **environ}
    subprocess.run([sys.executable, ROOT / "run", "setup"], env=env, check=True, capture_output=True)
    lines = (tmp_path / "venv" / "env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_setting_up_trusts_the_certificates_that_the_machine_trusts(tmp_path):
    given = environment_of_uv(tmp_path)
    assert (given["UV_NATIVE_TLS"], given["UV_SYSTEM_CERTS"]) == ("true", "true")


def test_setting_up_leaves_the_choice_of_certificates_to_the_user(tmp_path):
    given = environment_of_uv(tmp_path, UV_NATIVE_TLS="false", UV_SYSTEM_CERTS="false", PIP_CERT="own.crt")
    assert (given["UV_NATIVE_TLS"], given["UV_SYSTEM_CERTS"], given["PIP_CERT"]) == ("false", "false", "own.crt")
