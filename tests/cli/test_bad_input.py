"""Bad input: every command answers with one sentence and the documented exit code, and changes nothing."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from outlive.states import Outcome
from tests.driving.commands import Cli
from tests.driving.databases import new_database

VERBS = ("show", "retry", "cancel", "release", "prune")
BATCH_VERBS = (("batches", "show"), ("batches", "close"), ("batches", "cancel"))
NAMED = (
    *(("queues", "resume"), ("sources", "pause"), ("sources", "resume"), ("schedules", "pause")),
    *(("schedules", "resume"), ("schedules", "run"), ("schedules", "reset"), ("schedules", "remove"), ("drain",)),
)
READING = (
    *("jobs", "killers", "workers", "stuck", "stats", "records", "audit", "batches", "schedules", "sources", "queues"),
    *("doctor", "migrate"),
)
WHOLE = "01a1dd38-0000-7000-8000-000000000000"
NOWHERE = "postgresql://127.0.0.1:1/db"


@pytest.fixture(scope="module")
def database_url(server_url: str) -> Iterator[str]:
    """One database for all of these commands, which change nothing in it."""
    with new_database(server_url) as url:
        yield url


def refused(cli: Cli, *words: str, code: int, says: str) -> None:
    ran = cli(*words)
    told = ran.err or ran.out
    assert (ran.code, told.count("\n")) == (code, 1), (words, ran)
    assert says in told, (words, told)
    assert "Traceback" not in ran.err + ran.out
    assert "bug" not in told


@pytest.mark.parametrize("words", [*((verb,) for verb in VERBS), *BATCH_VERBS], ids=" ".join)
def test_an_id_that_is_unknown_malformed_or_ambiguous(cli, words):
    thing = "batch" if words[0] == "batches" else "job"
    missing = "is unknown" if words[0] in VERBS[1:] else f"there is no {thing}"
    refused(cli, *words, str(uuid4()), code=1, says=missing)
    refused(cli, *words, "ffff-0", code=1, says=f"there is no {thing} whose id begins with ffff-0")
    refused(cli, *words, "not-an-id", code=2, says=f"'not-an-id' is not the id of a {thing}")
    refused(cli, *words, "0" * 33, code=2, says="is not the id of")


@pytest.mark.parametrize("verb", VERBS)
def test_digits_that_several_jobs_begin_with(cli, queue, verb):
    first, *_ = queue.make_many(5)
    refused(cli, verb, str(first)[:4], code=2, says=f"several jobs begin with {str(first)[:4]}: ")
    refused(cli, verb, str(first)[:4], code=2, says="; give more digits")


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        ("retry", "it is under way already"),
        ("cancel", "it has ended already"),
        ("release", "it is not held"),
        ("prune", "only finished and quarantined jobs can be pruned"),
    ],
)
def test_a_job_in_the_wrong_state(cli, queue, verb, says):
    job = queue.make_finished() if verb == "cancel" else queue.make()
    refused(cli, verb, str(job), code=1, says=says)


@pytest.mark.parametrize("words", NAMED, ids=" ".join)
def test_a_name_that_does_not_exist(cli, words):
    code = 1 if words[0] in ("queues", "drain") else 2
    refused(cli, *words, "nothing-here", code=code, says="nothing-here")


@pytest.mark.parametrize(
    "words",
    [
        *((verb, WHOLE) for verb in VERBS),
        *((verb, "01a") for verb in VERBS),
        *((*verb, "01a") for verb in BATCH_VERBS),
        *((*verb, "name") for verb in NAMED),
        *((name,) for name in READING),
        ("retry", "--all", "--yes"),
        ("prune",),
        ("reap", "--once"),
        ("queues", "pause", "slow"),
        ("sources", "set", "shop", "burst=3"),
        ("schedules", "set", "report", "--every", "5m", "--task", "work"),
        ("enqueue", "tests.faults:app", "hold", '["a", "plainly"]'),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_database_that_can_not_be_reached(words):
    refused(Cli(NOWHERE), *words, code=4, says="the database can't be reached")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("jobs", "--since", "yesterday"), "--since is 'yesterday': it must be a duration"),
        (("jobs", "--batch", "xyz"), "'xyz' is not the id of a batch"),
        (("retry", "--all", "--since", "?"), "--since"),
        (("retry",), "retry needs ids, or --all"),
        (("sources", "set", "shop", "speed=3"), "'speed=3' is not KEY=VALUE"),
        (("schedules", "set", "report"), "nothing is set"),
        (("enqueue", "tests.faults:app", "nothing-here"), "has no task 'nothing-here'"),
        (("enqueue", "tests.faults:app", "hold", "[1"), "the arguments are not JSON"),
        (("prune", "--older-than", "1d"), "prune with a filter needs --state"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_options_that_make_no_sense(cli, words, says):
    refused(cli, *words, code=2, says=says)


def test_nothing_is_changed_by_any_of_this(cli, queue):
    failed = queue.make_finished(Outcome.FAILED)
    refused(cli, "retry", "--all", code=2, says="this is not a terminal, so nothing was changed; give --yes")
    assert cli("show", str(failed), "--json").json["state"] == "failed"
    assert queue.value("select count(*) from outlive.audit") == 0


@pytest.mark.parametrize("words", [("jobs", "--task"), ("records", "--key"), ("schedules", "pause"), ("reload",)])
def test_a_word_that_is_not_utf_8(cli, words):
    refused(cli, *words, "\udcff", code=2, says="is not text in UTF-8")
