"""The checker finds what is wrong, and only that: each bug that it is there for, told as a story."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest

from gameday.making import STEADY, VICTIM, Story
from outlive_lab.gameday import checker
from outlive_lab.gameday.history import Answer, Ask, Attempt, Effect, Exit, Kind
from outlive_lab.gameday.options import Bounds


@pytest.fixture
def story() -> Story:
    """A right one: a success, a retry, a crash and a loss that are explained, and an answer that no client heard."""
    told = Story()
    told.job("succeeded")
    told.job("failed", "succeeded", task="note")
    crashed = told.job("crashed", "succeeded")
    [crash, _] = [one for one in told.attempts if one.job == crashed]
    told.fault(Kind.CHILD, at_s=crash.ended_s - 0.05, worker=STEADY, pid=1004)
    lost = told.job()
    loss = told.attempt(lost, "lost", worker=VICTIM)
    told.attempt(lost, "succeeded")
    told.fault(Kind.SUPERVISOR, at_s=loss.ended_s - 0.8)
    told.history.asks.append(Ask(uuid4(), Answer.UNKNOWN))
    return told


def test_a_right_game_breaks_no_rule(story):
    assert story.broken() == set()


def first(story: Story, outcome: str) -> Attempt:
    return next(one for one in story.attempts if one.outcome == outcome)


def crash_one(story: Story, kind: Kind | None = None, pid: int = 0) -> Attempt:
    """The crash of a job that then succeeds, perhaps just after a fault."""
    id = story.job("crashed", "succeeded", worker=VICTIM)
    [crash] = [one for one in story.attempts if one.job == id and one.outcome == "crashed"]
    if kind:
        story.fault(kind, at_s=crash.ended_s - 0.02, pid=pid or 1000 + crash.token)
    return crash


def kill_one(story: Story) -> None:
    story.job("crashed")
    story.fault(Kind.CHILD, at_s=story.attempts[-1].ended_s - 0.05, worker=STEADY, pid=story.starts[-1].pid)


def stay(story: Story, place: str) -> None:
    story.places.append((story.job(), place))


TOLD: dict[str, tuple[Callable[[Story], object], set[str]]] = {
    "acknowledged before it was committed": (lambda s: s.history.asks.append(Ask(uuid4(), Answer.OK)), {"lost"}),
    "a job that is nowhere": (kill_one, {"lost"}),
    "another job was told that it is there": (
        lambda s: s.effects.append(replace(s.effects.pop(0), spawned=uuid4())),
        {"lost"},
    ),
    "finished by an end without a token": (
        lambda s: s.attempt(s.job("succeeded"), "succeeded"),
        {"finished twice", "effect doubled"},
    ),
    "goes on after its end": (lambda s: s.places.append((s.job("succeeded"), "waiting")), {"finished twice"}),
    "an effect twice": (lambda s: s.effects.append(s.effects[0]), {"effect doubled"}),
    "an effect twice without complete": (
        lambda s: s.effects.append(Effect(s.job("succeeded", task="note"), 0)),
        set(),
    ),
    "an attempt that was run twice": (lambda s: s.starts.append(replace(s.starts[0], pid=99)), {"begun twice"}),
    "a loss that is counted twice": (lambda s: s.change(first(s, "lost"), losses=2), {"miscounted"}),
    "a crash that counts as a failure": (
        lambda s: s.change(first(s, "crashed"), failures=1, crashes=0),
        {"miscounted"},
    ),
    "an attempt that is missing": (lambda s: s.attempts.remove(first(s, "lost")), {"miscounted"}),
    "a crash without a kill": (crash_one, {"crashed by itself"}),
    "a crash beside the kill of another process": (lambda s: crash_one(s, Kind.CHILD, pid=7), {"crashed by itself"}),
    "a spare child that had begun a job": (lambda s: crash_one(s, Kind.SPARE), set()),
    "a process that stays": (lambda s: s.history.left_behind.append("17: python"), {"left behind"}),
    "children that survive for long": (
        lambda s: s.history.faults.append(replace(s.history.faults.pop(), orphans_gone_s=2.5)),
        {"left behind"},
    ),
    "a drain that takes too long": (lambda s: setattr(s.history, "drain_s", 61.0), {"drained late"}),
    **{
        f"a job that stays in {place}": (partial(stay, place=place), {rule})
        for rule, places in (("unfinished", ("waiting", "running", "key")), ("held", ("blocked", "quarantined")))
        for place in places
    },
}


@pytest.mark.parametrize("told", TOLD)
def test_what_is_wrong_is_named_by_its_rule(story, told):
    tell, rules = TOLD[told]
    tell(story)
    assert story.broken() == rules


def test_jobs_of_a_game_that_was_cut_short_may_still_wait(story):
    story.places.append((story.job(), "waiting"))
    story.history.cut_short = True
    assert story.broken() == set()


@pytest.mark.parametrize("answer", [None, Answer.REFUSED])
def test_a_job_that_no_client_enqueued_or_that_was_refused_is_unexpected(story, answer):
    id = story.job("succeeded")
    story.history.asks.pop()
    if answer is not None:
        story.history.asks.append(Ask(id, answer, 100.0))
        story.history.outages.append((99.0, 101.0))
    assert story.broken() == {"unexpected"}


def test_a_stale_attempt_that_writes_its_effect_is_seen(story):
    """The token left out: the first attempt's transaction completes the job under the second one's row."""
    id = story.job()
    loss = story.attempt(id, "lost", worker=VICTIM)
    story.fault(Kind.SUPERVISOR, at_s=loss.ended_s - 0.5)
    story.attempt(id, "succeeded")
    story.effects[-1] = Effect(id, loss.token)
    assert story.broken() == {"stale effect", "effect missing"}


def test_reaping_by_id_gives_up_an_attempt_of_a_worker_that_lives(story):
    """The reaper meant the victim's attempt, and by its id it ended the next one, on a worker that no fault touched."""
    id = story.job()
    story.attempt(id, "lost", worker=VICTIM)
    story.attempt(id, "lost", worker=STEADY)
    story.attempt(id, "succeeded", worker=STEADY)
    assert story.broken() == {"given up wrongly", "innocent charged"}


@pytest.mark.parametrize("kind", [Kind.BACKEND, Kind.RESTART])
def test_a_verdict_from_the_session_alone_convicts_the_living(story, kind):
    """Postgres has dropped every session: that is no proof of a death."""
    id = story.job()
    loss = story.attempt(id, "lost", worker=STEADY)
    story.attempt(id, "succeeded")
    story.history.faults.append(replace(story.history.faults[0], kind=kind, worker="", at_s=loss.ended_s - 0.5))
    story.history.outages.append((loss.ended_s - 0.5, loss.ended_s - 0.3))
    story.workers[STEADY] = "dead"
    found = checker.check(story.history, story.found(), Bounds())
    assert {breach.rule for breach in found} == {"given up wrongly", "innocent charged"}
    assert {breach.subject for breach in found} == {str(id), "steady"}


def test_a_worker_with_a_short_lease_may_lose_its_jobs_in_an_outage(story):
    story.workers["short"] = "stopped"
    story.history.short_leases.add("short")
    id = story.job()
    loss = story.attempt(id, "lost", worker="short")
    for one in (loss, story.attempt(id, "succeeded")):
        story.change(one, losses=0)
    assert story.broken() == {"given up wrongly"}
    story.history.outages.append((loss.ended_s - 3.0, loss.ended_s - 1.0))
    assert story.broken() == set()


def test_a_loss_that_was_taken_back_is_right(story):
    loss = first(story, "lost")
    [after] = [one for one in story.attempts if one.job == loss.job and one is not loss]
    story.change(after, losses=0)
    assert story.broken() == set()


def test_one_kill_explains_only_one_crash(story):
    """Of the jobs that a child was given ahead, only the one that it ran has crashed."""
    crashes = [crash_one(story), crash_one(story)]
    story.starts = [one for one in story.starts if one.token not in {crash.token for crash in crashes}]
    story.fault(Kind.CHILD, at_s=crashes[0].ended_s - 0.02, pid=7)
    assert story.broken() == {"crashed by itself"}
    story.fault(Kind.SPARE, at_s=crashes[1].ended_s - 0.02, pid=8)
    assert story.broken() == set()


def unexplained(story: Story) -> Attempt:
    """The loss, without the fault that explains it."""
    story.history.faults = [one for one in story.history.faults if one.kind is Kind.CHILD]
    return first(story, "lost")


@pytest.mark.parametrize("kind", [Kind.DEPLOY, Kind.STOP])
def test_a_loss_of_a_worker_that_was_told_to_stop_must_not_count(story, kind):
    loss = unexplained(story)
    story.fault(kind, at_s=loss.ended_s - 0.8)
    expected = {"blamed"} if kind is Kind.DEPLOY else {"blamed", "given up wrongly", "innocent charged"}
    assert story.broken() == expected


def test_a_worker_that_is_killed_without_a_database_just_after_it_was_told_to_stop_looks_like_one_that_died(story):
    loss = unexplained(story)
    story.fault(Kind.DEPLOY, at_s=loss.ended_s - 0.8)
    story.workers[VICTIM] = "dead"
    assert story.broken() == {"blamed"}
    story.history.outages.append((loss.ended_s - 3.0, loss.ended_s - 0.5))
    assert story.broken() == set()


def test_a_worker_that_is_told_to_stop_without_a_database_waits_for_it_and_says_goodbye(story):
    loss = unexplained(story)
    story.fault(Kind.STOP, at_s=loss.ended_s - 0.8)
    story.workers[VICTIM] = "dead"
    story.history.outages.append((loss.ended_s - 3.0, loss.ended_s - 0.5))
    assert story.broken() == {"blamed", "given up wrongly", "innocent charged"}


def test_a_loss_of_a_deploy_that_does_not_count_is_right(story):
    loss = unexplained(story)
    story.fault(Kind.DEPLOY, at_s=loss.ended_s - 0.8)
    for one in [one for one in story.attempts if one.job == loss.job]:
        story.change(one, losses=0)
    assert story.broken() == set()


def test_a_client_is_refused_only_while_the_database_takes_no_writes(story):
    story.history.asks.append(Ask(uuid4(), Answer.REFUSED, 100.0))
    assert story.broken() == {"refused"}
    story.history.outages.append((98.0, 101.0))
    assert story.broken() == set()


def test_freezes_that_bring_nothing_to_the_fence_prove_nothing(story):
    for n in range(checker.ENOUGH):
        story.fault(Kind.PAUSE, at_s=1000.0 + n)
    story.fenced.append(1)
    story.history.reports_fenced = 1
    assert story.broken() == {
        "fence untried"
    }  # Neither is a completion of one that slept until its job was taken over.
    story.history.faults[-1] = replace(story.history.faults[-1], taken=frozenset({1}))
    assert story.broken() == set()


def test_a_worker_that_ends_by_itself_is_seen_unless_the_database_was_away(story):
    story.history.exits.append(Exit("steady", 4, 100.0))
    assert story.broken() == {"worker ended"}
    story.history.outages.append((99.0, 99.5))
    assert story.broken() == set()


def test_a_worker_that_has_ended_by_itself_in_an_outage_is_declared_dead_later(story):
    story.workers["early"] = "dead"
    assert story.broken() == {"given up wrongly"}
    story.history.exits.append(Exit("early", 4, 100.0))
    story.history.outages.append((99.0, 99.5))
    assert story.broken() == set()


def test_a_bound_is_what_so_many_kills_prove():
    assert checker.bound(2000) == "none in 2,000 kills: less than 0.15% of kills, at 95 %"
    assert "no bound" in checker.bound(0)
