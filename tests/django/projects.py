"""The example project, run with its manage.py: with this interpreter, or with one of another Django."""

import os
import subprocess
import sys
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.driving.workers import ROOT

PROJECT = ROOT / "examples" / "shop_django"
_VARIABLES = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}


def environment(url: str) -> dict[str, str]:
    """The variables by which the project finds its database."""
    return {_VARIABLES[name]: str(value) for name, value in conninfo_to_dict(url).items() if name in _VARIABLES}


def run_tests(url: str, *labels: str, python: Path = Path(sys.executable), path: Path = ROOT) -> str:
    """Run tests under Django's test runner; returns what it says. It makes a database of its own, and removes it."""
    ours = {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}", "DJANGO_SETTINGS_MODULE": "tests.django.settings"}
    words: list[str | Path] = [python, PROJECT / "manage.py", "test", *labels, "--noinput"]
    environ = {**os.environ, **environment(url), **ours, "OUTLIVE_DATABASE_URL": url}  # No test uses this one.
    ran = subprocess.run(words, cwd=PROJECT, env=environ, text=True, capture_output=True, check=False)
    return ran.stdout + ran.stderr
