"""Tasks that were renamed, tasks that no worker has, and tasks of two apps with the same name."""

from pathlib import Path

import pytest

import outlive

OLD = """
import outlive
app = outlive.App()

@app.schedule(every="1d", args={"n": 1})
@app.task(max_attempts=3)
def double(n: int) -> int:
    return 2 * n
"""
NEW = OLD.replace("max_attempts=3", "name='double', was='renamed_shop.double', max_attempts=7")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return tmp_path / "renamed_shop.py"


def twice(n: int) -> int:
    return n


def test_jobs_schedules_and_limits_follow_a_task_to_its_new_name(start, queue, shop, database_url):
    shop.write_text(OLD)
    worker = start(target="renamed_shop:app", folder=shop.parent, slots=1)
    queue.execute("update outlive.schedules set every_s = 7200, priority = 1")  # As an operator does.
    worker.stop()
    app = outlive.App(database_url)
    job = app.task(name="renamed_shop.double")(twice).enqueue(21)
    shop.write_text(NEW)
    start(target="renamed_shop:app", folder=shop.parent, slots=1)
    assert job.result(timeout=20) == 42
    schedules = queue.execute("select name, task, every_s, priority, withdrawn_at from outlive.schedules").fetchall()
    assert schedules == [("double", "double", 7200.0, 1, None)]
    limits = queue.execute("select name, max_attempts from outlive.tasks order by name").fetchall()
    assert limits == [("double", 7), ("renamed_shop.double", 7)]
    app.connections.close()


def test_a_worker_says_once_that_jobs_wait_for_a_task_that_no_worker_has(start, shop, database_url):
    app = outlive.App(database_url)
    app.task(name="moved.away")(twice).using(queue="mail").enqueue(1)
    shop.write_text(OLD)
    worker = start(target="renamed_shop:app", folder=shop.parent, slots=1, sweep_s="0.1")
    worker.says("jobs wait, and no active worker has the task moved.away and serves the queue mail")
    assert "see `outlive doctor`" in worker.log()
    assert worker.log().count("moved.away") == 1
    app.connections.close()


def test_a_worker_says_that_it_replaces_the_limits_of_a_source_of_another_app(start, queue, shop):
    shop.write_text(OLD + "app.source('api', rate_limit_per_minute=60)\n")
    other = shop.with_name("other_shop.py")
    other.write_text("import outlive\napp = outlive.App()\napp.source('api', rate_limit_per_minute=600)\n")
    first = start(target="renamed_shop:app", folder=shop.parent, slots=1)
    second = start(target="other_shop:app", folder=shop.parent, slots=1)
    said = "another app may have declared other limits for the source api, and those of this app hold now"
    assert second.says(said)
    assert queue.values("select rate_limit_per_minute from outlive.sources") == [600]
    start(target="other_shop:app", folder=shop.parent, slots=1)
    assert said not in first.log()
    assert second.log().count(said) == 1


def test_a_worker_is_refused_while_another_app_has_a_task_of_the_same_name(start, queue, shop):
    shop.write_text(OLD)
    other = shop.with_name("other_shop.py")
    other.write_text(NEW)
    start(target="renamed_shop:app", folder=shop.parent, slots=1)
    same = start(target="renamed_shop:app", folder=shop.parent, slots=1, service="billing")
    same.says("the app renamed_shop:app has tasks of the same name and active workers")  # It is one app, and runs.
    same.stop()
    refused = start(target="other_shop:app", folder=shop.parent, slots=1, wait=False)
    assert refused.process.wait(30) == 2
    assert refused.says(
        "the app renamed_shop:app has tasks of the same name and active workers, and each worker claims the jobs of "
        "both: renamed_shop.double; give the tasks names of their own with name=…, or, if it is one app under two "
        "names, set OUTLIVE_SERVICE=renamed_shop:app here"
    )
    assert queue.values("select max_attempts from outlive.tasks") == [3]
    assert queue.count("workers") == 2
    start(target="other_shop:app", folder=shop.parent, slots=1, service="renamed_shop:app")
    assert sorted(queue.values("select max_attempts from outlive.tasks")) == [7, 7]


def test_a_worker_says_at_its_start_that_it_runs_the_jobs_of_an_app_whose_workers_have_stopped(
    start, shop, database_url
):
    shop.write_text(OLD)
    start(target="renamed_shop:app", folder=shop.parent, slots=1).stop()
    shop.with_name("other_shop.py").write_text(NEW.replace("name='double', was=", "name="))
    start(target="other_shop:app", folder=shop.parent, slots=1, queues="others").stop()
    shop.write_text(OLD.replace("app = ", "application = app = "))
    app = outlive.App(database_url)
    app.task(name="renamed_shop.double")(twice).using(queue="elsewhere").enqueue(1)
    first = start(target="renamed_shop:app", folder=shop.parent, slots=1, queues="others")
    first.says("the app other_shop:app had tasks of the same name with other functions, and their unfinished jobs run")
    assert "here now: renamed_shop.double; if other_shop:app is this app before a move, all is well" in first.log()
    first.stop()
    for target in ("renamed_shop:app", "renamed_shop:application"):
        again = start(target=target, folder=shop.parent, slots=1, queues="others")
        again.stop()
        assert "had tasks of the same name" not in again.log(), "the function is the same"
    app.connections.close()


def test_a_worker_that_died_with_its_machine_refuses_no_other_app(start, queue, shop):
    shop.write_text(OLD)
    start(target="renamed_shop:app", folder=shop.parent, slots=1).kill_with_zygote()
    shop.with_name("other_shop.py").write_text(NEW)
    assert queue.values("select state from outlive.workers") == ["active"]
    start(target="other_shop:app", folder=shop.parent, slots=1)
