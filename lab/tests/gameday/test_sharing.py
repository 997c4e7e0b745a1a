"""Jobs that share a process: each bug that their rules are there for, told as a story."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gameday.making import STEADY, VICTIM, Story
from outlive_lab.gameday import times
from outlive_lab.gameday.history import Kept, Kind, Mark, Start
from outlive_lab.gameday.options import Bounds


class Shared(Story):
    """A right one: two jobs share a process that is killed, begin again in another one, and succeed. A third one kills
    each process that it is in, and is quarantined."""

    def __init__(self) -> None:
        super().__init__()
        self.id, self.neighbour = (self.job("succeeded", task="share") for _ in range(2))
        self.starts = [self.begin(self.id, 100, 10.1), self.begin(self.neighbour, 100, 20.1)]
        self.fault(Kind.SHARED, at_s=20.5, worker=STEADY, pid=100)
        self.starts += [self.begin(self.id, 101, 20.6), self.begin(self.neighbour, 101, 20.7)]
        self.harmful = self.job("crashed", task="share exit")
        self.places.append((self.harmful, "quarantined"))
        self.end = next(one for one in self.attempts if one.job == self.neighbour)

    def begin(self, id: object, pid: int, at_s: float) -> Start:
        [token] = [one.token for one in self.attempts if one.job == id]
        return Start(token, pid, id, at_s)  # type: ignore[arg-type]

    def end_as(self, outcome: str) -> None:
        """Before its success, the neighbour ended so."""
        self.attempts.remove(self.end)
        self.attempt(self.neighbour, outcome)
        self.attempt(self.neighbour, "succeeded")
        self.starts = [one for one in self.starts if one.token != self.end.token]
        self.effects = [one for one in self.effects if one.token != self.end.token]

    def take_twice(self, pid: int) -> None:
        """Its step is kept in the first process, and runs again."""
        self.kept.append(Kept(self.id, "take:0", "first", 10.2))
        taken = Mark(self.id, self.starts[0].token, "taken", "take:0", "first", 10.2, 100)
        self.marks += [taken, replace(taken, at_s=20.65, pid=pid)]


@pytest.fixture
def story() -> Shared:
    return Shared()


def test_jobs_that_begin_again_beside_each_other_break_no_rule(story):
    assert story.broken() == set()


TOLD: dict[str, tuple[Callable[[Shared], object], set[str]]] = {
    "a neighbour is charged with the crash": (lambda s: s.end_as("crashed"), {"innocent charged"}),
    "a neighbour fails": (lambda s: s.end_as("failed"), {"innocent charged"}),
    "a neighbour times out": (lambda s: s.end_as("timed_out"), {"innocent charged"}),
    "a neighbour is given up": (lambda s: s.end_as("lost"), {"given up wrongly", "innocent charged"}),
    "a neighbour begins again although its process lives": (
        lambda s: s.starts.append(s.begin(s.id, 102, 20.9)),
        {"begun twice"},
    ),
    "a neighbour begins twice in one process": (
        lambda s: s.starts.append(s.begin(s.id, 101, 20.9)),
        {"begun twice"},
    ),
    "a neighbour has the result of another job": (lambda s: s.mixed.append(s.id), {"mixed up"}),
    "a step that is kept runs again after the death": (lambda s: s.take_twice(101), {"step taken again"}),
    "a step runs twice before the death": (lambda s: s.take_twice(100), {"step taken again"}),
    "a harmful job is not quarantined": (
        lambda s: s.places.__setitem__(0, (s.harmful, "waiting")),
        {"unfinished"},
    ),
}


@pytest.mark.parametrize("bug", TOLD)
def test_a_bug_of_shared_processes_is_seen(story, bug):
    seed, rules = TOLD[bug]
    seed(story)
    assert story.broken() == rules


def test_a_job_whose_neighbour_harms_their_process_begins_again(story):
    story.history.faults.clear()
    assert story.broken() == {"begun twice"}
    [token] = [one.token for one in story.attempts if one.job == story.harmful]
    story.starts.append(Start(token, 100, story.harmful, 15.0))
    assert story.broken() == set()


def test_a_job_whose_process_the_kernel_chose_begins_again(story):
    story.history.faults.clear()
    story.fault(Kind.OOM, at_s=20.5, worker=VICTIM, pid=7)
    assert story.broken() == {"begun twice"}, "that was another worker's"
    story.fault(Kind.OOM, at_s=20.5, worker=STEADY, pid=7)
    assert story.broken() == set()


def test_a_job_whose_process_its_worker_gave_up_for_another_job_begins_again(story):
    story.history.faults.clear()
    story.history.given_up.add(100)
    assert story.broken() == set()


def test_a_failure_while_the_database_is_away_is_right(story):
    story.end_as("failed")
    story.history.outages.append((0.0, 1000.0))
    assert story.broken() == set()


def test_a_failure_of_a_job_whose_machine_was_frozen_is_right(story):
    """It waits for an answer by the clock."""
    story.end_as("failed")
    story.fault(Kind.MACHINE, at_s=20.0)
    story.history.faults[-1].lasted_s = 11.0
    assert story.broken() == set()


def test_a_job_alone_in_its_process_may_be_killed_as_a_spare_one(story):
    story.end_as("crashed")
    crash = next(one for one in story.attempts if one.outcome == "crashed" and one.job == story.neighbour)
    story.starts = [one for one in story.starts if one.token != crash.token]
    story.fault(Kind.SPARE, at_s=crash.ended_s - 0.1, worker=STEADY, pid=7)
    assert story.broken() == set()
    story.starts.append(replace(story.starts[0], pid=7, at_s=crash.ended_s - 0.5))
    assert "innocent charged" in story.broken(), "another job was in it"


def test_the_time_until_the_jobs_of_a_killed_process_begin_again_is_measured(story):
    [found] = [
        one for one in times.measure(story.history, story.found(), Bounds()) if "its jobs begun again" in one.name
    ]
    assert found.samples_s == pytest.approx([0.1, 0.2])
