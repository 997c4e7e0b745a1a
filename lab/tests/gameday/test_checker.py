"""The checker finds what is wrong, and only that: each bug that it is there for, told as a story."""

from dataclasses import replace
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


def test_a_job_that_was_acknowledged_before_it_was_committed_is_missed(story):
    story.history.asks.append(Ask(uuid4(), Answer.OK))
    assert story.broken() == {"lost"}


def test_a_job_that_is_nowhere_is_missed(story):
    story.job("crashed", worker=STEADY)
    story.fault(Kind.CHILD, at_s=story.attempts[-1].ended_s - 0.05, worker=STEADY, pid=story.starts[-1].pid)
    assert story.broken() == {"lost"}


def test_a_job_that_another_job_was_told_is_there_is_missed(story):
    story.effects[0] = replace(story.effects[0], spawned=uuid4())
    assert story.broken() == {"lost"}


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        ("waiting", "unfinished"),
        ("running", "unfinished"),
        ("key", "unfinished"),
        ("blocked", "held"),
        ("quarantined", "held"),
    ],
)
def test_a_job_that_does_not_come_to_its_end_is_named(story, place, rule):
    story.places.append((story.job(), place))
    assert story.broken() == {rule}


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


def test_an_end_without_a_token_finishes_a_job_twice(story):
    id = story.job("succeeded")
    story.attempt(id, "succeeded")
    assert story.broken() == {"finished twice", "effect doubled"}


def test_a_job_that_goes_on_after_its_end_is_finished_twice(story):
    story.places.append((story.job("succeeded"), "waiting"))
    assert story.broken() == {"finished twice"}


def test_a_stale_attempt_that_writes_its_effect_is_seen(story):
    """The token left out: the first attempt's transaction completes the job under the second one's row."""
    id = story.job()
    loss = story.attempt(id, "lost", worker=VICTIM)
    story.fault(Kind.SUPERVISOR, at_s=loss.ended_s - 0.5)
    story.attempt(id, "succeeded")
    story.effects[-1] = Effect(id, loss.token)
    assert story.broken() == {"stale effect", "effect missing"}


def test_an_effect_that_is_there_twice_is_seen(story):
    story.effects.append(story.effects[0])
    assert story.broken() == {"effect doubled"}


def test_a_job_without_complete_may_have_its_effect_twice(story):
    id = story.job("succeeded", task="note")
    story.effects.append(Effect(id, 0))
    assert story.broken() == set()


def test_an_attempt_that_was_run_twice_is_seen(story):
    story.starts.append(replace(story.starts[0], pid=99))
    assert story.broken() == {"begun twice"}


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


def test_a_loss_that_is_counted_twice_is_seen(story):
    [loss] = [one for one in story.attempts if one.outcome == "lost"]
    story.change(loss, losses=2)
    assert story.broken() == {"miscounted"}


def test_a_loss_that_was_taken_back_is_right(story):
    [loss] = [one for one in story.attempts if one.outcome == "lost"]
    [after] = [one for one in story.attempts if one.job == loss.job and one is not loss]
    story.change(after, losses=0)
    assert story.broken() == set()


def test_a_crash_that_is_counted_as_a_failure_is_seen(story):
    [crash] = [one for one in story.attempts if one.outcome == "crashed"]
    story.change(crash, failures=1, crashes=0)
    assert story.broken() == {"miscounted"}


def test_an_attempt_that_is_missing_is_seen(story):
    [loss] = [one for one in story.attempts if one.outcome == "lost"]
    story.attempts.remove(loss)
    assert story.broken() == {"miscounted"}


def test_a_spare_child_may_have_begun_a_job_when_it_is_killed(story):
    crash = crash_one(story)
    story.fault(Kind.SPARE, at_s=crash.ended_s - 0.02, pid=1000 + crash.token)
    assert story.broken() == set()


def test_a_crash_is_not_explained_by_the_kill_of_another_process(story):
    crash = crash_one(story)
    story.fault(Kind.CHILD, at_s=crash.ended_s - 0.02, pid=7)
    assert story.broken() == {"crashed by itself"}


def test_one_kill_explains_only_one_crash(story):
    """Of the jobs that a child was given ahead, only the one that it ran has crashed."""
    crashes = [crash_one(story), crash_one(story)]
    story.starts = [one for one in story.starts if one.token not in {crash.token for crash in crashes}]
    story.fault(Kind.CHILD, at_s=crashes[0].ended_s - 0.02, pid=7)
    assert story.broken() == {"crashed by itself"}
    story.fault(Kind.SPARE, at_s=crashes[1].ended_s - 0.02, pid=8)
    assert story.broken() == set()


def crash_one(story: Story) -> Attempt:
    """The crash of a job that then succeeds."""
    id = story.job("crashed", "succeeded", worker=VICTIM)
    [crash] = [one for one in story.attempts if one.job == id and one.outcome == "crashed"]
    return crash


@pytest.mark.parametrize("kind", [Kind.DEPLOY, Kind.STOP])
def test_a_loss_of_a_worker_that_was_told_to_stop_must_not_count(story, kind):
    [loss] = [one for one in story.attempts if one.outcome == "lost"]
    story.history.faults = [one for one in story.history.faults if one.kind is Kind.CHILD]
    story.fault(kind, at_s=loss.ended_s - 0.8)
    expected = {"blamed"} if kind is Kind.DEPLOY else {"blamed", "given up wrongly", "innocent charged"}
    assert story.broken() == expected


@pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.REVIVAL])
def test_the_death_of_a_zygote_explains_no_loss(story, kind):
    [loss] = [one for one in story.attempts if one.outcome == "lost"]
    story.history.faults = [one for one in story.history.faults if one.kind is Kind.CHILD]
    story.fault(kind, at_s=loss.ended_s - 0.4)
    assert "given up wrongly" in story.broken()


def test_a_worker_that_is_killed_without_a_database_just_after_it_was_told_to_stop_looks_like_one_that_died(story):
    [loss] = [one for one in story.attempts if one.outcome == "lost"]
    story.history.faults = [one for one in story.history.faults if one.kind is Kind.CHILD]
    story.fault(Kind.DEPLOY, at_s=loss.ended_s - 0.8)
    story.workers[VICTIM] = "dead"
    assert story.broken() == {"blamed"}
    story.history.outages.append((loss.ended_s - 3.0, loss.ended_s - 0.5))
    assert story.broken() == set()


def test_a_worker_that_is_told_to_stop_without_a_database_waits_for_it_and_says_goodbye(story):
    [loss] = [one for one in story.attempts if one.outcome == "lost"]
    story.history.faults = [one for one in story.history.faults if one.kind is Kind.CHILD]
    story.fault(Kind.STOP, at_s=loss.ended_s - 0.8)
    story.workers[VICTIM] = "dead"
    story.history.outages.append((loss.ended_s - 3.0, loss.ended_s - 0.5))
    assert story.broken() == {"blamed", "given up wrongly", "innocent charged"}


def test_a_loss_of_a_deploy_that_does_not_count_is_right(story):
    [loss] = [one for one in story.attempts if one.outcome == "lost"]
    story.history.faults = [one for one in story.history.faults if one.kind is Kind.CHILD]
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


def test_a_crash_without_a_kill_is_seen(story):
    story.job("crashed", "succeeded", worker=VICTIM)
    assert story.broken() == {"crashed by itself"}


def test_a_process_that_stays_is_seen(story):
    story.history.left_behind.append("17: python")
    assert story.broken() == {"left behind"}


def test_children_that_survive_their_supervisor_for_long_are_seen(story):
    story.history.faults[-1] = replace(story.history.faults[-1], orphans_gone_s=2.5)
    assert story.broken() == {"left behind"}


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


def test_a_drain_that_takes_too_long_is_seen(story):
    story.history.drain_s = 61.0
    assert story.broken() == {"drained late"}


def test_a_bound_is_what_so_many_kills_prove():
    assert checker.bound(2000) == "none in 2,000 kills: less than 0.15% of kills, at 95 %"
    assert "no bound" in checker.bound(0)
