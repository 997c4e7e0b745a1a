"""The software and the machine that a report names."""

import os
import platform
from pathlib import Path

import psycopg

import outlive


def describe(postgres: str) -> dict[str, object]:
    versions = {
        "outlive": outlive.__version__,
        "postgres": postgres,
        "python": platform.python_version(),
        "psycopg": psycopg.__version__,
    }
    return {"cpu_count": os.cpu_count(), "versions": versions}


def stolen_s() -> float:
    """For how long this machine's host has given its processors to other machines since the start, for each of them."""
    steal = Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]
    return int(steal) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
