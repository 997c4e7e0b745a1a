"""A job that an operator enqueues by a form: its fields, what is wrong with them, and a real worker that runs it."""

import html
import re
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from outlive import store
from outlive.arguments import Codec
from outlive.states import State
from tests.dashboard.asking import Dashboard
from tests.driving.making import Queue
from tests.waiting import eventually


def many(  # type: ignore[no-untyped-def]
    page: str,
    /,
    times: int,
    ratio: float | None = None,
    *,
    deep: bool = False,
    tags: list[str] | None = None,
    anything=None,
    limit: Decimal = Decimal("1.5"),
    **rest: int,
) -> None: ...


def register(connection: Queue, **more: Any) -> None:
    connection.register_task(name="shop.many", signature=Codec("shop.many", many).parameters(), **more)


def send(dashboard: Dashboard, task: str, **fields: str) -> Any:
    named = {f"arg.{name}" if name not in ("queue", "priority", "delay") else name: one for name, one in fields.items()}
    return dashboard.operator.post("/act", action="enqueue", name=task, proof=dashboard.operator.proof(), **named)


def wrong(answer: Any) -> dict[str, str]:
    """What the page says beside its fields."""
    assert answer.status_code == 400, answer.text
    found = re.findall(r'<p class="wrong" id="wrong-([\w.]+)" role="alert"><bdi>(.*?)</bdi>', answer.text)
    return {name: html.unescape(words) for name, words in found}


def test_the_form_has_a_field_for_each_parameter_with_its_annotation_and_default(dashboard, queue):
    register(queue, queue="slow", priority=2)
    page = dashboard.get("/confirm?action=enqueue&name=shop.many&back=/tasks").text
    labels = [html.unescape(one) for one in re.findall(r'<label for="[\w.]+">(.*?)</label>', page)]
    assert labels == [
        *("page: str", "times: int", "ratio: float | None", "deep: bool", "tags: list[str] | None", "anything"),
        *("limit: decimal.Decimal", "Queue", "Priority", "Delay"),
    ]
    hints = [html.unescape(one) for one in re.findall(r'placeholder="(.*?)"', page)]
    assert hints == ["", "", "null", "null", "null", "1.5", "slow", "2", "none, or such as 5m"]
    assert "<option selected></option><option>true</option><option>false</option>" in page
    assert 'action=enqueue&amp;back=%2Ftasks&amp;name=shop.many"' in dashboard.get("/tasks").text
    assert "action=enqueue" not in dashboard.viewer.get("/tasks").text


def test_what_was_typed_becomes_the_arguments_and_the_page_of_the_job_follows(dashboard, queue):
    register(queue, priority=2)
    typed = {"page": "007", "times": "3", "ratio": "null", "deep": "true", "tags": '["a"]', "anything": "{}"}
    answer = send(dashboard, "shop.many", **typed, limit="2.50", queue="fast", delay="1h")
    (job,) = queue.execute("select id, args, queue, priority, ready_at > outlive.now() from outlive.jobs").fetchall()
    assert answer.headers["location"] == f"/jobs/{job[0]}?done={job[0]}"
    assert dashboard.operator.said(answer) == "a job of shop.many is enqueued"
    named: dict[str, Any] = {"times": 3, "ratio": None, "deep": True, "tags": ["a"], "anything": {}, "limit": "2.50"}
    assert job[1:] == ({**named, "*": ["007"]}, "fast", 2, True)
    args, kwargs = Codec("shop.many", many).unpack(msgspec.json.encode(job[1]))
    assert (args, kwargs["limit"]) == (["007"], Decimal("2.50"))
    (entry,) = queue.run(store.list_audit())
    assert (entry["action"], entry["jobs"], entry["who"]) == ("enqueue", 1, "operator from 127.0.0.1 (dashboard)")


def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_stays(dashboard, queue):
    register(queue)
    typed = {"times": "three", "ratio": "1,5", "tags": "a", "anything": "text"}
    answer = send(dashboard, "shop.many", **typed, queue="x" * 300, priority="11", delay="soon")
    said = wrong(answer)
    assert said["arg.page"] == "give a value: it has no default"
    assert said["arg.times"] == "this is not a whole number"
    assert said["arg.ratio"] == "this is not a number or null"
    assert said["arg.tags"] == "this is not an array as JSON or null"
    assert said["arg.anything"] == "this is not JSON: write text in quotes"
    assert set(said) == {"arg.page", *(f"arg.{name}" for name in typed), "queue", "priority", "delay"}
    assert 'value="three"' in answer.text
    assert queue.value("select count(*) from outlive.jobs") == 0


def test_a_value_never_takes_the_place_of_one_that_is_missing_before_it(dashboard, queue):
    def resize(width: int = 1, height: int = 2, depth: int = 3, /) -> None: ...

    queue.register_task(name="shop.resize", signature=Codec("shop.resize", resize).parameters())
    assert wrong(send(dashboard, "shop.resize", depth="7")) == {
        "arg.height": "give a value: depth can only be given after it"
    }
    send(dashboard, "shop.resize", width="4", height="5")
    assert queue.value("select args from outlive.jobs") == {"*": [4, 5]}


def test_a_priority_of_thousands_of_digits_is_refused(dashboard, queue):
    register(queue)
    assert "priority" in wrong(send(dashboard, "shop.many", page="a", times="1", priority="9" * 5000))


@pytest.mark.parametrize("signature", [None, ()])
def test_a_task_that_no_worker_has_described_has_no_form(dashboard, queue, signature):
    queue.register_task(name="shop.many", signature=signature)
    answer = dashboard.get("/confirm?action=enqueue&name=shop.many")
    assert answer.status_code == (400 if signature is None else 200)
    assert ("action=enqueue" in dashboard.get("/tasks").text) == (signature is not None)


def test_viewers_and_forms_of_others_enqueue_nothing(dashboard, queue):
    register(queue)
    viewer = dashboard.viewer
    assert viewer.get("/confirm?action=enqueue&name=shop.many").status_code == 403
    fields = {"action": "enqueue", "name": "shop.many", "arg.page": "a", "arg.times": "1"}
    assert viewer.post("/act", **fields, proof=viewer.proof()).status_code == 403
    assert dashboard.operator.post("/act", **fields, proof="made up").status_code == 403
    assert queue.value("select count(*) from outlive.jobs") == 0


def test_a_worker_describes_its_tasks_and_runs_what_a_form_enqueues(dashboard, queue, start):
    start(slots=1)
    eventually(lambda: "name=tests.faults.invoice" in dashboard.get("/tasks").text, what="the tasks are registered")
    assert "arg.due" in wrong(send(dashboard, "tests.faults.invoice", price="1.50"))
    answer = send(dashboard, "tests.faults.invoice", price="1.50", due="2026-11-18")
    job = UUID(answer.headers["location"].rpartition("=")[2])
    eventually(lambda: queue.state_of(job) is State.SUCCEEDED, what="the worker has run it")
    assert queue.value("select result from outlive.attempts where job_id = %s", job) == ["1.50", "2026-11-18"]
