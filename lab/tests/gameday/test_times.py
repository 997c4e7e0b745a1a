"""How long deaths took, and which of them are judged."""

from dataclasses import replace
from uuid import uuid4

import pytest

from gameday.making import STEADY, VICTIM, Story
from outlive_lab.gameday.history import Fault, Kind
from outlive_lab.gameday.options import Bounds, Options
from outlive_lab.gameday.times import Times, measure
from outlive_lab.gameday.verdict import judge


def samples(story: Story) -> dict[str, list[float]]:
    return {
        one.name: [round(sample, 6) for sample in one.samples_s]
        for one in measure(story.history, story.found(), Bounds())
    }


def times_of(samples_s: list[float], *limits_s: float) -> Times:
    return Times("", [(0.0, took_s) for took_s in samples_s], *limits_s)


def test_a_workers_death_takes_as_long_as_the_last_of_its_attempts():
    story = Story()
    first, second = (story.attempt(uuid4(), "lost", worker=VICTIM) for _ in range(2))
    story.attempts = [replace(first, ended_s=101.2), replace(second, ended_s=101.5)]
    story.fault(Kind.TREE, at_s=100.0)
    assert samples(story)["worker death to claimable again"] == [1.5]


@pytest.mark.parametrize("how", ["no witness", "no database"])
def test_a_death_that_no_worker_could_notice_is_judged_apart(how):
    story = Story()
    loss = story.attempt(uuid4(), "lost", worker=VICTIM)
    story.fault(Kind.TREE, at_s=loss.ended_s - 4.0)
    if how == "no database":
        story.history.outages.append((loss.ended_s - 2.0, loss.ended_s - 1.0))
    else:
        story.history.faults[0] = replace(story.history.faults[0], watched=False)
    assert samples(story)["worker death to claimable again"] == []
    assert samples(story)["worker death, no database or no witness"] == [4.0]


def test_work_goes_on_when_the_first_job_begins_on_the_next_primary():
    story = Story()
    before, after = story.attempt(uuid4(), "succeeded"), story.attempt(uuid4(), "succeeded")
    story.attempts = [replace(before, started_s=99.0), replace(after, started_s=122.5)]
    story.history.faults.append(Fault(kind=Kind.NODE, at_s=100.0, writable_s=120.0))
    assert samples(story)["fault of a primary to the next one"] == [20.0]
    assert samples(story)["next primary to first job begun"] == [2.5]
    story.attempts.pop()
    assert samples(story)["next primary to first job begun"] == [float("inf")]


def test_a_childs_death_is_known_by_its_process():
    story = Story()
    crash = story.attempt(uuid4(), "crashed")
    story.fault(Kind.CHILD, at_s=crash.ended_s - 0.03, worker=STEADY, pid=1001)
    story.fault(Kind.CHILD, at_s=crash.ended_s - 0.02, worker=STEADY, pid=7)
    assert samples(story)["child death to recorded"] == [0.03]


@pytest.mark.parametrize("kind", [Kind.FREEZE, Kind.OVERDUE, Kind.PAUSE])
def test_a_child_of_a_supervisor_that_is_frozen_is_judged_apart(kind):
    story = Story()
    crash = story.attempt(uuid4(), "crashed")
    story.fault(kind, at_s=crash.ended_s - 1.0, worker=STEADY)
    story.fault(Kind.CHILD, at_s=crash.ended_s - 0.9, worker=STEADY, pid=1001)
    assert samples(story)["child death to recorded"] == []
    assert samples(story)["child death, no database or no supervisor"] == [0.9]


def test_a_zygotes_death_takes_as_long_as_the_last_attempt_that_it_left():
    story = Story()
    first, second, later = (story.attempt(uuid4(), "lost", worker=VICTIM) for _ in range(3))
    story.attempts = [
        replace(first, started_s=99.0, ended_s=100.2),
        replace(second, started_s=99.5, ended_s=100.3),
        replace(later, started_s=100.5, ended_s=101.0),
    ]
    story.fault(Kind.REVIVAL, at_s=100.0)
    assert samples(story)["zygote death to claimable again"] == [0.3]
    story.fault(Kind.FREEZE, at_s=99.9)
    assert samples(story)["zygote death to claimable again"] == []
    assert samples(story)["zygote death, no database or no supervisor"] == [0.3]


@pytest.mark.parametrize("kind", [Kind.TREE, Kind.OVERDUE])
def test_a_zygote_whose_worker_died_or_slept_too_is_no_sample(kind):
    story = Story()
    loss = story.attempt(uuid4(), "lost", worker=VICTIM)
    story.fault(Kind.ZYGOTE, at_s=loss.ended_s - 0.5)
    story.fault(kind, at_s=loss.ended_s - 0.4)
    assert samples(story)["zygote death to claimable again"] == []
    assert samples(story)["zygote death, no database or no supervisor"] == []


def test_a_death_behind_a_strangers_lock_is_judged_apart():
    story = Story()
    crash, loss = story.attempt(uuid4(), "crashed"), story.attempt(uuid4(), "lost", worker=VICTIM)
    story.fault(Kind.CHILD, at_s=crash.ended_s - 0.3, worker=STEADY, pid=1001)
    story.fault(Kind.TREE, at_s=loss.ended_s - 4.0)
    locks = Fault(kind=Kind.LOCK, at_s=crash.ended_s - 5.0, jobs=frozenset({crash.job, loss.job}), lasted_s=15.0)
    story.history.faults.append(locks)
    assert samples(story)["child death to recorded"] == samples(story)["worker death to claimable again"] == []
    story.history.faults[-1] = replace(locks, jobs=frozenset({uuid4()}))
    assert samples(story)["child death to recorded"] == [0.3]


def test_no_death_is_missing_for_long_while_the_database_is_there():
    story = Story()
    loss = story.attempt(uuid4(), "lost", worker=VICTIM)
    story.attempts = [replace(loss, ended_s=140.0)]
    story.fault(Kind.TREE, at_s=100.0)
    on_end = "any death, with the database there on end"
    assert samples(story)[on_end] == [40.0]
    story.history.outages = [(126.0, 131.0), (99.0, 109.0), (105.0, 110.0), (150.0, 160.0)]
    assert samples(story)[on_end] == [16.0]
    story.history.outages.append((115.0, 120.0))
    assert samples(story)[on_end] == [9.0]
    story.history.outages.append((139.0, 145.0))
    assert samples(story)[on_end] == [8.0]


def test_no_death_may_take_longer_than_the_bound_for_all():
    times = times_of([0.1] * 200 + [31.0], 2.0, 30.0)
    assert times.percentile(0.99) == 0.1
    assert times.held is False
    assert times.words == "p99 ≤ 2 s, max ≤ 30 s"


def test_a_bound_that_is_missed_makes_the_verdict_wrong():
    story = Story()
    crash = story.attempt(story.job(), "crashed")
    story.attempt(crash.job, "succeeded")
    story.fault(Kind.CHILD, at_s=crash.ended_s - 0.2, worker=STEADY, pid=1001)
    story.history.began_s = crash.started_s or 0.0

    def verdict(bounds: Bounds) -> dict[str, object]:
        options = Options(seed=1, bounds=bounds)
        return judge(options, story.history, story.found(), seconds=1.0, postgres="18").as_json()

    assert verdict(Bounds())["right"] is False
    right = verdict(Bounds(child_death_s=0.3))
    assert right["right"] is True
    assert (right["lost"], right["jobs_finished"], right["throughput"]) == (
        0,
        1,
        [(n, int(n == 11)) for n in range(12)],
    )


def test_time_in_which_the_host_ran_other_machines_does_not_count():
    story = Story()
    loss = story.attempt(uuid4(), "lost", worker=VICTIM)
    story.fault(Kind.TREE, at_s=loss.ended_s - 4.0)
    for before_s, stolen in ((9.0, 0.0), (3.0, 0.0), (-1.0, 0.5)):
        story.history.machine.note(loss.ended_s - before_s, stolen=stolen)
    assert samples(story)["worker death to claimable again"] == [2.5]
