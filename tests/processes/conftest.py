"""Fixtures of the tests of one worker: an app that changes, other sessions, cgroups, and the log as text."""

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from outlive import logs
from tests.processes.changing import source
from tests.processes.groups import Group, new_group


@pytest.fixture
def admin(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of an administrator."""
    with psycopg.connect(database_url, autocommit=True, application_name="admin") as connection:
        yield connection


@pytest.fixture
def changing(apps: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module whose app changes while its worker runs."""
    name = f"changing_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(source(version=1))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return importlib.import_module(name)


@pytest.fixture
def group() -> Iterator[Group]:
    """A memory cgroup of the test's own."""
    made = new_group()
    yield made
    made.remove()


@pytest.fixture
def log_as_text() -> Iterator[None]:
    """The log of this process is as a worker writes it."""
    logger = logging.getLogger("outlive")
    level, handlers = logger.level, list(logger.handlers)
    logs.configure("text", level="INFO")
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
