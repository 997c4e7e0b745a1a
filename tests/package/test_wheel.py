"""The wheel, built and installed in an environment of its own, as a user would have it."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


NEEDED = {"msgspec", "psycopg", "rich", "typer", "cronsim"}
"""What outlive itself asks for (ADR 8 says why cronsim is among them). These bring others."""
IMPORT_S = 0.06
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
UV = (sys.executable, "-m", "uv")


def call(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**{k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}, **environ}
    return subprocess.run([str(word) for word in words], cwd="/", env=env, text=True, capture_output=True, check=False)


def install(folder: Path, python: object, extras: str = "", source: Path = ROOT) -> Path:
    """Build the wheel and install it for this Python in an environment of its own. Returns that one's Python."""
    built = call(*UV, "build", "--wheel", "--quiet", "--out-dir", folder / "dist", source)
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    own = folder / "venv" / "bin" / "python"
    assert call(*UV, "venv", "--quiet", "--python", python, folder / "venv").returncode == 0
    installed = call(*UV, "pip", "install", "--quiet", "--python", own, f"{wheel}{extras}")
    assert installed.returncode == 0, installed.stderr
    return own


def test_the_wheel_installs_in_a_clean_environment_and_its_command_works(tmp_path, database_url):
    install(tmp_path, sys.executable)
    outlive = tmp_path / "venv" / "bin" / "outlive"
    assert "create table if not exists outlive.jobs" in call(outlive, "migrate", "--sql").stdout
    checked = call(outlive, "migrate", "--check", OUTLIVE_DATABASE_URL=database_url)
    assert checked.returncode == 0, checked.stderr
    listed = call(outlive, "jobs", "--json", OUTLIVE_DATABASE_URL=database_url)
    assert (listed.returncode, listed.stdout.strip()) == (0, "[]"), listed.stderr

    # The demo is in the wheel, with the example that it runs; what that needs is an extra.
    assert list((tmp_path / "venv").glob("lib/*/site-packages/outlive/examples/coins/tasks.py"))
    played = call(outlive, "demo")
    assert (played.returncode, "outlive[demo]" in played.stderr) == (2, True), played.stderr
    asked = call(tmp_path / "venv" / "bin" / "python", "-c", ASKED).stdout
    assert set(json.loads(asked)) == NEEDED


@pytest.mark.long
def test_what_is_published_has_nothing_of_the_laboratory_and_installs_from_source(tmp_path):
    assert call(*UV, "build", "--quiet", "--out-dir", tmp_path / "dist", ROOT).returncode == 0
    (wheel,), (source,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed, tarfile.open(source) as sources:
        names = [*packed.namelist(), *sources.getnames()]
    assert [name for name in names if "lab" in Path(name).parts or "outlive_lab" in name] == []
    tried = call(*UV, "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "installed", source)
    assert tried.returncode == 0, tried.stderr


ASKED = """
import importlib.metadata, json, re
lines = [one for one in importlib.metadata.requires("outlive") if "extra ==" not in one]
print(json.dumps([re.match(r"[a-z]+", one)[0] for one in lines]))
"""
TIMED = "import time; began = time.process_time(); import outlive; print(time.process_time() - began)"
LOADED = "import sys, outlive; print(sorted({one.split('.')[0] for one in sys.modules} & {%s}))"
OPTIONAL = "'opentelemetry', 'sentry_sdk', 'sqlalchemy', 'asyncpg', 'django', 'fastapi', 'starlette', 'jinja2'"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_with_all_extras_works_on_every_python(version, tmp_path, database_url):
    python = found(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed here")
    own = install(tmp_path, python, "[all]")
    assert call(own, "-c", LOADED % OPTIONAL).stdout.strip() == "[]"
    assert call(own, "-c", "import greenlet").returncode == 0  # SQLAlchemy's async sessions need it.
    took_s = min(float(call(own, "-c", TIMED).stdout) for _ in range(5))
    assert took_s <= IMPORT_S
    (tmp_path / "shop.py").write_text(SHOP)
    worker = subprocess.Popen(
        [own.parent / "outlive", "worker", "shop:app", "--slots", "1"],
        cwd=tmp_path,
        env={
            **os.environ,
            "OUTLIVE_DATABASE_URL": database_url,
            "OUTLIVE_OTEL": "true",
            "OTEL_TRACES_EXPORTER": "none",
        },
        stderr=subprocess.DEVNULL,
    )
    try:
        ran = subprocess.run(
            [own, "-c", "import shop; print(shop.add.enqueue(1, 2).result(60))"],
            cwd=tmp_path,
            env={**os.environ, "OUTLIVE_DATABASE_URL": database_url},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        worker.terminate()
        worker.wait(30)
    assert (ran.stdout, worker.returncode) == ("3\n", 0), ran.stderr


SHOP = """
import outlive
app = outlive.App()
@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


def found(version: str) -> str | None:
    """A Python of this version on this machine."""
    of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    tries = [str(path) for path in (*of_pyenv, shutil.which(f"python{version}")) if path]
    return next((one for one in tries if call(one, "--version").stdout.startswith(f"Python {version}.")), None)
