"""Durable jobs: each bug that their rules are there for, told as a story, and how long they slept on."""

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from gameday.making import STEADY, STEP_S, Story
from outlive_lab.gameday import times
from outlive_lab.gameday.history import Kept, Kind, Mark, Sent, Start
from outlive_lab.gameday.options import Bounds

RECEIVE = "receive:go on"
WAKE = "wait over to begun again"


class Durable(Story):
    """A right one: a job dies in the middle of a step, keeps it in the next attempt, waits for a signal and for two
    jobs, and is begun again after each wait."""

    def __init__(self) -> None:
        super().__init__()
        self.id = id = self.job(task="endure")
        crash = self.attempt(id, "crashed")
        self.fault(Kind.CHILD, at_s=crash.ended_s - 0.05, worker=STEADY, pid=1000 + crash.token)
        self.mark("taken", "take:0", "first")
        self.stretch()
        self.mark("taken", "take:0", "second")
        self.keep("take:0", "second")
        self.mark("passed", "take:0", "second")
        self.mark("waits", RECEIVE)
        self.sent.append(Sent(id, "signal", self.now_s + 5))
        self.keep(RECEIVE, "signal")
        self.stretch()
        self.mark("passed", "take:0", "second")
        self.mark("passed", RECEIVE, "signal")
        self.mark("waits", "gather", [0.1, 0.2])
        self.children = [self.job("succeeded", task="note") for _ in range(2)]
        del self.history.asks[-2:]  # No client has enqueued them.
        self.keep("gather", [str(child) for child in self.children])
        self.ledger.append(id)
        self.end = self.attempt(id, "succeeded")
        self.mark("passed", "gather", [0.1, 0.2])

    @property
    def now_s(self) -> float:
        return self.token * STEP_S

    def stretch(self) -> None:
        """The job runs until it waits: its attempt has no end in the database."""
        self.token += 1
        self.starts.append(Start(self.token, 1000 + self.token, self.id, self.now_s))

    def mark(self, kind: str, step: str, value: object = None) -> None:
        self.marks.append(Mark(self.id, self.token, kind, step, value, self.now_s + 0.1))

    def keep(self, step: str, value: object) -> None:
        self.kept.append(Kept(self.id, step, value, self.now_s + 0.1))

    def forget(self, step: str) -> None:
        self.kept = [one for one in self.kept if one.step != step]


@pytest.fixture
def story() -> Durable:
    return Durable()


def test_a_right_job_breaks_no_rule(story):
    assert story.broken() == set()


def pass_early(story: Durable) -> None:
    """It goes on while a job that it gathers runs."""
    passed = story.marks[-1]
    last = next(one for one in story.attempts if one.job == story.children[-1])
    story.marks[-1] = replace(passed, at_s=last.ended_s - 0.1)


TOLD: dict[str, tuple[Callable[[Durable], object], set[str]]] = {
    "a later attempt runs a step that is kept": (lambda s: s.mark("taken", "take:0", "third"), {"step taken again"}),
    "an attempt runs a step twice": (
        lambda s: s.marks.append(replace(s.marks[1], value="third")),
        {"step taken again"},
    ),
    "an attempt goes on from another value": (lambda s: s.mark("passed", "take:0", "first"), {"step changed"}),
    "a step is overwritten": (lambda s: s.kept.insert(1, replace(s.kept[0], value="third")), {"step changed"}),
    "a step is lost": (lambda s: s.forget("take:0"), {"step lost"}),
    "a gather returns other results": (lambda s: s.mark("passed", "gather", [0.1]), {"step changed"}),
    "a gather is over too early": (pass_early, {"begun too early"}),
    "a gather enqueues its jobs twice": (lambda s: s.jobs.update({uuid4(): "note"}), {"unexpected", "lost"}),
    "an effect of once is made twice": (lambda s: s.ledger.append(s.id), {"once doubled"}),
    "an effect of once is lost": (lambda s: s.ledger.clear(), {"once lost"}),
    "a signal is lost": (lambda s: s.sent.append(Sent(s.id, "another", 1.0)), {"signal lost"}),
    "a signal is received twice": (lambda s: s.keep(f"{RECEIVE}#2", "signal"), {"signal doubled"}),
    "a signal that was rolled back arrives": (lambda s: s.keep(f"{RECEIVE}#2", "never"), {"signal from nowhere"}),
}


@pytest.mark.parametrize("bug", TOLD)
def test_a_bug_of_durable_jobs_is_seen(story, bug):
    seed, rules = TOLD[bug]
    seed(story)
    assert story.broken() == rules


def test_a_job_that_is_not_woken_is_seen(story):
    asleep = story.job(task="endure")
    story.places.append((asleep, "suspended"))
    assert story.broken() == {"unfinished"}


def woken(story: Durable, name: str = WAKE) -> list[object]:
    [found] = [one for one in times.measure(story.history, story.found(), Bounds()) if one.name == name]
    return [pytest.approx(took_s) for took_s in found.samples_s]


def test_the_time_to_wake_begins_with_the_signal_and_with_the_end_of_the_last_gathered_job(story):
    [child] = [one for one in story.attempts if one.job == story.children[-1]]
    assert story.end.started_s
    assert woken(story) == [STEP_S - 5, story.end.started_s - child.ended_s]


def test_the_time_to_wake_from_a_sleep_begins_when_it_is_over(story):
    story.marks = [replace(one, step="sleep", value=4.0) if one.step == RECEIVE else one for one in story.marks]
    assert woken(story)[0] == STEP_S - 0.1 - 4.0


def test_a_wait_that_was_over_at_once_or_ended_with_its_process_is_no_wake(story):
    waits = [one for one in story.marks if one.kind == "waits"]
    story.marks += [replace(one, kind="passed") for one in waits]
    assert woken(story) == []


def test_a_wake_while_the_database_is_away_is_judged_apart(story):
    story.history.outages.append((0.0, 1000.0))
    assert woken(story) == []
    assert len(woken(story, "wait over, no database or no worker")) == 2


@pytest.mark.parametrize("kind", [Kind.TREE, Kind.ZYGOTE, Kind.STOP, Kind.PAUSE])
def test_a_wake_while_no_worker_could_take_the_job_is_judged_apart(story, kind):
    begun_s = [one.at_s for one in story.starts][2]
    story.fault(kind, at_s=begun_s - 0.5, worker=STEADY)
    assert len(woken(story)) == 1
    assert woken(story, "wait over, no database or no worker") == [STEP_S - 5]
    story.attempts = [replace(one, worker="another") for one in story.attempts]
    assert len(woken(story)) == 2, "another one could"


def test_a_wake_that_takes_too_long_is_missed(story):
    found = times.measure(story.history, story.found(), Bounds())
    assert [one.held for one in found if one.name == WAKE] == [False]
