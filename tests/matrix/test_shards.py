"""Jobs over two databases, as in examples/shards: one of them dies, and the other has nothing of it."""

import importlib
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from outlive import config
from outlive.errors import DatabaseUnreachable, JobFailed
from tests.driving.workers import ROOT
from tests.matrix.servers import Server
from tests.waiting import eventually

ENDED = "select count(*), count(distinct job_id) from outlive.attempts where outcome = 'succeeded'"


@pytest.fixture
def servers(new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    made = [new_server(), new_server()]
    for server in made:
        server.start()
    monkeypatch.setenv("SHARDS", " ".join(f"postgresql:///postgres?host={one.folder}&user=postgres" for one in made))
    return made


@pytest.fixture
def tasks(servers: list[Server], apps: None) -> Any:
    sys.modules.pop("shards.tasks", None)
    tasks = importlib.import_module("shards.tasks")
    for app in tasks.shards.apps:  # `apps` gives all others the same database.
        app.configure(config.load(app=app.settings))
    return tasks


@pytest.mark.long
def test_a_shard_that_dies_stops_only_its_own_tenants_and_loses_nothing(servers, tasks, start):
    for name in ("first", "second"):
        start(url="", target=f"shards.tasks:{name}", folder=ROOT / "examples", slots=2, name=name)
    tenants: dict[int, list[str]] = {0: [], 1: []}
    for n in range(40):
        tenants[tasks.shards.number(f"tenant-{n}")].append(f"tenant-{n}")
    assert min(len(some) for some in tenants.values()) > 5
    mine, other = tenants[0][0], tenants[1][0]
    assert tasks.charge(mine).enqueue(mine, 1).result(30) == f"{mine} paid 1"
    assert tasks.charge(other).enqueue(other, 1).result(30) == f"{other} paid 1"

    given = UUID(tasks.give(mine).enqueue(mine, other).result(30))
    assert servers[1].ask("select from outlive.jobs where id = %s", given), "a job enqueues on another shard"

    with pytest.raises(JobFailed, match="charge is of an app with another database than this job's"):
        tasks.share(mine).using(max_attempts=1).enqueue(mine, other).result(30)
    tasks.share(mine).enqueue(mine, mine).result(30)

    before = [tasks.charge(other).enqueue(other, n) for n in range(100)]
    servers[1].stop()
    with pytest.raises(DatabaseUnreachable):
        tasks.charge(other).enqueue(other, 3)
    assert [tasks.charge(mine).enqueue(mine, n).result(30) for n in range(5)][-1] == f"{mine} paid 4"
    servers[1].start()
    eventually(lambda: servers[1].ask(ENDED) == [(102, 102)], within_s=60, what="every job of the shard ends once")
    assert {job.result(30) for job in before} == {f"{other} paid {n}" for n in range(100)}
    tasks.first.connections.close()
    tasks.second.connections.close()
