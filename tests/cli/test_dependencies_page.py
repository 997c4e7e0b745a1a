"""Runs the example of docs/how-to/dependencies.md: its app, its commands and its SQL."""

import os
import subprocess
import sys
from pathlib import Path

from outlive import db
from tests.driving import pages
from tests.driving.making import value, values
from tests.driving.workers import Start
from tests.waiting import eventually

BLOCKS = dict(pages.blocks_of("how-to/dependencies.md"))
RESULTS = "select result from outlive.attempts a join outlive.jobs j on j.id = a.job_id where j.task = %s"


def test_the_example_on_the_page_of_dependencies_works(
    start: Start, connection: db.Connection, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(BLOCKS["python"])
    enqueueing, listing, working = BLOCKS["bash"].splitlines()
    assert working == "outlive worker shop:app --slots 4"
    environ = {
        "OUTLIVE_DATABASE_URL": database_url,
        "COLUMNS": "200",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    ran = subprocess.run(
        ["bash", "-e"],
        input=f"{enqueueing}\n{listing}",
        cwd=tmp_path,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    announced, *listed = ran.stdout.splitlines()
    assert sum("blocked" in line for line in listed) == 5
    asked = BLOCKS["sql"].replace(":id", f"'{announced}'")
    late = value(connection, asked.strip().rstrip(";"))
    start(target="shop:app", folder=tmp_path, slots=4)
    left = "select count(*) from outlive.jobs j where outlive.state_of(j.id) <> 'succeeded'"
    eventually(lambda: value(connection, left) == 0, within_s=30, what="all jobs have succeeded")
    result = "select result from outlive.attempts where job_id = %s"
    assert value(connection, result, announced) == "all: 18 cents"
    assert value(connection, result, late) == "all: all: 18 cents cents"
    assert sorted(values(connection, RESULTS, "shop.announce"))[2] == "me: 18 cents"
    assert sorted(values(connection, RESULTS, "shop.cheapest")) == [18, 18, 19]
