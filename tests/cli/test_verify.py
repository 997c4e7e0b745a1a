"""`outlive verify`: each damage that it claims to find is made by hand and found, and a healthy queue has none."""

import json
import threading
import time
from typing import Any
from uuid import UUID

import pytest

from outlive.states import Outcome
from tests import faults
from tests.driving.commands import Cli
from tests.driving.making import Queue, links
from tests.waiting import eventually

DAMAGES = {
    "lost": "delete from outlive.waiting where id = %(pending)s",
    "in two places": """
        insert into outlive.held (
          id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes, losses)
        select id, 'blocked', now(), queue, source, task, priority, ready_at, 0, 0, 0, 0
        from outlive.waiting where id = %(pending)s""",
    "ended twice": """
        insert into outlive.attempts (
          job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses, queue, source, task)
        select job_id, attempt + 1, -1, outcome, state, ended_at, failures, crashes, losses, queue, source, task
        from outlive.attempts where job_id = %(done)s""",
    "begun again after a later attempt": "update outlive.waiting set attempt = 0 where id = %(retried)s",
    "charged without a cause": "update outlive.attempts set crashes = 1 where job_id = %(done)s",
    "over the limit of its key": """
        update outlive.attempts set started_at = ended_at - interval '1 hour' where job_id = any(%(keyed)s)""",
    "done, but not called back": "update outlive.callbacks set called_at = null",
}


@pytest.fixture
def jobs(queue: Queue, apps: None) -> dict[str, Any]:
    """Jobs in several states, and a batch that is done."""
    del apps
    pending, done, retried = queue.make(), queue.make_finished(Outcome.SUCCEEDED), queue.make()
    queue.run_job(retried, Outcome.FAILED, after_s=60.0)
    keyed = [queue.make(links=links("shop", 1)) for _ in range(2)]
    for job in keyed:
        queue.run_job(job, Outcome.SUCCEEDED)
    with faults.app.batch("empty", on_done=faults.add.job(1, 1)):
        pass
    return {"pending": pending, "done": done, "retried": retried, "keyed": keyed}


def wrong(cli: Cli, *, code: int) -> list[tuple[str, UUID]]:
    ran = cli("verify", "--json")
    assert ran.code == code, ran.out
    return [(one["what"], UUID(one["id"])) for one in json.loads(ran.out)["wrong"]]


def test_nothing_is_wrong_with_jobs_in_any_state(cli, queue, jobs):
    assert wrong(cli, code=0) == []
    ran = cli("verify")
    assert ran.code == 0
    assert ran.out.split("\n")[0].split() == ["none", "was", "looked", "at", "since", time.strftime("%Z"), "found"]
    assert [line.split()[-1] for line in ran.out.strip().split("\n")[1:]] == 7 * ["0"]


@pytest.mark.parametrize("what", DAMAGES)
def test_each_damage_is_found_with_its_job(cli, queue, jobs, what):
    queue.execute(DAMAGES[what], jobs)
    found = wrong(cli, code=1)
    assert [one for one, _ in found] == [what]
    if what != "done, but not called back":
        assert found[0][1] in {jobs["pending"], jobs["done"], jobs["retried"], *jobs["keyed"]}
    ran = cli("verify")
    assert ran.code == 1
    assert f"{found[0][1]} is {what}: look at it with `outlive " in ran.out


def test_no_alarm_is_false_beside_workers_that_are_busy_and_killed(cli, queue, start):
    ended = threading.Event()

    def enqueue() -> None:
        n = 0
        while not ended.is_set():
            n += 1
            faults.work_a_little.using(concurrency_key=f"key {n % 3}", concurrency=2).enqueue(n)
            faults.work_a_little.enqueue(n)
            if n % 50 == 0:
                faults.exit_with.enqueue(9)

    client = threading.Thread(target=enqueue)
    client.start()
    try:
        for _ in range(3):
            worker, done = start(), queue.value("select count(*) from outlive.attempts")
            eventually(lambda: queue.value("select count(*) from outlive.attempts") > done + 50, within_s=30)  # noqa: B023
            assert [wrong(cli, code=0) for _ in range(4)] == 4 * [[]]
            worker.kill()
    finally:
        ended.set()
        client.join()
