"""When all faults have stopped, what can begin begins, and nothing is left: the rules find what does not."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

from gameday.making import Story
from gameday.test_replay import Told, at
from outlive_lab.gameday import checker
from outlive_lab.gameday.history import Start
from outlive_lab.gameday.machine import Machine
from outlive_lab.gameday.options import Bounds

QUIET_S = 10.0
UP: dict[str, Any] = {"slots": 1, "app": "app", "trouble": None, "room_until": None}


def judged(told: Told, **started_s: float) -> set[str]:
    """With the seconds in which attempts have begun, by their job."""
    story = Story()
    story.history.quiet_s = QUIET_S
    tokens = {line["row"]["id"]: line["row"]["token"] for line in told.lines if line.get("table") == "running"}
    starts = [Start(tokens[id], 1, uuid4(), at_s) for id, at_s in started_s.items()]
    found = replace(story.found(), lines=told.lines, starts=starts, jobs={})
    breaches = checker.check(story.history, found, Bounds())
    return {one.rule for one in breaches if one.rule == "begun late"}


def waiting(*, busy: bool = False) -> Told:
    """A job that waits beside a worker with one slot, which is busy or idle, since second 3 or 4."""
    told = Told()
    told.job()
    told.worker(**UP)
    if busy:
        told.job("b")
        told.enqueue("b")
        told.claim("b")
    told.enqueue()
    return told


def test_a_job_that_waits_beside_an_idle_worker_begins_late():
    told = waiting()
    told.n = 16
    told.claim()
    assert judged(told) == {"begun late"}


def test_time_before_the_last_fault_does_not_count():
    told = waiting()
    told.n = 13
    told.claim()
    assert judged(told) == set()


def test_a_job_waits_while_no_slot_is_free():
    told = waiting(busy=True)
    told.n = 30
    told.end(told.runs("b"))
    told.claim()
    assert judged(told, b=5.0) == set()


def test_a_job_that_is_claimed_and_does_not_start_begins_late():
    told = waiting()
    told.claim()
    assert judged(told, a=16.0) == {"begun late"}
    assert judged(told, a=14.0) == set()


def test_a_worker_that_can_not_run_anything_has_no_room():
    told = waiting()
    told.worker("update", **UP | {"room_until": at(100)})
    told.n = 30
    told.claim()
    assert judged(told) == set()


def test_unburied_workers_and_what_is_left_over_break_a_rule():
    story = Story()
    story.history.unburied.append("w1")
    story.history.left_over.append(("slot of a key", "k"))
    assert story.broken() == {"not buried", "left over"}


def test_the_machine_gives_each_process_its_share_of_the_cores():
    machine = Machine()
    assert machine.given_s(3.0, 5.0) == 2.0
    machine.note(0.0, stolen=0.0)
    machine.note(10.0, stolen=0.5, share=0.5)
    machine.note(20.0, stolen=0.0)
    assert machine.given_s(4.0, 14.0) == 5.5
    assert machine.given_s(19.0, 22.0) == 3.0


def test_a_look_at_the_machine_adds_no_more_time_than_has_passed():
    machine = Machine()
    for second in (100.0, 101.0, 102.0):
        machine.look(second)
    assert 0.0 < machine.given_s(100.0, 102.0) <= 2.0
