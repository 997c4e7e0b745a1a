"""Actions on all jobs that match: counted, confirmed, done in portions, and written to the audit."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

import msgspec

from outlive import operations, store
from outlive.operations.verbs import CANCEL, Tally, act
from outlive.states import Outcome
from tests.driving.commands import ended
from tests.driving.making import lane
from tests.waiting import eventually


@contextmanager
def at_a_terminal(url: str, *words: str) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """Run a command whose standard streams are a terminal of 80 columns and 24 lines; gives the other end of it."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "OUTLIVE_DATABASE_URL": url, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    command = [sys.executable, "-m", "outlive", *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, text: str) -> str:
    said = b""
    while text.encode() not in said:
        said += os.read(terminal, 4096)
    return said.decode(errors="replace")


def test_an_action_on_many_jobs_asks_with_their_number(database_url, queue):
    jobs = [queue.make_finished(Outcome.FAILED) for _ in range(2)]
    for answer, code, state in ((b"n\n", 1, "failed"), (b"y\n", 0, "pending")):
        with at_a_terminal(database_url, "retry", "--all") as (command, terminal):
            assert "retry 2 jobs? [y/N]" in read_until(terminal, "[y/N]")
            os.write(terminal, answer)
            read_until(terminal, "nothing was changed" if code else "2 jobs retried")
            assert command.wait(20) == code
        assert {queue.state_of(job) for job in jobs} == {state}


def test_each_part_of_a_filter_chooses_the_jobs_to_change(cli, queue):
    queue.make_many(2, "shop.parse", source="shop")
    queue.make_many(2, args=b'["needle"]')
    queue.make(queue="slow")
    for words, said in (
        (("--source", "shop", "--task", "shop.parse"), "2 jobs cancelled\n"),
        (("--text", "NEEDLE", "--since", "1h"), "2 jobs cancelled\n"),
        (("--worker", "unknown"), "no job matches: nothing was changed\n"),
        (("--state", "pending", "--state", "running"), "1 job cancelled\n"),
    ):
        assert cli("cancel", "--all", "--yes", *words).out == said


def test_a_filter_with_a_wrong_name_is_refused_and_one_that_matches_no_job_is_not(cli, queue):
    queue.make_finished(task="shop.fetch", queue="mail", source="bank")
    for command in (("retry", "--all"), ("cancel", "--all"), ("prune", "--state", "failed")):
        for option, wrong, right in (
            ("task", "shop.fetsh", "shop.fetch"), ("task", "fetch", "shop.fetch"), ("queue", "mial", "mail"),
            ("source", "bnak", "bank"),
        ):  # fmt: skip
            refused = cli(*command, "--yes", f"--{option}", wrong)
            assert refused.code == 2
            assert refused.err == f"outlive: there is no {option} {wrong}; did you mean --{option} {right}?\n"
            ran = cli(*command, "--yes", f"--{option}", right)
            assert (ran.code, ran.out) == (0, "no job matches: nothing was changed\n")
    assert cli("retry", "--all", "--task", "x").err == "outlive: there is no task x\n"


def test_a_flood_that_is_cancelled_and_retried_is_kept_and_runs_behind_the_others(cli, queue):
    flood = queue.make_many(3, args=b'["tenant-7"]')
    other = queue.make(args=b'["tenant-8"]')
    urgent = queue.make(args=b'["tenant-9"]', priority=3)
    of_tenant = ("--all", "--yes", "--task", "work", "--text", "tenant-7")
    assert cli("cancel", *of_tenant, "--state", "pending").out == "3 jobs cancelled\n"
    assert cli("retry", *of_tenant, "--state", "cancelled").out == "3 jobs retried\n"
    claimed = [queue.claim([lane(priority=3), lane()], limit=1)[0].id for _ in range(5)]
    assert claimed[:2] == [urgent, other]
    assert {*claimed[2:]} == {*flood}


def test_ctrl_c_ends_an_action_after_a_portion_and_tells_what_was_done(cli, queue):
    queue.make_many(3000)
    queue.execute(
        "create function slow() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.2); return null; end $$;"
        "create trigger slow after insert or update on outlive.audit execute function slow()"
    )
    process = cli.process("cancel", "--all", "--yes")
    eventually(lambda: queue.value("select count(*) from outlive.audit") == 1, within_s=20)
    process.send_signal(signal.SIGINT)
    ran = ended(process)
    cancelled = queue.value("select count(*) from outlive.attempts")
    assert ran.code == 130
    assert 0 < cancelled < 3000
    assert cancelled % 500 == 0
    assert f"stopped by Ctrl-C: {cancelled:,} jobs cancelled; the other jobs are as they were" in ran.err
    assert queue.values("select jobs from outlive.audit") == [cancelled]
    assert queue.value("select count(*) from outlive.waiting") == 3000 - cancelled


def test_ids_may_be_given_by_their_first_digits(cli, queue):
    job = queue.make_quarantined()
    assert cli("show", str(job)[:30], "--json").json["id"] == str(job)
    assert cli("release", job.hex[:25].upper()).out == "1 job released\n"
    assert queue.state_of(job) == "pending"
    batch = queue.run(store.open_batch(UUID(int=7), "import"))
    assert cli("batches", "show", str(batch)[:33], "--json").json["id"] == str(batch)
    assert cli("jobs", "--batch", str(batch)[:30]).out.startswith("no job matches in ")


def test_the_audit_names_the_jobs_that_an_action_has_changed_the_first_thousand(queue):
    ids = queue.values("select outlive.enqueue('work', '{}') from generate_series(1, 1200)")
    done, tally = queue.make_finished(), Tally(CANCEL)
    operations.run(act(tally, [done, *ids], operations.By("ada", uuid4())), queue.run)
    (entry,) = queue.run(store.list_audit())
    assert (tally.changed, entry["jobs"]) == (1200, 1200)
    assert msgspec.json.decode(entry["what"]) == {"ids": [str(id) for id in ids[:1000]]}


def test_what_operators_do_is_listed_in_the_audit(cli, queue):
    assert cli("audit").out == "no operator has changed anything yet\n"
    job = queue.make_finished(Outcome.FAILED)
    queue.make(source="shop")
    cli("retry", job), cli("cancel", "--all", "--yes", "--task", "work")
    cli("queues", "pause", "slow"), cli("queues", "resume", "slow"), cli("queues", "resume", "slow")
    cli("sources", "set", "shop", "burst=3")
    cli("schedules", "set", "report", "--every", "5m", "--task", "work"), cli("schedules", "remove", "report")
    found = cli("audit", "--json").json
    assert [(row["action"], row["jobs"]) for row in found] == [
        ("remove schedule", 0),
        ("add schedule", 0),
        ("set source", 0),
        ("resume queue", 0),
        ("pause queue", 0),
        ("cancel", 2),
        ("retry", 1),
    ]
    assert found[-1]["what"] == {"ids": [str(job)]}
    assert found[-2]["what"]["task"] == "work"
    assert found[2]["what"] == {"source": "shop", "burst": 3}
    assert all(row["who"].endswith(" (cli)") and "@" in row["who"] for row in found)
    text = cli("audit").out
    assert "burst 3" in text
    assert str(job) in text
