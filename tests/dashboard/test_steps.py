"""Steps on the page of a job, and what operators do with them there."""

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
    assert "Send the signal packed?" in words(dashboard.get(f"/confirm?action=send&id={running.id}&signal=packed"))
    assert operator.post("/act", **fields, value="{", proof=operator.proof()).status_code == 400
    answer = operator.post("/act", **fields, value='{"parcels": 2}', proof=operator.proof(), back="/audit")
    assert "the signal packed was sent" in operator.said(answer)
    [step] = queue.run(store.steps_of(running.id))
    assert (step["name"], step["value"]) == ("receive:packed#2", b'{"parcels": 2}')
    [entry] = queue.run(store.list_audit())
    assert (entry["action"], entry["who"]) == ("send", "operator from 127.0.0.1 (dashboard)")


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
    assert all(part in asked for part in ("Begin again at the step label?", "The steps before it stay.", str(job)))
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
