"""A schedule that an operator makes by a form: its fields, what is wrong with them, what the page and the audit say."""

import html
from typing import Any

import msgspec
import pytest

from outlive import store
from outlive.policy import Parameter
from tests.dashboard.asking import Dashboard, words
from tests.dashboard.test_enqueuing import wrong

FORM = {"name": "customer-7", "task": "shop.report", "cron": "0 6 * * *", "every": "", "timezone": "Europe/Berlin"}
FORM |= {"args": '{"kind": "long"}', "missed": "once", "overlap": "skip", "jitter": "", "start": "", "end": ""}
FORM |= {"queue": "", "priority": ""}

MADE = """
select task, args, cron, every_s, timezone, missed, overlap, jitter_s, queue, priority, declared_by
from outlive.schedules
"""


@pytest.fixture(autouse=True)
def described(queue):
    """A worker has described one task, and only registered another."""
    parameter = Parameter("kind", annotation="str", required=True)
    queue.register_task(name="shop.report", priority=3, signature=(parameter,))
    queue.register_task(name="shop.old", signature=None)


def send(dashboard: Dashboard, **fields: str) -> Any:
    operator = dashboard.operator
    return operator.post("/act", action="add_schedule", back="/schedules", proof=operator.proof(), **FORM | fields)


def test_an_operator_makes_a_schedule_by_a_form(dashboard, queue):
    assert "action=add_schedule&amp;back=%2Fschedules" in dashboard.get("/schedules").text
    asked = dashboard.get("/confirm?action=add_schedule&back=/schedules").text
    assert "<option selected></option><option>shop.report</option></select>" in asked
    assert all(told in asked for told in ('value="UTC"', "<option selected>queue", "<option selected>once"))
    answer = send(dashboard)
    assert dashboard.operator.said(answer) == "schedule customer-7 is made"
    assert queue.row(MADE) == {
        "task": "shop.report",
        "args": {"kind": "long"},
        "cron": "0 6 * * *",
        "every_s": None,
        "timezone": "Europe/Berlin",
        "missed": "once",
        "overlap": "skip",
        "jitter_s": 0,
        "queue": None,
        "priority": 3,
        "declared_by": None,
    }
    page = dashboard.get("/schedules")
    assert answer.headers["location"].startswith("/schedules?done=")
    assert "customer-7 shop.report 0 6 * * * Europe/Berlin" in words(page)
    assert "remove_schedule&amp;back=%2Fschedules&amp;name=customer-7" in page.text
    [entry] = queue.run(store.list_audit())
    assert (entry["action"], entry["who"]) == ("add schedule", "operator from 127.0.0.1 (dashboard)")
    what: dict[str, Any] = {"schedule": "customer-7", "task": "shop.report", "args": {"kind": "long"}}
    what |= {"timezone": "Europe/Berlin"}
    what |= {"cron": "0 6 * * *", "every_s": None, "missed": "once", "overlap": "skip", "priority": 3}
    assert msgspec.json.decode(entry["what"]) == what
    assert 'Args {"kind":"long"}' in html.unescape(words(dashboard.get("/audit")))


def test_an_interval_stands_in_place_of_a_cron_expression(dashboard, queue):
    send(dashboard, cron="", every="10m", priority="0", queue="slow", end="2099-01-01T00:00Z")
    found = queue.row("select cron, every_s, priority, queue, ends_at is null as endless from outlive.schedules")
    assert found == {"cron": None, "every_s": 600, "priority": 0, "queue": "slow", "endless": False}


def test_a_name_that_is_taken_is_refused_and_its_schedule_stays(dashboard, queue):
    send(dashboard)
    answer = send(dashboard, cron="", every="1h")
    assert wrong(answer) == {"name": "there is a schedule customer-7 already: choose another name"}
    assert 'value="1h"' in answer.text
    assert queue.values("select cron from outlive.schedules") == ["0 6 * * *"]
    assert len(queue.run(store.list_audit())) == 1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"cron": ""}, {"cron": "give either a cron expression or an interval"}),
        ({"every": "5m"}, {"cron": "give either a cron expression or an interval"}),
        ({"task": "", "name": ""}, {"task": "choose a task", "name": "the name of a schedule is ''"}),
        ({"task": "shop.old"}, {"task": "no worker has described a task shop.old"}),
        ({"priority": "high", "jitter": "soon"}, {"priority": "priority is 'high'", "jitter": "jitter is 'soon'"}),
        ({"cron": "", "every": "0s", "args": "long"}, {"every": "every is '0s'", "args": "this is not a JSON object"}),
        ({"args": '"long"'}, {"args": "this is not a JSON object or array"}),
        ({"args": ""}, {"args": "the schedule customer-7 is refused: "}),
        ({"args": '{"kind": 3}'}, {"args": "the schedule customer-7 is refused: "}),
    ],
)
def test_what_is_wrong_stands_beside_its_field_and_nothing_is_made(dashboard, queue, typed, said):
    answer = send(dashboard, **typed)
    found = wrong(answer)
    assert found.keys() == said.keys()
    assert all(found[field].startswith(beginning) for field, beginning in said.items()), found
    assert 'value="Europe/Berlin"' in answer.text
    assert (queue.count("schedules"), queue.run(store.list_audit())) == (0, [])


@pytest.mark.parametrize("typed", [{"cron": "every day"}, {"timezone": "Berlin/Europe"}])
def test_what_can_not_fire_is_refused_above_the_form(dashboard, queue, typed):
    answer = send(dashboard, **typed)
    assert (answer.status_code, "the schedule customer-7 has the" in answer.text) == (400, True)
    assert f'value="{next(iter(typed.values()))}"' in answer.text
    assert queue.count("schedules") == 0


def test_a_viewer_makes_no_schedule(dashboard, queue):
    viewer = dashboard.viewer
    assert "add_schedule" not in viewer.get("/schedules").text
    assert viewer.get("/confirm?action=add_schedule").status_code == 403
    assert viewer.post("/act", action="add_schedule", proof=viewer.proof(), **FORM).status_code == 403
    assert queue.count("schedules") == 0
