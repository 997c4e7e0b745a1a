"""Runs the example of docs/how-to/results.md: its app, and the client that waits for its jobs."""

import os
import subprocess
import sys
from pathlib import Path

from outlive import db
from tests.driving import pages
from tests.driving.making import values
from tests.driving.workers import Start

(_, APP), (_, CLIENT), (_, PRINTED), (_, SHORTER) = pages.blocks_of("how-to/results.md")


def test_the_example_on_the_page_of_results_works(
    start: Start, connection: db.Connection, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP.replace('@app.task(keep_finished="1h")\n', SHORTER))
    (tmp_path / "client.py").write_text(CLIENT)
    start(target="shop:app", folder=tmp_path, slots=2)
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "client.py"],
        cwd=tmp_path,
        env={**os.environ, "OUTLIVE_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.stdout == PRINTED, ran.stderr
    assert "Traceback" not in ran.stderr
    kept = "select distinct extract(epoch from expires_at - ended_at)::int from outlive.attempts where state = %s"
    assert (values(connection, kept, "succeeded"), values(connection, kept, "failed")) == ([600], [None])
