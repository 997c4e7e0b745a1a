"""Steps on the page of a job, and what operators do with them there."""

from outlive import store
from outlive.states import Outcome, State
from tests.dashboard.asking import words


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
