"""What README says of versions of Postgres: the tests of the store, and jobs that real workers run, on each of them."""

import subprocess
import sys

import pytest

from tests.driving import releases
from tests.driving.workers import ROOT

TESTED = (
    "tests/store",
    "tests/guarantees/test_transactions.py",  # These kill clients, children and workers,
    "tests/guarantees/test_dependencies.py",  # and these kill workers.
    "tests/processes/test_locks.py",
)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("major", releases.SUPPORTED)
def test_the_store_and_workers_work_on_postgres(major):
    with releases.brought(major) as programs:
        words = ("-m", "not long", "-n", "2", f"--postgres={programs}")
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *TESTED], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout[-4000:]
        print(f"{releases.version_of(programs)}: {ran.stdout.splitlines()[-1]}")
