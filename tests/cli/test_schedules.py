"""The command schedules."""

import json
from datetime import datetime
from typing import Any

import pytest

from outlive import store
from outlive.model import Schedule
from outlive.policy import Parameter
from tests.driving.commands import Cli
from tests.driving.making import Queue, register_task
from tests.driving.schedules import let_sessions_begin_with

NAME = "shop.report"


@pytest.fixture
def report(queue: Queue) -> None:
    """A schedule that an app has declared."""
    said = Schedule(name=NAME, task=NAME, args=b'{"kind":"long"}', cron="0 9 * * *", timezone="Europe/Berlin")
    queue.run(store.declare_schedules([said], "shop:app"))


def shown(cli: Cli, name: str = NAME) -> dict[str, Any]:
    (row,) = [row for row in cli("schedules", "--json").json if row["name"] == name]
    return dict(row)


def test_schedules_are_listed_with_their_next_firings(cli, report):
    row = shown(cli)
    expected: dict[str, object] = {
        "task": NAME,
        "cron": "0 9 * * *",
        "every_s": None,
        "timezone": "Europe/Berlin",
        "paused": False,
    }
    expected |= {"args": {"kind": "long"}, "missed": "once", "overlap": "queue", "changed": False, "trouble": None}
    assert {key: row[key] for key in expected} == expected
    firings = [datetime.fromisoformat(tick) for tick in row["next"]]
    assert len(firings) == 5
    assert firings == sorted(firings)
    assert {(tick.hour, tick.minute) for tick in firings} <= {(7, 0), (8, 0)}
    table = cli("schedules").out
    for words in (NAME, "0 9 * * * Europe/Berlin", " on"):
        assert words in table


def test_next_firings_are_in_order_while_the_clocks_of_the_database_go_back(cli, queue):
    queue.run(store.add_schedule("pay", {"task": "shop.pay", "every_s": 600.0}))
    let_sessions_begin_with(queue, "timezone", "Europe/Berlin")
    let_sessions_begin_with(queue, "outlive.now", "2026-10-25T01:05Z")  # 02:05 in Berlin, the second time.
    queue.execute("update outlive.schedules set next_at = '2026-10-25T00:50Z'")  # 02:50, the first time.
    assert [tick[11:16] for tick in shown(cli, "pay")["next"]] == ["01:10", "01:20", "01:30", "01:40", "01:50"]
    assert shown(cli, "pay")["next_at"] == "2026-10-25T00:50:00Z"


def test_without_schedules_it_says_so(cli):
    assert cli("schedules").out == "there are no schedules\n"
    assert cli("schedules", "--json").json == []


def test_pause_and_resume_switch_a_schedule_off_and_on(cli, report):
    ran = cli("schedules", "pause", NAME)
    assert ran.out == f"schedule {NAME} is paused; `outlive schedules resume {NAME}` resumes it\n"
    assert shown(cli)["paused"] is True
    assert "paused" in cli("schedules").out
    assert cli("schedules", "resume", NAME).out == f"schedule {NAME} is resumed\n"
    assert shown(cli)["paused"] is False


def test_run_prints_the_id_of_the_job(cli, queue, report):
    job = cli("schedules", "run", NAME).out.strip()
    assert queue.value("select args from outlive.jobs where id = %s", job) == {"kind": "long"}
    row = shown(cli)
    assert (row["last_job"], row["last_state"]) == (job, "pending")
    assert f"{job} pending" in cli("schedules").out
    assert cli("show", job, "--json").json["schedule"] == NAME
    assert f"fired by   schedule {NAME}" in (told := cli("show", job).out)
    assert "options" not in told


def test_set_overrules_the_app_until_it_is_reset(cli, report):
    assert cli("schedules", "set", NAME, "--every", "90s", "--missed", "all").out == f"schedule {NAME} is set\n"
    row = shown(cli)
    assert (row["cron"], row["every_s"], row["missed"], row["changed"]) == (None, 90.0, "all", True)
    assert "every 90 s (changed)" in cli("schedules").out
    assert cli("schedules", "reset", NAME).out == f"schedule {NAME} is as its app declares it\n"
    row = shown(cli)
    assert (row["cron"], row["every_s"], row["missed"], row["changed"]) == ("0 9 * * *", None, "once", False)


def test_verbs_say_that_a_schedule_is_withdrawn_and_with_a_task_it_is_in_force_again(cli, queue, report):
    queue.run(store.declare_schedules([], "shop:app"))
    why = "is withdrawn and fires nothing, because its app shop:app no longer declares it"
    for words in (("set", NAME, "--every", "90s"), ("resume", NAME), ("reset", NAME)):
        assert why in cli("schedules", *words).err
    assert f"schedule {NAME} {why}" in cli("doctor").out
    assert cli("schedules", "set", NAME, "--task", NAME).out == f"schedule {NAME} is set\n"
    row = shown(cli)
    assert (row["declared_by"], row["withdrawn_at"]) == (None, None)


def test_set_changes_each_option_of_a_schedule(cli, report):
    words = ("--jitter", "5m", "--start", "2030-01-01T00:00+01:00", "--end", "2031-01-01T00:00Z")
    assert cli("schedules", "set", NAME, *words, "--queue", "slow", "--priority", "3").code == 0
    row = shown(cli)
    assert (row["jitter_s"], row["queue"], row["priority"]) == (300.0, "slow", 3)
    assert (row["starts_at"], row["ends_at"]) == ("2029-12-31T23:00:00Z", "2031-01-01T00:00:00Z")
    assert row["next"][0] == "2030-01-01T08:00:00Z"


def test_set_makes_a_new_schedule_and_remove_deletes_it(cli, queue):
    words = ("--task", "shop.pay", "--cron", "*/5 * * * *", "--args", json.dumps({"n": 1}), "--overlap", "skip")
    ran = cli("schedules", "set", "pay", *words)
    assert ran.out == "schedule pay is made\n"
    assert ran.err == "outlive: no worker has a task shop.pay: its jobs will wait until a worker has it\n"
    worker = queue.register_worker()
    queue.run(store.tell_tasks(worker, ["shop.pay", "shop.buy"]))
    assert cli("schedules", "set", "pay", "--task", "shop.pay").err == ""
    assert "did you mean shop.buy?" in cli("schedules", "set", "pay", "--task", "shop.by").err
    cli("schedules", "set", "pay", "--task", "shop.pay")
    row = shown(cli, "pay")
    assert (row["task"], row["args"], row["timezone"]) == ("shop.pay", {"n": 1}, "UTC")
    assert (row["overlap"], row["declared_by"]) == ("skip", None)
    assert cli("schedules", "remove", "pay").out == "schedule pay is removed\n"
    assert queue.count("schedules") == 0


def test_set_refuses_arguments_that_the_task_would_refuse_as_a_worker_has_described_it(cli, queue, report):
    register_task(queue, name=NAME, signature=(Parameter("kind", annotation="str", default='"short"'),))
    ran = cli("schedules", "set", NAME, "--args", '{"kind": 3}')
    assert f"the schedule {NAME} is refused: {NAME} can't be enqueued: argument kind: expected str, got int" in ran.err
    assert ran.code == 2
    new = cli("schedules", "set", "new", "--task", NAME, "--every", "1h", "--args", '{"kind": 3}')
    assert "the schedule new is refused" in new.err
    assert [row["args"] for row in cli("schedules", "--json").json] == [{"kind": "long"}]
    assert cli("schedules", "set", NAME, "--args", '{"kind": "x", "others": 3}').code == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--cron", "61 * * * *"), "has the cron expression '61 * * * *', which can't be read (Bad minute)"),
        (("--timezone", "Europe/Berln"), "has the time zone 'Europe/Berln', which is not known here"),
        (("--cron", "* * * * *", "--every", "5s"), "--cron and --every are both given"),
        (("--start", "soon"), "--start is 'soon': it must be a datetime with a time zone"),
        (("--end", "2030-01-01T00:00"), "must be a datetime with a time zone"),
        (("--jitter", "2d"), "--jitter is '2d': it must be a duration of at most a day"),
        (("--priority", "10"), "--priority is 10"),
        (("--every", "100ms"), "--every is '100ms': it must be a duration of at least one second"),
        (("--missed", "some"), "--missed is 'some': it must be skip, once or all"),
        (("--overlap", "some"), "--overlap is 'some': it must be skip, queue or cancel"),
        (("--args", "{"), "the arguments are not JSON"),
        (("--args", '["\udcff"]'), "the arguments are not JSON"),
        (("--args", "3"), "must be a JSON object or array"),
        ((), "nothing is set"),
    ],
)
def test_set_refuses_what_no_worker_could_fire_and_changes_nothing(cli, report, words, reason):
    before = shown(cli)
    ran = cli("schedules", "set", NAME, *words)
    assert ran.code == 2
    assert reason in " ".join(ran.err.split())
    assert shown(cli) == before


def test_set_says_what_a_new_schedule_needs(cli):
    ran = cli("schedules", "set", "missing", "--cron", "* * * * *")
    assert ran.code == 2
    assert "there is no schedule missing: to make it, give --task, and --cron or --every" in " ".join(ran.err.split())


def test_a_schedule_in_trouble_is_seen_in_the_list_and_by_the_doctor(cli, queue):
    queue.run(store.add_schedule("broken", {"task": "shop.pay", "cron": "61 * * * *"}))
    (seen,) = queue.run(store.due_schedules()).due
    queue.run(store.note_trouble(seen, "no such minute"))
    row = shown(cli, "broken")
    assert (row["trouble"], row["next"]) == ("no such minute", [])
    assert "in trouble: no such minute" in cli("schedules").out
    ran = cli("doctor")
    assert ran.code == 1
    assert "schedule broken can't fire: no such minute" in ran.out
