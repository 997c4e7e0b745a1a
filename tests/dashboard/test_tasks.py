"""The page of tasks: what each has, how its jobs end, who serves it, and what operators do to all its jobs."""

import re

import pytest

from outlive import store
from outlive.states import Outcome, State
from tests.dashboard.asking import Dashboard, words
from tests.driving.making import WORKER


def row_of(dashboard: Dashboard, task: str) -> dict[str, str]:
    """The row of a task, by the labels of its cells."""
    text = dashboard.get("/tasks").text
    row = text.split(f'<tr id="t-{task}">')[1].split("</tr>")[0]
    cells = re.findall(r'<td data-label="([^"]*)"[^>]*>(.*?)</td>', row, re.DOTALL)
    return {label: " ".join(re.sub("<[^>]+>", " ", cell).split()) for label, cell in cells}


def test_a_task_has_its_counts_rates_times_memory_and_workers(dashboard, queue):
    queue.register_worker(name="web-7")
    queue.run(store.tell_tasks(WORKER, ["work"]))
    queue.make()
    queue.run(store.block([queue.make()], "until Monday"))
    queue.make_suspended()
    queue.claim_job(queue.make(queue="slow"))
    for _ in range(3):
        queue.run_job(queue.make(), Outcome.SUCCEEDED, peak_memory_bytes=50_000_000)
    queue.make_finished(Outcome.FAILED)
    queue.make_quarantined()
    queue.execute("update outlive.attempts set started_at = ended_at - interval '2 seconds' where state = 'succeeded'")
    assert row_of(dashboard, "work") == {
        "Task": "work",
        "Waiting": "1",
        "Held": "2",
        "Running": "1",
        "Failed": "1",
        "Quarantined": "1",
        "Succeeded": "3",
        "Ended/min": "&lt;0.1",
        "Failing": "40 %",
        "p50, p95": "2 s, 2 s",
        "Memory": "512 MB",
        "Workers": "1",
    }


def test_a_task_whose_jobs_kill_their_processes_is_failing_with_the_memory_that_killed_them(dashboard, queue):
    queue.run_job(queue.make("render"), Outcome.SUCCEEDED, peak_memory_bytes=20_000_000)
    queue.run_job(
        queue.make("render", options={"max_crashes": 1}), Outcome.CRASHED, after_s=0.0, peak_memory_bytes=226_000_000
    )
    row = row_of(dashboard, "render")
    assert (row["Quarantined"], row["Failing"], row["Memory"]) == ("1", "50 %", "226 MB")


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.CRASHED])
def test_of_many_ends_the_newest_give_the_rate(queue, outcome):
    for _ in range(30):
        queue.run_job(queue.make(options={"max_crashes": 1}), outcome, after_s=0.0)
    queue.execute(
        "update outlive.attempts a set ended_at = outlive.now() - n * interval '1 second'"
        " from (select token, row_number() over (order by token) as n from outlive.attempts) t where t.token = a.token"
    )
    rate = "select succeeded_per_min + failed_per_min from outlive.ends_by_task(%s)"
    assert 55 < queue.value(rate, 10) < 61
    assert round(queue.value(rate, 1000), 6) == 0.5


def test_of_many_ends_as_many_are_failing_as_of_all(queue):
    for n in range(30):
        queue.make_finished(Outcome.SUCCEEDED if n % 5 else Outcome.FAILED)
    queue.execute(
        "update outlive.attempts a set ended_at = outlive.now() - n * interval '1 second'"
        " from (select token, row_number() over (order by token) as n from outlive.attempts) t where t.token = a.token"
    )
    failing = "select failed_per_min / (succeeded_per_min + failed_per_min) from outlive.ends_by_task(%s)"
    assert queue.value(failing, 1000) == 0.2
    assert 0.15 < queue.value(failing, 20) < 0.3


def test_a_task_without_jobs_and_one_without_a_worker_are_there(dashboard, queue):
    queue.register_task(name="idle")
    queue.make("orphan")
    assert row_of(dashboard, "idle")["Waiting"] == "0"
    assert row_of(dashboard, "orphan")["Workers"] == "no worker"


def test_each_count_of_a_task_leads_to_as_many_jobs(dashboard, queue):
    queue.run_job(queue.make(), Outcome.FAILED)
    queue.run(store.block([queue.make()], "until Monday"))
    for make in (queue.make, queue.make_suspended, queue.make_finished, queue.make_quarantined):
        make()
    counts = re.findall(
        r'href="(/jobs\?task=work&amp;state=[^"]*)"><span class="[^"]*">(\d+)<', dashboard.get("/tasks").text
    )
    assert [count for _, count in counts] == ["2", "2", "1", "1"]
    for address, count in counts:
        assert re.search(rf"\b{count} jobs? match", words(dashboard.get(address.replace("&amp;", "&")))), address


def test_operators_retry_and_release_all_jobs_of_a_task(dashboard, queue):
    failed, killer = queue.make_finished(Outcome.FAILED, task="import"), queue.make_quarantined(task="import")
    other = queue.make_finished(Outcome.FAILED, task="other")
    page = dashboard.get("/tasks").text
    offered = re.findall(r'href="(/confirm\?action=\w+_all&amp;[^"]*task=import[^"]*)"', page)
    questions = [dashboard.get(address.replace("&amp;", "&")).text for address in offered]
    assert [re.findall("<h1><bdi>(.*?)<", one) for one in questions] == [["Retry 1 job?"], ["Release 1 job?"]]
    for question in questions:
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', question))
        assert dashboard.operator.post("/act", **fields).headers["location"].startswith("/tasks?done=")
    assert [queue.state_of(job) for job in (failed, killer, other)] == [State.PENDING, State.PENDING, State.FAILED]
    assert "/confirm" not in dashboard.viewer.get("/tasks").text
