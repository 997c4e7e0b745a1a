"""What operators do on the dashboard: asked first, proved, written to the audit."""

import html
import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import msgspec
import pytest

from outlive import store
from outlive.model import Schedule, SourceLimits
from outlive.states import Outcome, State
from tests.dashboard.asking import Browser, words
from tests.driving.making import request
from tests.waiting import eventually


def act(browser: Browser, action: str, **fields: Any) -> str:
    """Do something, and return what the page says about it when it is done."""
    answer = browser.post("/act", action=action, back="/audit", proof=browser.proof(), **fields)
    assert answer.status_code == 303, answer.text
    eventually(lambda: not browser.said(answer).startswith("under way"), within_s=20, what="it is done")
    return browser.said(answer)


def test_a_question_names_the_number_of_jobs(dashboard, queue):
    jobs = [queue.make_finished(Outcome.FAILED, task="import") for _ in range(3)]
    queue.make_finished(Outcome.FAILED, task="other")
    assert "Retry 3 jobs?" in words(dashboard.get("/confirm?action=retry_all&task=import"))
    assert "Retry 1 job?" in words(dashboard.get(f"/confirm?action=retry&id={jobs[0]}"))
    shown = words(dashboard.get(f"/confirm?action=prune&id={jobs[0]}"))
    assert all(part in shown for part in ("Delete 1 job?", "The attempts", f"Job {jobs[0]}", "Task import"))
    shown = words(dashboard.get("/confirm?action=retry_all&task=import&since=2h&state=failed"))
    assert all(part in shown for part in ("A job runs again", "State failed", "Task import", "Since 20", "Before 20"))
    assert dashboard.get("/confirm?action=prune_all&task=import").status_code == 400
    assert dashboard.viewer.get("/confirm?action=retry").status_code == 403


def test_the_answer_acts_on_the_times_that_the_question_names(dashboard, queue):
    meant = queue.make_finished(Outcome.FAILED)
    asked = dashboard.get("/confirm?action=retry_all&since=15m&zone=Europe%2FBerlin").text
    answer = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', asked))
    since, before = (datetime.fromisoformat(answer[name]) for name in ("since", "before"))
    assert timedelta(minutes=15) <= before - since <= timedelta(minutes=15, seconds=2)
    queue.set_now(before)
    later = queue.make_finished(Outcome.FAILED)
    assert act(dashboard.operator, "retry_all", since=answer["since"], before=answer["before"]) == "1 job retried"
    assert [queue.state_of(job) for job in (meant, later)] == ["pending", "failed"]
    assert queue.value("select what->>'since' from outlive.audit") == answer["since"]
    assert since.strftime("%Y-%m-%d %H:%M:%S UTC") in words(dashboard.get("/audit"))


def test_a_question_lists_the_first_ten_jobs(dashboard, queue):
    jobs = [queue.make_finished(Outcome.FAILED, task="import") for _ in range(12)]
    spared = queue.make_finished(Outcome.FAILED, task="other")

    def listed(query: str) -> list[str]:
        return re.findall(r'<li><a class="id" href="/jobs/([\w-]+)"', dashboard.get(f"/confirm?{query}").text)

    assert listed("action=retry_all&task=import") == [str(job) for job in reversed(jobs)][:10]
    assert listed(f"action=retry&id={jobs[0]}&id={spared}") == [str(jobs[0]), str(spared)]
    assert listed(f"action=retry&id={jobs[0]}") == []
    assert "These are the first 10." in words(dashboard.get("/confirm?action=retry_all&task=import"))
    assert "These are the first" not in words(dashboard.get("/confirm?action=retry_all&task=other"))


def test_without_a_job_there_is_no_question_and_the_list_says_so(dashboard, queue):
    operator = dashboard.operator
    answer = operator.get("/confirm?action=retry&back=%2Fjobs%3Ftask%3Dnone")
    assert answer.headers["location"].startswith("/jobs?task=none&done=")
    assert operator.said(answer) == "No job was selected."
    assert operator.said(operator.get("/confirm?action=retry_all&task=none")) == ""
    answer = operator.get("/confirm?action=retry_all&task=none&back=/jobs")
    assert operator.said(answer) == "No job that matches can be retried."
    queue.make_finished(Outcome.FAILED)
    offered = 'value="prune_all"'
    assert offered in dashboard.get("/jobs?state=failed").text
    assert offered not in dashboard.get("/jobs?state=failed&task=none").text
    assert offered not in dashboard.get("/jobs?queue=default").text


def test_deleting_a_job_on_its_page_leads_to_the_list(dashboard, queue):
    job, operator = queue.make_finished(), dashboard.operator
    answer = operator.post("/act", action="prune", id=str(job), back=f"/jobs/{job}", proof=operator.proof())
    assert answer.headers["location"].startswith("/jobs?done=")
    assert operator.said(answer) == "1 job deleted"


def test_jobs_are_retried_cancelled_released_and_deleted(dashboard, queue):
    failed = [queue.make_finished(Outcome.FAILED, task="import") for _ in range(3)]
    waiting, killer = queue.make(), queue.make_quarantined()
    assert act(dashboard.operator, "retry", id=str(failed[0])) == "1 job retried"
    assert act(dashboard.operator, "retry_all", task="import") == "2 jobs retried"
    assert act(dashboard.operator, "cancel", ids=f"{waiting},{failed[0]}") == "2 jobs cancelled"
    assert act(dashboard.operator, "release", id=str(killer)) == "1 job released"
    assert act(dashboard.operator, "prune", id=str(waiting)) == "1 job deleted"
    told = act(dashboard.operator, "prune", id=str(killer))
    assert told.startswith("0 jobs deleted, 1 not changed")
    assert queue.state_of(waiting) is None
    entries = queue.run(store.list_audit())
    assert [(row["action"], row["jobs"]) for row in reversed(entries)] == [
        ("retry", 1),
        ("retry", 2),
        ("cancel", 2),
        ("release", 1),
        ("prune", 1),
    ]
    assert all(row["who"] == "operator from 127.0.0.1 (dashboard)" for row in entries)
    assert "operator from 127.0.0.1" in words(dashboard.get("/audit"))


def test_a_succeeded_job_runs_again_as_a_new_one(dashboard, queue):
    done = queue.make_finished(args=b'{"page": 7}')
    page = dashboard.get(f"/jobs/{done}").text
    assert re.findall(r"action=(\w+)", page) == ["repeat", "prune"]
    assert "Run 1 job again?" in words(dashboard.get(f"/confirm?action=repeat&id={done}"))
    told = act(dashboard.operator, "repeat", id=str(done))
    (new,) = queue.values("select id from outlive.jobs where id <> %s", done)
    assert told == f"1 job enqueued again: it runs again as job {new}"
    assert f'Repeats</dt><dd><bdi>job</bdi> <a class="id" href="/jobs/{done}"' in dashboard.get(f"/jobs/{new}").text


def test_an_action_on_many_jobs_takes_them_in_portions(dashboard, queue):
    queue.make_many(1200, task="flood")
    queue.make("other")
    assert act(dashboard.operator, "cancel_all", task="flood") == "1,200 jobs cancelled"
    assert queue.value("select count(*) from outlive.waiting") == 1
    assert [row["jobs"] for row in queue.run(store.list_audit())] == [1200]


def test_queues_sources_schedules_and_batches_are_operated(dashboard, queue):
    queue.make()
    queue.run(store.register_sources([SourceLimits("shop", rate_limit_per_minute=60)]))
    queue.run(store.declare_schedules([Schedule(name="tick", task="work", args=b"{}", every_s=60)], "a:b"))
    operator = dashboard.operator
    assert act(operator, "pause_queue", name="default") == "queue default is paused"
    assert "paused" in words(dashboard.get("/queues"))
    assert act(operator, "resume_queue", name="default") == "queue default is resumed"
    assert act(operator, "pause_source", name="shop") == "source shop is paused"
    assert act(operator, "resume_source", name="shop") == "source shop is resumed"
    assert act(operator, "set_source", name="shop", rate_limit_per_minute="7.5", burst="") == "source shop is set"
    assert "7.5/min" in words(dashboard.get("/sources"))
    assert "7.5" in words(dashboard.get("/audit"))
    assert act(operator, "set_source", name="shop", rate_limit_per_minute="") == "source shop is set"
    assert "60/min" in words(dashboard.get("/sources"))
    assert act(operator, "set_source", name="shop", rate_limit_per_minute="") == "source shop is as it was"
    assert act(operator, "pause_schedule", name="tick") == "schedule tick is paused"
    assert act(operator, "resume_schedule", name="tick") == "schedule tick is resumed"
    assert act(operator, "run_schedule", name="tick") == "a job of tick is enqueued"
    queue.register_worker(name="crawler")
    queue.execute("update outlive.workers set app = 'a:b', reload_error = 'no such module'")
    assert "has old code: no such module" in words(dashboard.get("/workers"))
    assert act(operator, "reload_worker", name="crawler") == "worker crawler is told to reload"
    assert "reloads" in words(dashboard.get("/workers"))
    assert act(operator, "drain_worker", name="crawler") == "worker crawler is told to drain"
    for action, name in (
        ("drain_worker", "none"),
        ("pause_source", "none"),
        ("resume_queue", "default"),
        ("pause_schedule", "none"),
    ):
        answer = operator.post("/act", action=action, name=name, proof=operator.proof())
        assert answer.status_code == 400
    for rate in ("fast", "-1", "nan", "1e99"):
        limits = {"rate_limit_per_minute": rate, "burst": "7"}
        answer = operator.post("/act", action="set_source", name="shop", **limits, proof=operator.proof())
        assert answer.status_code == 400
        assert all(told in answer.text for told in ("rate_limit_per_minute is", f'value="{rate}"', 'value="7"'))
    assert len(queue.run(store.list_audit())) == 11


def test_a_worker_is_given_other_slots_and_queues(dashboard, queue):
    queue.register_worker(name="web-7")
    operator = dashboard.operator
    asked = operator.get("/confirm?action=set_worker&name=web-7").text
    assert 'name="slots" value="4"' in asked
    assert act(operator, "set_worker", name="web-7", slots="8", queues="mail, news") == "worker web-7 is set"
    assert queue.execute("select slots, queues from outlive.workers").fetchall() == [(8, ["mail", "news"])]
    assert act(operator, "set_worker", name="web-7", slots="8", queues="mail, news") == "worker web-7 is as it was"
    assert act(operator, "set_worker", name="web-7", slots="8", queues="") == "worker web-7 is set"
    assert queue.value("select queues from outlive.workers") is None
    what = [{"worker": "web-7", "slots": 8, "queues": ["mail", "news"]}, {"worker": "web-7", "queues": []}]
    assert queue.values("select what from outlive.audit order by at") == what


def test_a_schedule_is_changed_reset_and_removed(dashboard, queue):
    tick = Schedule(name="tick", task="work", args=b"{}", every_s=60)
    queue.run(store.declare_schedules([tick], "shop:app"))
    queue.run(store.add_schedule("own", {"task": "work", "cron": "0 9 * * *"}))
    operator = dashboard.operator
    columns = "select cron, every_s, timezone, jitter_s, starts_at::text, priority from outlive.schedules"
    asked = dashboard.get("/confirm?action=set_schedule&name=tick").text
    assert all(told in asked for told in ("Declared by", "shop:app", "until the schedule is reset", 'value="1m"'))
    changes = {"every": "", "cron": "*/5 * * * *", "timezone": "Europe/Berlin", "jitter": "30s", "priority": "2"}
    changes |= {"start": "2027-01-01T00:00Z", "end": "", "queue": "", "missed": "once", "overlap": "queue"}
    assert act(operator, "set_schedule", name="tick", **changes) == "schedule tick is set"
    assert queue.row(f"{columns} where name = 'tick'") == {
        "cron": "*/5 * * * *",
        "every_s": None,
        "timezone": "Europe/Berlin",
        "jitter_s": 30,
        "starts_at": "2027-01-01 00:00:00+00",
        "priority": 2,
    }
    assert act(operator, "set_schedule", name="tick", **changes) == "schedule tick is as it was"
    [entry] = queue.run(store.list_audit())
    assert msgspec.json.decode(entry["what"]) == {
        "schedule": "tick",
        "every_s": None,
        "cron": "*/5 * * * *",
        "timezone": "Europe/Berlin",
        "jitter_s": 30,
        "starts_at": "2027-01-01T00:00:00Z",
        "priority": 2,
    }
    for wrong in (
        {"every": "5m", "cron": "* * * * *"},
        {"cron": "every day"},
        {"timezone": "Berlin/Europe"},
        {"priority": "high"},
    ):
        answer = operator.post("/act", action="set_schedule", name="tick", **wrong, proof=operator.proof())
        assert answer.status_code == 400
        assert f'value="{next(iter(wrong.values()))}"' in answer.text
    assert act(operator, "reset_schedule", name="tick") == "schedule tick is as its app declares it"
    assert queue.value("select every_s from outlive.schedules where name = 'tick'") == 60
    page = dashboard.get("/schedules").text
    assert ("remove_schedule&amp;back=%2Fschedules&amp;name=own" in page, "name=tick" in page) == (True, True)
    assert "remove_schedule&amp;back=%2Fschedules&amp;name=tick" not in page
    assert act(operator, "remove_schedule", name="own") == "schedule own is removed"


def test_a_batch_is_closed_and_its_failed_jobs_are_retried(dashboard, queue):
    batch = queue.run(store.open_batch(uuid4(), "import"))
    links = msgspec.json.encode({"batch": batch})
    (failed,) = queue.make_many(1, links=links)
    queue.run_job(failed, Outcome.FAILED, error="no", final=True)
    newer = queue.make_many(2, links=links)
    answer = dashboard.get(f"/batches/{batch}")
    assert all(word in words(answer) for word in ("Cancel this batch", "Close", "Retry its failed jobs"))
    assert answer.text.index(f"j-{failed}") < answer.text.index(f"j-{newer[0]}")
    assert "Close this batch?" in words(dashboard.get(f"/confirm?action=close_batch&name={batch}"))
    assert act(dashboard.operator, "close_batch", name=str(batch)) == "the batch is closed"
    assert act(dashboard.operator, "retry_all", batch=str(batch), state="failed") == "1 job retried"
    assert "Retry its failed jobs" not in words(dashboard.get(f"/batches/{batch}"))
    assert "Close batch" in words(dashboard.get("/audit"))


def test_an_open_batch_is_not_done_and_its_callback_that_is_no_job_yet_is_no_link(dashboard, queue):
    callback = request()
    batch = queue.run(store.open_batch(uuid4(), "import", on_success=callback))
    queue.run_job(queue.make(links=msgspec.json.encode({"batch": batch})))
    for path in (f"/batches/{batch}", "/batches"):
        page = dashboard.get(path)
        assert re.search("1 (of 1 jobs have ended )?so far", words(page))
        assert "<progress" not in page.text
    assert f"job {callback.id}, not enqueued yet" in words(dashboard.get(f"/batches/{batch}"))
    assert f"/jobs/{callback.id}" not in dashboard.get(f"/batches/{batch}").text
    queue.run(store.close_batch(batch))
    shown = dashboard.get(f"/batches/{batch}").text
    assert "<progress" in shown
    assert f"/jobs/{callback.id}" in shown


def test_the_audit_has_arguments_as_json_and_times_as_people_read_them(dashboard, queue):
    what = {"schedule": "report", "args": {"text": "long"}, "every_s": None, "jitter_s": 90.0}
    queue.run(store.write_audit(uuid4(), who="me", action="set schedule", what=what))
    shown = html.unescape(words(dashboard.get("/audit")))
    assert 'Args {"text":"long"} , Every not set , Jitter 90 s , Schedule report' in shown


def test_a_batch_is_cancelled_with_its_jobs(dashboard, queue):
    batch = queue.run(store.open_batch(uuid4(), "import"))
    jobs = queue.make_many(3, links=msgspec.json.encode({"batch": batch}))
    assert "Cancel 3 jobs of this batch?" in words(dashboard.get(f"/confirm?action=cancel_batch&name={batch}"))
    done = "the batch and its 3 unfinished jobs were cancelled"
    assert act(dashboard.operator, "cancel_batch", name=str(batch)) == done
    assert {queue.state_of(job) for job in jobs} == {State.CANCELLED}
    assert "0 of 3 jobs are left" in words(dashboard.get(f"/batches/{batch}"))


def test_only_an_operator_s_own_form_acts(dashboard, queue):
    job = queue.make_finished(Outcome.FAILED)
    operator, viewer = dashboard.operator, dashboard.viewer
    fields: dict[str, Any] = {"action": "retry", "id": str(job)}
    proof = operator.proof()
    refused = [
        viewer.post("/act", **fields, proof=viewer.proof()),
        operator.post("/act", **fields),
        operator.post("/act", **fields, proof="0" * 64),
        operator.post("/act", **fields, proof=viewer.proof()),
        operator.post("/act", {"origin": "http://evil.example"}, **fields, proof=proof),
        operator.post("/act", {"sec-fetch-site": "cross-site"}, **fields, proof=proof),
    ]
    assert [answer.status_code for answer in refused] == [403] * len(refused)
    assert dashboard.browser().post("/act", **fields, proof=proof).status_code == 401
    assert operator.get(f"/act?action=retry&id={job}&proof={proof}").status_code == 405
    assert queue.state_of(job) is State.FAILED
    assert queue.run(store.list_audit()) == []


@pytest.mark.parametrize(
    "back", ["//evil.example", "http://evil.example", "\\\\evil.example", "/\\evil.example", "/\nx", ""]
)
def test_an_action_leads_back_to_the_dashboard_only(dashboard, queue, back):
    operator = dashboard.operator
    page = operator.get(f"/confirm?{urlencode({'action': 'pause_queue', 'name': 'default', 'back': back})}")
    assert page.status_code == 200
    assert 'href="/">No, go back' in page.text
    answer = operator.post("/act", action="pause_queue", name="default", back=back, proof=operator.proof())
    assert answer.headers["location"].startswith("/?done=")
