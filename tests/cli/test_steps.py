"""The commands steps, rerun and supply."""

import pytest

import outlive
from outlive import OutliveError, store
from outlive.protocol import MAX_FRAME_BYTES, Wait
from outlive.states import Outcome
from tests.driving.making import WORKER


def test_rerun_lets_a_job_begin_again_at_a_step(cli, queue):
    job = queue.make_finished(Outcome.FAILED)
    queue.keep_steps(job, "charge", "label", "mail")
    ran = cli("rerun", job, "--from", "label")
    assert ran.out == "the job begins again at the step label; 2 steps were dropped\n"
    assert [row["name"] for row in cli("steps", job, "--json").json] == ["charge"]
    assert cli("show", job, "--json").json["state"] == "pending"
    [entry] = cli("audit", "--json").json
    assert (entry["action"], entry["jobs"], entry["what"]) == ("rerun", 1, {"ids": [str(job)], "from": "label"})


def test_a_rerun_that_is_refused_says_why_and_leaves_no_entry(cli, queue):
    job = queue.make()
    queue.claim_job(job)
    queue.keep_steps(job, "charge")
    ran = cli("rerun", job, "--from", "charge")
    assert (ran.code, ran.err) == (2, "outlive: it is running: cancel it, or wait until its attempt has ended\n")
    assert "Missing option '--from'" in cli("rerun", job).err
    assert queue.run(store.list_audit()) == []


def test_supply_keeps_a_value_in_place_of_a_step_and_tells_what_to_do_next(cli, queue):
    job = queue.make_quarantined()
    ran = cli("supply", job, "parse:page-17", '{"words": 0}')
    assert ran.out == "the step parse:page-17 has this value now; release the job to go on from it\n"
    [step] = cli("steps", job, "--json").json
    assert (step["name"], step["value"]) == ("parse:page-17", {"words": 0})
    assert step["supplied_by"].endswith(" (cli)")
    assert step["supplied_by"] in cli("steps", job).out
    [entry] = cli("audit", "--json").json
    assert (entry["action"], entry["what"]) == ("supply", {"ids": [str(job)], "step": "parse:page-17"})


def test_supply_refuses_what_is_not_json_and_what_is_kept_unless_it_is_told_to_replace_it(cli, queue):
    job = queue.make_finished()
    queue.keep_steps(job, "charge")
    ran = cli("supply", job, "label", "paid")
    assert ran.code == 2
    assert ran.err.startswith("outlive: the value can't be kept: it is not JSON")
    assert "it has kept the step charge" in cli("supply", job, "charge", "7").err
    assert queue.value("select value::text from outlive.steps") == '"charge"'
    said = "the step charge has this value now; rerun the job from a later step to go on from it\n"
    assert cli("supply", job, "charge", "7", "--replace").out == said


def test_a_long_value_leaves_room_for_the_names_of_the_steps(cli, queue):
    job = queue.make_finished()
    name = "parse:the-seventeenth-page"
    cli("supply", job, name, f'"{"long " * 100}"')
    listed = cli("steps", job).out
    assert name in listed
    assert " (cli)" in listed


def test_a_signal_that_ends_no_wait_says_where_to_see_what_the_job_waits_for(cli, queue):
    running = queue.claim_job(queue.make())
    queue.run(store.suspend(WORKER, Wait(running.token, "receive:packed", after_s=60.0, signal="packed")))
    said = "the signal packd was sent; the job is suspended: `outlive show` says what it waits for\n"
    assert cli("send", running.id, "packd", "7").out == said


def test_a_signal_that_ends_the_wait_of_a_parked_job_says_that_it_goes_on(cli, queue):
    running = queue.claim_job(queue.make())
    queue.run(store.suspend(WORKER, Wait(running.token, "receive:packed", signal="packed"), may_park=True))
    assert cli("send", running.id, "packed", "7").out == "the signal packed was sent; the job is pending\n"


LONG = f'"{"x" * 200_000}"'
"""More than Linux takes in one argument of a command."""


def test_a_value_that_is_too_long_for_an_argument_comes_from_standard_input(cli, queue):
    running = queue.claim_job(queue.make())
    assert cli("supply", running.id, "parse", "-", input=LONG).code == 0
    assert cli("send", running.id, "packed", "-", input=f"{LONG}\n").code == 0
    assert queue.value("select value::text from outlive.steps") == LONG
    assert queue.value("select value::text from outlive.signals") == f"{LONG}\n"


def test_a_value_from_standard_input_has_the_limits_and_errors_of_the_library(cli, queue):
    running = queue.claim_job(queue.make())
    app = outlive.App(cli.url)
    with pytest.raises(OutliveError) as refused:
        app.get_job(running.id).send("packed", "x" * 2**20)
    assert cli("send", running.id, "packed", "-", input=f'"{"x" * 2**20}"').err == f"outlive: {refused.value}\n"
    app.connections.close()
    told = "a job keeps at most 10,000 steps and 16,777,216 bytes of values"
    assert cli("supply", running.id, "parse", "-", input=f'"{"x" * 2**24}"').err == f"outlive: {told}\n"
    assert "it is not JSON" in cli("send", running.id, "packed", "-", input="").err
    assert "it is not JSON" in cli("send", running.id, "packed", "-", input=b'"\xff"').err
    too_long = cli("send", running.id, "packed", "-", input=b" " * (MAX_FRAME_BYTES + 1))
    assert too_long.err == "outlive: standard input has more than 67,108,864 bytes\n"
    assert queue.value("select count(*) from outlive.signals") == 0
