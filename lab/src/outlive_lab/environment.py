"""The software and the machine that a report names."""

import os
import platform

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
