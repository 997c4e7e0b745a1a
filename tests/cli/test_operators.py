"""The commands retry, repeat, cancel, release and prune: by id and by filter, without changing other jobs."""

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from outlive import store
from outlive.states import Outcome, State, legal
from tests.driving.making import Queue


def test_cancel_ends_waiting_jobs_and_asks_running_jobs_to_stop(cli, queue):
    running, waiting = queue.make(), queue.make()
    queue.claim_job(running)
    assert cli("cancel", running, waiting).out == "1 job cancelled, 1 asked to stop\n"
    assert queue.state_of(waiting) == "cancelled"
    assert "asked to stop" in cli("show", running).out


def test_each_job_that_was_not_changed_is_named_with_the_reason(cli, queue):
    failed, done, missing = queue.make_finished(Outcome.FAILED), queue.make_finished(), uuid4()
    ran = cli("retry", failed, done, missing)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "1 job retried",
        f"not changed: {done}: it has succeeded: repeat it instead",
        f"not changed: {missing} is unknown: there is no such job",
    ]


def test_verbs_tell_as_json_what_became_of_each_job(cli, queue):
    failed, done = queue.make_finished(Outcome.FAILED), queue.make_finished()
    assert cli("retry", failed, done, "--json").json == [
        {"id": str(failed), "state": "pending", "changed": True, "note": None},
        {"id": str(done), "state": "succeeded", "changed": False, "note": "it has succeeded: repeat it instead"},
    ]


def test_repeat_runs_a_succeeded_job_again_as_a_new_one(cli, queue):
    done, failed = (
        queue.make_finished(args=b'{"page": 7}', queue="slow", priority=2),
        queue.make_finished(Outcome.FAILED),
    )
    ran = cli("repeat", done, failed)
    (new,) = queue.values("select id from outlive.jobs where id <> all(%s)", [done, failed])
    assert ran.out.splitlines() == [
        "1 job enqueued again",
        f"{done}: it runs again as job {new}",
        f"not changed: {failed}: only a succeeded job is repeated: retry it instead",
    ]
    shown = cli("show", new, "--json").json
    assert {key: shown[key] for key in ("task", "args", "queue", "priority", "state", "repeats")} == {
        "task": "work",
        "args": {"page": 7},
        "queue": "slow",
        "priority": 2,
        "state": "pending",
        "repeats": str(done),
    }
    assert f"repeats    job {done}" in cli("show", new).out
    assert queue.state_of(done) == "succeeded"
    assert cli("repeat", "--all", "--task", "work").err == "outlive: repeat needs a state: choose one of succeeded\n"
    assert cli("repeat", "--all", "--yes", "--state", "succeeded").out.startswith("1 job enqueued again\n")


def test_a_filter_changes_only_what_it_names(cli, queue):
    mine, other_task, other_queue = (
        queue.make_finished(Outcome.FAILED, **which) for which in ({}, {"task": "shop.parse"}, {"queue": "slow"})
    )
    assert cli("retry", "--all", "--yes", "--task", "work", "--queue", "default").out == "1 job retried\n"
    assert [queue.state_of(job) for job in (mine, other_task, other_queue)] == ["pending", "failed", "failed"]
    assert cli("retry", "--all", "--yes").out == "2 jobs retried\n"
    assert cli("retry", "--all").out == "no job matches: nothing was changed\n"


def test_jobs_are_found_by_how_long_they_have_been_in_their_state(cli, queue):
    old, _ = queue.make(task="old"), queue.make(task="new")
    queue.execute("update outlive.waiting set ready_at = ready_at - interval '1 hour' where id = %s", [old])
    assert [one["task"] for one in cli("jobs", "--older-than", "10m", "--json").json] == ["old"]
    assert cli("cancel", "--all", "--yes", "--older-than", "10m").code == 0
    assert [queue.state_of(old), queue.count("waiting")] == ["cancelled", 1]


def fail_ago(queue: Queue, minutes: float) -> UUID:
    """A job that failed so long ago."""
    queue.set_now(queue.value("select clock_timestamp()") - timedelta(minutes=minutes))
    job = queue.make_finished(Outcome.FAILED)
    queue.let_time_pass()
    return job


def at(queue: Queue, form: str, *, minutes_ago: float) -> str:
    """A time as people here write it."""
    then: datetime = queue.value("select clock_timestamp()") - timedelta(minutes=minutes_ago)
    return then.astimezone().strftime(form)


@pytest.mark.parametrize("form", ["%H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S%z"])
def test_the_jobs_that_failed_between_two_times_are_retried(cli, queue, form):
    before, between, after = (fail_ago(queue, minutes) for minutes in (9, 6, 3))
    since, until = at(queue, form, minutes_ago=8), at(queue, form, minutes_ago=4)
    assert cli("retry", "--all", "--yes", "--since", since, "--older-than", until).out == "1 job retried\n"
    assert [queue.state_of(job) for job in (before, between, after)] == ["failed", "pending", "failed"]


def test_what_is_announced_for_a_filter_by_time_is_what_is_done_later(cli, queue):
    meant = fail_ago(queue, 5)
    asked = cli("retry", "--all", "--since", "15m")
    window = re.search(r"retry 1 job \((--since \S+ --older-than \S+)\): this is not a terminal", asked.err)
    assert window, asked.err
    later = fail_ago(queue, -1)
    assert cli("retry", "--all", "--yes", *window[1].split()).out == "1 job retried\n"
    assert [queue.state_of(job) for job in (meant, later)] == ["pending", "failed"]
    kept = queue.value("select what from outlive.audit")
    times = [datetime.fromisoformat(kept[name]) for name in ("since", "before")]
    assert times == [datetime.fromisoformat(word) for word in window[1].split()[1::2]]
    assert times[0].astimezone().strftime("since %Y-%m-%d %H:%M:%S %Z") in cli("audit").out


def test_nothing_is_changed_by_a_filter_without_all(cli, queue):
    job = queue.make_finished(Outcome.FAILED)
    for words in (["retry"], ["retry", "--state", "failed"], ["retry", job, "--all"], ["retry", job, "--task", "x"]):
        ran = cli(*words)
        assert ran.code == 2
        assert ran.err.startswith("outlive: retry ")
        assert ran.err.count("\n") == 1
    assert queue.state_of(job) == "failed"


def test_a_state_that_a_verb_does_not_take_is_refused_by_the_page_of_states(cli):
    for verb in ("retry", "repeat", "cancel", "release", "prune"):
        taken = [state for state in State if legal(verb, state)]
        for state in set(State) - set(taken):
            ran = cli(verb, *([] if verb == "prune" else ["--all"]), "--state", state)
            assert ran.code == 2
            assert ran.err == f"outlive: {verb} does not apply to {state} jobs: use {', '.join(taken)}\n"


def test_prune_forgets_jobs_past_their_retention(cli, queue):
    queue.set_now(datetime(2020, 1, 1, tzinfo=UTC))
    old, killer = queue.make_finished(), queue.make_quarantined()
    queue.let_time_pass()
    fresh = queue.make_finished()
    queue.run(store.add_schedule("withdrawn", {"task": "work", "every_s": 60.0}))
    queue.execute("update outlive.schedules set withdrawn_at = '2020-01-01Z'")
    assert cli("prune", "--json").json == {"pruned": 1}
    assert [queue.state_of(job) for job in (old, killer, fresh)] == [None, "quarantined", "succeeded"]
    assert queue.count("schedules") == 0, "it prunes all that a worker does"


def test_retention_comes_from_the_configuration(cli, queue, tmp_path_factory):
    done, failed = queue.make_finished(), queue.make_finished(Outcome.FAILED)
    file = tmp_path_factory.mktemp("config") / "mine.toml"
    file.write_text("keep_finished_s = 0\n")
    queue.execute("select pg_sleep(0.001)")
    assert cli("prune", "--config", file).out == "1 job deleted\n"
    assert [queue.state_of(job) for job in (done, failed)] == [None, "failed"]


def test_prune_by_id_and_by_filter(cli, queue):
    done, waiting, killer = queue.make_finished(), queue.make("shop.wait"), queue.make_quarantined()
    ran = cli("prune", done, waiting)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "1 job deleted",
        f"not changed: {waiting} is pending: only finished and quarantined jobs can be pruned",
    ]
    assert cli("prune", "--state", "quarantined", "--older-than", "30d").out == "no job matches: nothing was changed\n"
    assert cli("prune", "--state", "quarantined", "--task", "work", "--yes").out == "1 job deleted\n"
    assert queue.state_of(killer) is None


def test_prune_is_careful_with_filters(cli, queue):
    job = queue.make_finished()
    for words in (["--older-than", "1s"], [job, "--state", "failed"], ["--state", "pending"]):
        ran = cli("prune", *words)
        assert ran.code == 2
        assert ran.err.startswith("outlive: prune ")
    assert cli("prune", "--state", "failed", "--older-than", "soon").code == 2
    assert queue.state_of(job) == "succeeded"
