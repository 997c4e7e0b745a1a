"""Runs the example of docs/how-to/batches.md: its app, its commands and its SQL."""

import os
import re
import subprocess
import sys
from pathlib import Path

from outlive import db
from tests.driving import pages
from tests.driving.making import value, values
from tests.driving.workers import Start
from tests.waiting import eventually

BLOCKS = dict(pages.blocks_of("how-to/batches.md"))
RESULTS = "select result #>> '{}' from outlive.attempts where result is not null order by 1"


def test_the_example_on_the_page_of_batches_works(
    start: Start, connection: db.Connection, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(BLOCKS["python"])
    start(target="shop:app", folder=tmp_path, slots=2)
    ran = subprocess.run(
        ["bash", "-e"],
        input=BLOCKS["bash"],
        cwd=tmp_path,
        env={
            **os.environ,
            "OUTLIVE_DATABASE_URL": database_url,
            "COLUMNS": "200",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    _, walked = (tmp_path / "printed").read_text().splitlines()
    assert walked == "15 15 1.0"
    for words in ("import", "1,000", "on_failure", "1 job retried"):
        assert words in ran.stdout
    for statement in re.sub(r"--.*", "", BLOCKS["sql"]).strip().rstrip(";").split(";"):
        connection.execute(statement.encode())
    done = "select count(*) from outlive.batch_states where done_at is not null"
    eventually(lambda: value(connection, done) == 3, within_s=20, what="all are done")
    eventually(
        lambda: values(connection, RESULTS) == ["edition 7 has gaps", "edition 8 is out", "edition 9 is out"],
        within_s=20,
        what="the callbacks run",
    )
