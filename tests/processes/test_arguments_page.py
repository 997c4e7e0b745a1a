"""Runs the example of docs/how-to/arguments.md, and compares what it prints with the page."""

import os
import subprocess
import sys
from pathlib import Path

from outlive import db
from tests.driving import pages
from tests.driving.workers import Start
from tests.waiting import eventually


def test_the_example_of_the_page_prints_what_the_page_says(
    start: Start, connection: db.Connection, database_url: str, tmp_path: Path
) -> None:
    (kind, program), *blocks = pages.blocks_of("how-to/arguments.md")
    assert kind == "python"
    (tmp_path / "orders.py").write_text(program)
    start(target="orders:app", folder=tmp_path)
    commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "OUTLIVE_DATABASE_URL": database_url, "PATH": commands}
    assert [kind for kind, _ in blocks] == ["sh", "text", "sh", "text", "sql", "text"]
    for (kind, text), (_, expected) in zip(blocks[::2], blocks[1::2], strict=True):
        if kind == "sh":
            ran = subprocess.run(
                ["bash", "-c", text], cwd=tmp_path, env=environ, text=True, check=False, capture_output=True
            )
            assert ran.stdout + ran.stderr == expected
        else:
            job = connection.execute(text.encode()).fetchone()
            query = "select error from outlive.attempts where job_id = %s and state = 'failed'"
            found = eventually(lambda: connection.execute(query, job).fetchall(), within_s=20)  # noqa: B023
            assert found == [(expected.strip(),)]
