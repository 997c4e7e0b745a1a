"""Runs the example of docs/how-to/schedules.md: its app, its commands and its SQL."""

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

BLOCKS = dict(pages.blocks_of("how-to/schedules.md"))


def test_the_example_on_the_page_of_schedules_works(
    start: Start, connection: db.Connection, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(BLOCKS["python"])
    start(target="shop:app", folder=tmp_path, slots=1)
    names = "select name from outlive.schedules order by 1"
    assert values(connection, names) == ["evening report", "shop.poll", "shop.report", "shop.sync"]
    unknown = "select count(*) from outlive.schedules where next_at is null"
    eventually(lambda: value(connection, unknown) == 0, what="their next firings are known")
    environ = {
        "OUTLIVE_DATABASE_URL": database_url,
        "COLUMNS": "200",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    ran = subprocess.run(
        ["bash", "-e"],
        input=BLOCKS["bash"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    listed, printed = ran.stdout.split("schedule shop.sync is paused")[0].rsplit("\n", 2)[:2]
    assert "0 9 * * MON-FRI Europe/Berlin" in listed
    result = "select result from outlive.attempts where job_id = %s and state = 'succeeded'"
    assert eventually(lambda: values(connection, result, printed), what="the job that was run now") == ["short"]
    assert values(connection, names) == ["evening report", "shop.poll", "shop.report", "shop.sync"]
    for statement in re.sub(r"--.*", "", BLOCKS["sql"]).strip().rstrip(";").split(";"):
        connection.execute(statement.encode())
    sync = "select cron = '*/10 * * * *' and paused_at is not null from outlive.schedules where name = 'shop.sync'"
    assert value(connection, sync) is True
    assert "hourly" in values(connection, names)
