"""Steps on the page of a job, and what operators do with them there."""

import html
import json
import re
from uuid import UUID

from outlive import store
from outlive.output import LiveOutput
from outlive.protocol import Wait
from outlive.states import Outcome, State
from tests.dashboard.asking import HOSTILE, words
from tests.driving.making import KILLED, WORKER


def links(*jobs: UUID) -> bytes:
    return json.dumps({"after": [str(job) for job in jobs]}).encode()


def test_the_page_of_a_job_lists_its_steps_with_bars_and_shows_a_value_on_demand(dashboard, queue):
    job = queue.make_finished(Outcome.FAILED)
    queue.keep_steps(job, "charge", "receive:packed", HOSTILE.replace("\x1b", "").replace("\x07", ""))
    page = dashboard.get(f"/jobs/{job}")
    shown = words(page)
    assert re.search(r"charge step 0.2 s 1 \S+ \S+ UTC 8 B Rerun from here Replace", shown)
    assert "receive:packed signal" in shown
    assert page.text.count('class="bar"') == 3
    assert "<img src=x" not in page.text
    assert "Value of the step" not in shown
    assert "Value of the step charge &#34;charge&#34;" in words(dashboard.get(f"/jobs/{job}?step=charge"))
    assert "has kept no such step" in words(dashboard.get(f"/jobs/{job}?step=no"))
    assert "Rerun from here" not in words(dashboard.viewer.get(f"/jobs/{job}"))


def test_steps_under_way_are_listed_and_can_be_supplied(dashboard, queue):
    running = queue.claim_job(queue.make())
    queue.keep_steps(running.id, "charge")
    dashboard.get(f"/jobs/{running.id}")
    queue.run(store.write_output(WORKER, [LiveOutput(running.token, 0, "", steps="label, mail:7")]))
    shown = words(dashboard.get(f"/jobs/{running.id}"))
    assert "label step 1 running Supply mail:7 step 1 running Supply" in shown
    assert "Replace" not in shown  # The attempt may have gone on from what is kept.


def test_a_job_that_waits_for_a_signal_says_so_and_an_operator_sends_it(dashboard, queue):
    running, operator = queue.claim_job(queue.make()), dashboard.operator
    queue.run(store.suspend(WORKER, Wait(running.token, "receive:packed#2", after_s=60.0, signal="packed")))
    shown = words(dashboard.get(f"/jobs/{running.id}"))
    assert "receive:packed#2 signal 1 suspended Send" in shown
    fields = {"action": "send", "id": str(running.id), "signal": "packed"}
    asked = dashboard.get(f"/confirm?action=send&id={running.id}&signal=packed")
    assert "Send a signal?" in words(asked)
    assert 'id="signal" name="signal" value="packed"' in asked.text
    assert operator.post("/act", **fields, value="{", proof=operator.proof()).status_code == 400
    answer = operator.post("/act", **fields, value='{"parcels": 2}', proof=operator.proof(), back="/audit")
    assert "the signal packed was sent" in operator.said(answer)
    [step] = queue.run(store.steps_of(running.id))
    assert (step["name"], step["value"]) == ("receive:packed#2", b'{"parcels": 2}')
    [entry] = queue.run(store.list_audit())
    assert (entry["action"], entry["who"]) == ("send", "operator from 127.0.0.1 (dashboard)")


NAMES = ['it\'s "q" & <b>', "日本語🎂", "a?b=c&d#e", "a/../c", "%2F%00", "100% a+b"]


def test_steps_and_signals_of_any_name_are_shown_supplied_sent_and_begun_at(dashboard, queue):
    job, operator = queue.make_finished(Outcome.FAILED), dashboard.operator
    steps = [f"charge:{name}" for name in NAMES]
    queue.keep_steps(job, *steps)
    page = html.unescape(dashboard.get(f"/jobs/{job}").text)
    to_values = re.findall(r'href="(/jobs/[^"]+\?step=[^"#]+)', page)
    assert len(to_values) == len(steps)
    for name, link in zip(steps, to_values, strict=True):
        assert f"Value of the step {name} {json.dumps(name, ensure_ascii=False)}" in html.unescape(
            words(dashboard.get(link))
        )
    for link in re.findall(r'href="(/confirm\?action=(?:supply|rerun)[^"]+)', page):
        assert dashboard.get(link).status_code == 200
    for name in reversed(steps):
        given = {"id": str(job), "proof": operator.proof(), "back": "/audit"}
        answer = operator.post("/act", action="supply", replacing=name, value='"ü"', **given)
        assert f"the step {name} has this value now" in operator.said(answer)
    for name in NAMES:
        waiting = queue.claim_job(queue.make())
        queue.run(store.suspend(WORKER, Wait(waiting.token, f"receive:{name}", signal=name)))
        page = html.unescape(dashboard.get(f"/jobs/{waiting.id}").text)
        [link] = re.findall(r'href="(/confirm\?action=send[^"]+signal=[^"]+)', page)
        assert f'name="signal" value="{name}"' in html.unescape(dashboard.get(link).text)
        given = {"id": str(waiting.id), "signal": name, "proof": operator.proof(), "back": "/audit"}
        answer = operator.post("/act", action="send", value='"日本"', **given)
        assert operator.said(answer) == f"the signal {name} was sent; the job is pending"


def test_a_signal_that_the_job_does_not_wait_for_yet_can_be_sent(dashboard, queue):
    running, operator = queue.claim_job(queue.make()), dashboard.operator
    queue.keep_steps(running.id, "charge")
    assert "Send a signal Supply a value" in words(dashboard.get(f"/jobs/{running.id}"))
    given = {"action": "send", "id": str(running.id), "signal": "packed", "value": "7", "back": "/audit"}
    assert "the signal packed was sent" in operator.said(operator.post("/act", **given, proof=operator.proof()))
    assert queue.value("select value from outlive.signals where job_id = %s", running.id) == 7
    over = queue.make_finished()
    queue.keep_steps(over, "charge")
    shown = words(dashboard.get(f"/jobs/{over}"))
    assert ("Send a signal" in shown, "Supply a value" in shown) == (False, True)


def test_of_ten_thousand_steps_the_last_are_shown_and_each_value_is_behind_its_address(dashboard, queue):
    job = queue.make_finished(Outcome.FAILED)
    queue.execute(
        "insert into outlive.steps (job_id, name, value, attempt, took_s, at)"
        " select %s, 'page#' || n, to_json(repeat('x', case n when 17 then 1000000 else 1 end)), 1, 0.1,"
        " outlive.now() + n * interval '1 s' from generate_series(1, 10000) n",
        [job],
    )
    page = dashboard.get(f"/jobs/{job}")
    assert "9,800 earlier steps are not shown" in words(page)
    assert len(page.text) < 500_000
    shown = dashboard.get(f"/jobs/{job}?step=page%2317")
    assert "Value of the step page#17" in words(shown)
    assert len(shown.text) < 600_000


def test_the_steps_that_have_killed_are_named_whatever_was_said_last_and_can_be_supplied(dashboard, queue):
    job = queue.make(options={"max_crashes": 1})
    error = "the process was killed by SIGSEGV in the step parse:page-17, mail: parsing page 17, in the step"
    queue.run_job(job, Outcome.CRASHED, **KILLED | {"error": error})
    shown = words(dashboard.get(f"/jobs/{job}"))
    assert "Supply a value for parse:page-17 Supply a value for mail The last attempt died in one of these" in shown
    assert 'value="parse:page-17"' in dashboard.get(f"/confirm?action=supply&id={job}&step=parse:page-17").text
    queue.keep_steps(job, "parse:page-17")
    assert "Supply a value for mail The last attempt died in this step" in words(dashboard.get(f"/jobs/{job}"))
    queue.keep_steps(job, "mail")
    assert "Supply a value for" not in words(dashboard.get(f"/jobs/{job}"))


def test_jobs_that_wait_for_each_other_are_drawn_as_a_graph(dashboard, queue):
    first = queue.make("fetch")
    middle = [queue.make("parse", links=links(first)) for _ in range(2)]
    last = queue.make("<b>store", links=links(*middle))
    queue.make("unrelated")
    for job in (first, middle[0], last):
        page = dashboard.get(f"/jobs/{job}").text
        graph = page.split('<svg class="graph"')[1].split("</svg>")[0]
        assert (graph.count('class="node"'), graph.count('class="edge"')) == (4, 4)
        assert f'/jobs/{job}" aria-current="page"' in graph
        assert "&lt;b&gt;store" in graph
        assert "unrelated" not in graph
    assert "Linked jobs" not in words(dashboard.get(f"/jobs/{queue.make()}"))


def test_the_graph_of_finished_jobs_is_drawn_from_the_last_one(dashboard, queue):
    first = queue.make_finished()
    last = queue.make_finished(links=links(first))
    graph = dashboard.get(f"/jobs/{last}").text.split('<svg class="graph"')[1].split("</svg>")[0]
    assert (graph.count('class="node"'), graph.count('class="edge"')) == (2, 1)


def test_the_page_of_a_job_that_has_gathered_others_leads_to_them(dashboard, queue):
    children = [queue.make_finished() for _ in range(2)]
    parent = queue.make_finished()
    queue.execute(
        "insert into outlive.steps (job_id, name, value, attempt, at) values (%s, 'gather', %s, 1, outlive.now()),"
        " (%s, 'gather#2', '[\"no job\"]', 1, outlive.now()), (%s, 'gather#3', '7', 1, outlive.now())",
        [parent, json.dumps([str(child) for child in children]), parent, parent],
    )
    page = dashboard.get(f"/jobs/{parent}")
    graph = page.text.split('<svg class="graph"')[1].split("</svg>")[0]
    assert (graph.count('class="node"'), graph.count('class="edge"')) == (3, 2)
    assert f"Waited for 2 jobs: {str(children[0])[:18]}" in words(page)


def test_the_page_of_a_job_that_was_gathered_leads_to_the_one_that_has_ended_since(dashboard, queue):
    parent = queue.make_finished()
    child = queue.make_finished(options={"gathered_by": str(parent)})
    other = queue.make_finished(options={"gathered_by": "no job"})
    queue.execute(
        "insert into outlive.steps (job_id, name, value, attempt, at) values (%s, 'gather', %s, 1, outlive.now())",
        [parent, json.dumps([str(child)])],
    )
    page = dashboard.get(f"/jobs/{child}")
    assert f"Gathered by job {str(parent)[:18]}" in words(page)
    graph = page.text.split('<svg class="graph"')[1].split("</svg>")[0]
    assert (graph.count('class="node"'), graph.count('class="edge"')) == (2, 1)
    assert '<svg class="graph"' not in dashboard.get(f"/jobs/{other}").text


def test_a_job_that_gathers_others_is_shown_waiting_for_them_until_now(dashboard, queue):
    parent, child = queue.make(), queue.make()
    claimed = queue.claim_job(parent)
    queue.keep_steps(parent, "charge")
    assert queue.run(store.suspend(WORKER, Wait(claimed.token, "gather", needs=[child.bytes]))).outcome == "suspended"
    queue.execute("update outlive.held set since = since - interval '1 hour'")
    page = dashboard.get(f"/jobs/{parent}")
    assert re.search(r"gather jobs 1 suspended \d+ B", words(page))
    [width] = re.findall(r'<rect class="c-suspended" x="[\d.]+" y="0" width="([\d.]+)"', page.text)
    assert float(width) > 100


def test_more_jobs_than_can_be_drawn_are_listed(dashboard, queue):
    first = queue.make()
    queue.make_many(60, links=links(first))
    page = dashboard.get(f"/jobs/{first}")
    assert "These 50 jobs and more wait for each other" in words(page)
    assert 'class="graph"' not in page.text


def test_a_job_begins_again_at_a_step(dashboard, queue):
    job, operator = queue.make_finished(Outcome.FAILED), dashboard.operator
    queue.keep_steps(job, "charge", "label", "mail")
    asked = words(dashboard.get(f"/confirm?action=rerun&id={job}&step=label"))
    assert all(part in asked for part in ("Begin again at the step label?", "The others stay.", str(job)))
    answer = operator.post("/act", action="rerun", id=str(job), step="label", proof=operator.proof(), back="/audit")
    assert operator.said(answer) == "the job begins again at the step label; 2 steps were dropped"
    assert queue.state_of(job) is State.PENDING
    [entry] = queue.run(store.list_audit())
    assert (entry["action"], entry["who"]) == ("rerun", "operator from 127.0.0.1 (dashboard)")


def test_a_rerun_that_is_refused_is_explained(dashboard, queue):
    job, operator = queue.make(), dashboard.operator
    queue.claim_job(job)
    queue.keep_steps(job, "charge")
    answer = operator.post("/act", action="rerun", id=str(job), step="charge", proof=operator.proof())
    assert answer.status_code == 400
    assert "it is running: cancel it, or wait until its attempt has ended" in answer.text
    fields = {"action": "rerun", "id": str(job), "step": "charge"}
    viewer = dashboard.viewer
    assert viewer.post("/act", **fields, proof=viewer.proof()).status_code == 403
    assert operator.post("/act", action="rerun", id="7", step="charge", proof=operator.proof()).status_code == 400


def test_a_value_is_given_in_place_of_a_step(dashboard, queue):
    job, operator = queue.make_quarantined(), dashboard.operator
    assert 'id="step"' in dashboard.get(f"/confirm?action=supply&id={job}").text
    given = {"action": "supply", "id": str(job), "step": "parse", "back": f"/jobs/{job}"}
    answer = operator.post("/act", **given, value="{", proof=operator.proof())
    assert answer.status_code == 400
    assert "it is not JSON" in answer.text
    answer = operator.post("/act", **given, value="7", proof=operator.proof())
    assert operator.said(answer) == "the step parse has this value now; release the job to go on from it"
    again = operator.post("/act", **given, value="8", proof=operator.proof())
    assert again.status_code == 400
    assert "it has kept the step parse" in again.text
    assert "Replace the value of the step parse?" in words(
        dashboard.get(f"/confirm?action=supply&id={job}&replacing=parse")
    )
    operator.post("/act", action="supply", id=str(job), replacing="parse", value="8", proof=operator.proof())
    [step] = queue.run(store.steps_of(job))
    assert (step["value"], step["supplied_by"]) == (b"8", "operator from 127.0.0.1 (dashboard)")
