"""Runs the example of docs/how-to/limits.md: its app, its SQL and its command."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlive import config, db
from tests.driving import pages
from tests.driving.making import value, values
from tests.driving.workers import Start
from tests.waiting import eventually

BLOCKS = dict(pages.blocks_of("how-to/limits.md"))


def test_the_example_on_the_page_of_limits_works(
    start: Start, connection: db.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(BLOCKS["python"])
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("shop")
    shop.app.configure(config.load(flags={"database_url": database_url}))
    shop.export_year(7)
    connection.execute(BLOCKS["sql"].encode())
    environ = {
        "OUTLIVE_DATABASE_URL": database_url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
    }
    subprocess.run(
        ["bash", "-e"], input=BLOCKS["bash"], env={**os.environ, **environ}, text=True, timeout=60, check=True
    )
    shop.app.connections.close()
    del sys.modules["shop"]
    assert values(connection, "select distinct concurrency_key || concurrency from outlive.jobs") == ["customer-72"]
    assert value(connection, "select count(*) from outlive.keyed_jobs") == 14
    start(target="shop:app", folder=tmp_path, slots=4)
    done = "select count(*) from outlive.attempts where state = 'succeeded'"
    eventually(lambda: value(connection, done) == 14, within_s=30, what="all jobs are done")
    together = """select max(n) from (
      select count(*) as n from outlive.attempts a join outlive.attempts b
        on b.started_at <= a.started_at and b.ended_at > a.started_at
      group by a.token) t"""
    assert value(connection, together) <= 2
