"""The commands jobs, show, killers, stuck, stats and queues: as tables, as JSON, and with nothing to show."""

import re
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest

from outlive import store
from outlive.humanize import figure
from outlive.model import Ended, Schedule
from outlive.protocol import KeptStep, Progress
from outlive.states import Outcome
from tests.driving.making import KILLED, WORKER, links, new_worker

SHOW_KEYS = (
    "id task queue source state args priority created_at ready_at failures crashes losses progress schedule repeats "
    "gathered_by kills_by_others on_failed expires_at deadline waits_for waited_for needed_by attempts running result"
)
ATTEMPT_KEYS = (
    "attempt outcome error exit_code signal peak_memory_bytes cpu_s output stack worker hostname started_at ended_at "
    "memory"
)
HOSTILE = "[red]boo[/red] \x1b[2J\x1b]0;title\x07\x9b31m\r\ntwo\u202e"


def test_jobs_are_listed_newest_first_and_by_filter(cli, queue):
    first, second = queue.make_finished(Outcome.FAILED), queue.make()
    other = queue.make("shop.parse", queue="slow")
    assert [row["id"] for row in cli("jobs", "--json").json] == [str(other), str(second), str(first)]
    assert [row["id"] for row in cli("jobs", "--json", "--limit", 1).json] == [str(other)]
    assert [row["id"] for row in cli("jobs", "--json", "--state", "failed").json] == [str(first)]
    assert [row["id"] for row in cli("jobs", "--json", "--task", "shop.parse").json] == [str(other)]
    assert [row["id"] for row in cli("jobs", "--json", "--queue", "slow").json] == [str(other)]
    table = cli("jobs").out
    assert "ValueError: no" in table
    assert "shop.parse in slow" in table
    assert table.index(str(other)) < table.index(str(first))
    info = queue.info
    nothing = f"no job matches in {info.dbname} on {info.host}, port {info.port}\n"
    assert cli("jobs", "--state", "blocked").out == nothing


def test_a_task_that_no_job_has_is_corrected(cli, queue):
    queue.make_finished(task="shop.flaky")
    for wrong in ("flaky", "shop.flakey"):
        assert cli("jobs", "--task", wrong).out.endswith("; did you mean --task shop.flaky?\n")
    assert "mean" not in cli("jobs", "--task", "shop.flaky", "--state", "failed").out


def test_a_search_finds_arguments_whatever_their_blanks(cli, queue):
    jobs = {str(queue.make(args=args)) for args in (b'{"n":5,"m":1}', b'{"n": 5, "m": 1}')}
    for text in ('"n": 5', '"n":5', '"n":5, "m"'):
        assert {row["id"] for row in cli("jobs", "--text", text, "--json").json} == jobs


def test_times_in_json_have_a_zone(cli, queue):
    queue.make_finished(Outcome.FAILED)
    [row] = cli("jobs", "--json").json
    assert datetime.fromisoformat(row["created_at"]).tzinfo is not None
    assert datetime.fromisoformat(row["completed_at"]).tzinfo is not None


def test_show_as_json_has_exactly_the_keys_that_others_rely_on(cli, queue):
    queue.register_worker()
    job = queue.make(args=b'{"url": "https://x"}')
    queue.run_job(job, Outcome.FAILED)
    shown = cli("show", job, "--json").json
    assert list(shown) == SHOW_KEYS.split()
    assert [list(attempt) for attempt in shown["attempts"]] == [ATTEMPT_KEYS.split()]
    assert shown["state"] == "retryable"
    assert shown["args"] == {"url": "https://x"}
    assert shown["failures"] == 1
    assert shown["attempts"][0]["worker"] == "crawler-1"
    assert shown["attempts"][0]["outcome"] == "failed"
    assert shown["progress"] is None
    assert shown["result"] is None


def test_show_gives_the_result_and_the_progress(cli, queue):
    job = queue.make()
    queue.execute("insert into outlive.progress values (%s, 1, 3, 10, 'page 3', now())", [job])
    queue.run_job(job, result=b'{"n": 12345678901234567890}')
    shown = cli("show", job, "--json").json
    assert shown["result"] == {"n": 12345678901234567890}
    assert (shown["progress"]["current"], shown["progress"]["message"]) == (3, "page 3")
    text = cli("show", job).out
    assert "3 of 10 page 3" in text
    assert "12345678901234567890" in text


def test_show_tells_what_a_job_waits_for_and_which_jobs_wait_for_it(cli, queue):
    failed = queue.make_finished(Outcome.FAILED)
    needed = [*queue.make_many(6), failed]
    job = queue.make(links=msgspec.json.encode({"after": needed}))
    last = queue.make(links=msgspec.json.encode({"after": [job]}))
    text = cli("show", job).out
    first = ", ".join([f"{failed} (failed)", *(f"{one} (pending)" for one in sorted(needed[:4]))])
    assert f"waits for  7 jobs: {first}, …" in " ".join(text.split("\n"))
    assert f"job {failed} failed: retry it, or release this job" in text
    assert f"needed by  1 job: {last}\n" in text
    shown = cli("show", job, "--json").json
    assert shown["waits_for"]["jobs"] == 7
    assert shown["waits_for"]["first"][0] == {"id": str(failed), "state": "failed"}
    assert shown["needed_by"] == {"jobs": 1, "first": [str(last)]}
    assert [row["id"] for row in cli("jobs", "--state", "blocked", "--json").json] == [str(last), str(job)]


def test_show_tells_what_a_finished_job_has_waited_for(cli, queue):
    needed = [queue.make(), queue.make()]
    job = queue.make(links=msgspec.json.encode({"after": needed}))
    for one in (*needed, job):
        queue.run_job(one)
    queue.run(store.prune_jobs([needed[1]]))
    first, second = needed
    assert f"waited for 2 jobs: {first} (succeeded), {second} (deleted)" in " ".join(cli("show", job).out.split("\n"))


def test_show_names_the_jobs_whose_results_are_arguments_and_what_follows_a_failure_and_its_times(cli, queue):
    first, *rest = queue.make_many(8)
    given = {"after": [first, *rest], "on_failed": {"task": "tell"}, "expires_s": 60, "deadline_s": 90}
    args = b'{"limit": 3, "$results": {"page": 0, "rest": [1, {"of": {"a": 2}}, 3, 4, 5, 6, {"is": 7}]}}'
    job = queue.make(args=args, links=msgspec.json.encode(given))
    text = " ".join(cli("show", job).out.split())
    assert f"results page of {first}, rest of {', '.join(map(str, rest[:5]))}, …" in text
    assert "on failed tell" in text
    assert "expires 20" in text
    assert "deadline 20" in text
    shown = cli("show", job, "--json").json
    assert (shown["on_failed"], shown["args"]["$results"]["page"]) == ("tell", 0)
    assert shown["deadline"] > shown["expires_at"] > shown["created_at"]
    unreadable = queue.make(args=b'{"$results": [5]}', links=msgspec.json.encode({"after": [first]}))
    assert cli("show", unreadable).code == 0


def test_show_says_that_a_job_waits_for_a_slot_of_its_key(cli, queue):
    first, _, last = (queue.make(links=links("customer-7", 2)) for _ in range(3))
    assert "waits for a slot of the key customer-7 (2 of 2 taken)" in cli("show", last).out
    assert "customer-7, at most 2 at a time" in cli("show", first).out


def test_show_tells_a_killers_whole_life_with_the_evidence(cli, queue):
    queue.register_worker()
    text = cli("show", queue.make_quarantined(crashes=3)).out
    assert [f"attempt {n}" in text for n in (1, 2, 3, 4)] == [True, True, True, False]
    for evidence in (
        *("SIGSEGV", "peak 512 MB", "cpu 1.5 s", "in read_xref", "opening poison.pdf", "killed its process 3 times"),
    ):
        assert evidence in text
    assert "on crawler-1" in text


def test_show_names_the_worker_that_runs_the_job(cli, queue):
    queue.register_worker()
    job = queue.make()
    assert "no attempt has ended yet" in cli("show", job).out
    queue.claim_job(job)
    assert "running" in (text := cli("show", job).out)
    assert "on crawler-1" in text


def test_an_active_worker_is_seen_now_and_a_dead_one_at_its_last_heartbeat(cli, queue):
    alive, dead = new_worker(), new_worker()
    for worker, name in ((alive, "alive"), (dead, "dead")):
        queue.register_worker(worker, name=name)
    queue.execute("update outlive.workers set last_seen = outlive.now() - interval '26 s' where name = 'alive'")
    queue.execute(
        "update outlive.workers set state = 'dead', last_seen = outlive.now() - interval '13 s' where name = 'dead'"
    )
    lines = {
        line.split()[0]: line.split() for line in cli("workers").out.splitlines() if line.startswith(("alive", "dead"))
    }
    assert lines["alive"][-1] == "now"
    assert 13 <= float(lines["dead"][-3]) < 26


def test_what_a_job_or_a_person_has_counted_is_shown_with_all_its_digits(cli, queue):
    queue.register_worker()
    claimed = queue.claim_job(queue.make())
    queue.run(store.write_progress(WORKER, [Progress(claimed.token, 1_234_567.0, 5_000_000.0, "rows")]))
    assert "1,234,567 of 5,000,000 rows" in cli("show", claimed.id).out
    numbers = {0: "0", 2.5: "2.5", 0.05: "0.05", 99_999: "99999", 100_000: "100,000", 1e300: "1e+300"}
    assert {number: figure(number) for number in numbers} == numbers


def test_killers_come_with_their_evidence(cli, queue):
    assert cli("killers").out == "no job is in quarantine\n"
    job = queue.make_quarantined(crashes=3, task="shop.parse")
    table = cli("killers").out
    for evidence in (str(job), "shop.parse", "SIGSEGV", "peak 512 MB", "in read_xref"):
        assert evidence in table
    leak = queue.make("shop.leak", options={"max_crashes": 1})
    queue.run_job(leak, Outcome.OUT_OF_MEMORY, signal="SIGKILL", killed=True)
    shown = cli("killers").out.partition(str(leak))[2].splitlines()
    assert shown[1:3] == ["  killed its process once (max_crashes = 1)", "  out of memory, SIGKILL"]
    [row] = [row for row in cli("killers", "--json").json if row["task"] == "shop.parse"]
    assert (row["id"], row["signal"], row["crashes"]) == (str(job), "SIGSEGV", 3)
    assert row["peak_memory_bytes"] == 512_000_000
    assert "read_xref" in row["stack"]


def test_a_checkpoint_is_shown_without_progress_too(cli, queue):
    job = queue.make()
    queue.run(
        store.keep_steps(WORKER, [queue.claim_job(job).token], [KeptStep("checkpoint", b'{"page":7}', None, None)])
    )
    assert re.search(r'checkpoint +{"page":7}', cli("show", job).out)
    assert cli("show", job, "--json").json["progress"]["checkpoint"] == {"page": 7}


def test_progress_of_an_earlier_attempt_does_not_look_current(cli, queue):
    queue.register_worker()
    job = queue.make()
    claimed = queue.claim_job(job)
    queue.run(store.write_progress(WORKER, [Progress(claimed.token, 4.0, 5.0, "almost")]))
    assert ", in attempt" not in cli("show", job).out
    queue.end(Ended(claimed.token, Outcome.CRASHED, after_s=0.0))
    assert "4 of 5 almost" in cli("show", job).out
    assert ", in attempt 1" in cli("show", job).out


def test_a_job_whose_lease_has_ended_is_stuck(cli, queue):
    queue.register_worker()
    queue.claim_job(queue.make())
    assert cli("stuck").out == "no job is stuck\n"
    job = queue.make("shop.parse")
    queue.claim_job(job, lease_s=0)
    [row] = cli("stuck", "--json").json
    assert (row["id"], row["locked_by"], row["state"]) == (str(job), "crawler-1", "running")
    assert str(job) in cli("stuck").out


def test_stats_count_by_state_queue_and_task(cli, queue):
    assert cli("stats").out == "there are no jobs\n"
    queue.make_finished()
    queue.make_many(2)
    queue.make("shop.parse", queue="slow")
    stats = cli("stats", "--json").json
    assert stats["jobs"] == 4
    assert stats["by_state"]["pending"] == 3
    assert stats["by_state"]["succeeded"] == 1
    assert stats["by_state"]["failed"] == 0
    assert stats["by_queue"] == {"default": 3, "slow": 1}
    assert stats["by_task"] == {"work": 3, "shop.parse": 1}
    parsing = {"state": "pending", "queue": "slow", "task": "shop.parse", "jobs": 1, "estimated": False}
    assert parsing in stats["counts"]
    assert stats["estimated"] == {"jobs": False, "by_state": [], "by_queue": [], "by_task": []}
    assert "4 jobs" in cli("stats").out


def test_stats_count_the_waiting_jobs_of_each_lane(cli, queue):
    assert cli("stats", "--lanes").out == "no job waits\n"
    queue.make_many(2)
    queue.make("shop.parse", queue="slow", source="shop", priority=3, delay_s=60)
    lanes = cli("stats", "--lanes", "--json").json
    assert [(row["queue"], row["source"], row["task"], row["priority"]) for row in lanes] == [
        ("default", "", "work", 5),
        ("slow", "shop", "shop.parse", 3),
    ]
    assert [(row["waiting"], row["ready"], bool(row["oldest_ready_at"])) for row in lanes] == [
        (2, 2, True),
        (1, 0, False),
    ]
    assert "shop.parse" in cli("stats", "--lanes").out
    assert "shop.parse" not in cli("stats", "--lanes", "--limit", "1").out


def test_a_suspended_job_says_until_when_it_waits_in_the_time_zone_of_its_other_times(cli, queue):
    job = queue.make_suspended()
    local = "select to_char(t at time zone 'Asia/Tokyo', 'YYYY-MM-DD HH24:MI:SS') from outlive.held, unnest("
    there = queue.values(f"{local}array[since, ready_at]) t")
    with cli.process("show", job, TZ="Asia/Tokyo") as shown:
        assert " held       since {} JST: waits until {} JST\n".format(*there) in shown.communicate()[0]


@pytest.mark.parametrize(("zone", "named"), [("Asia/Tokyo", "JST"), ("UTC", "UTC")])
def test_the_header_of_a_column_of_times_names_their_zone(cli, queue, zone, named):
    created = queue.value("select created_at from outlive.jobs where id = %s", queue.make())
    declared = Schedule(name="report", task="work", args=b"{}", cron="0 9 * * *", timezone="UTC")
    queue.run(store.declare_schedules([declared], "shop:app"))
    for words, titles in (("jobs", ["created"]), ("schedules", ["next firing", "then"])):
        with cli.process(words, TZ=zone, COLUMNS="200") as listed:
            shown = listed.communicate()[0]
        assert all(f"{title} {named}" in shown.splitlines()[0] for title in titles), shown
        assert words == "schedules" or f"{created.astimezone(ZoneInfo(zone)):%m-%d %H:%M:%S}" in shown


def test_an_active_worker_whose_heartbeat_is_late_shows_how_old_it_is(cli, queue):
    queue.register_worker()
    for age_s, shown in ((31, "now"), (42, "connected, 4"), (58, "connected, 5")):
        queue.execute("update outlive.workers set last_seen = outlive.now() - %s * interval '1 s'", [age_s])
        line = next(line for line in cli("workers").out.splitlines() if line.startswith("crawler-1"))
        assert shown in line, line


def test_queues_can_be_listed_paused_and_resumed(cli, queue):
    queue.make(queue="slow")
    assert cli("queues", "pause", "slow").err == ""
    [row] = cli("queues", "--json").json
    assert (row["name"], row["paused"], row["waiting"]) == ("slow", True, 1)
    assert "paused" in cli("queues").out
    assert cli("queues", "resume", "slow").out == "queue slow is resumed\n"
    assert cli("queues", "--json").json[0]["paused"] is False
    again = cli("queues", "resume", "slow")
    assert again.code == 1
    assert again.err == "outlive: queue slow was not paused; the paused queues: none\n"


def test_a_queue_of_which_all_jobs_are_suspended_says_so(cli, queue):
    queue.register_worker()
    queue.make_suspended()
    assert "suspended" in cli("queues").out
    [row] = cli("queues", "--json").json
    assert (row["waiting"], row["blocked"], row["suspended"]) == (0, 0, 1)


def test_pausing_an_unused_queue_names_the_others(cli, queue):
    queue.make(queue="slow")
    ran = cli("queues", "pause", "slwo")
    assert (ran.code, "queue slwo is paused" in ran.out) == (0, True)
    assert "check the name; there are slow" in ran.out
    assert ran.err == ""


def test_a_delayed_job_does_not_look_ready(cli, queue):
    queue.make(delay_s=7300.0)
    assert "pending in 2 h" in cli("jobs").out
    queue.make("soon")
    assert "pending in" not in cli("jobs", "--task", "soon").out


def test_what_can_not_be_a_queue_is_not_paused(cli):
    for name in ("", "slow\n", "x" * 201):
        told = cli("queues", "pause", name)
        assert (told.code, "it must be 1 to 200 bytes of printable" in told.err) == (2, True), told.err


DUMP = """Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "/home/me/pool.py", line 3 in wait

Current thread 0x2 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 9 in string_at
  File "/home/me/shop.py", line 7 in parse
  File "/home/me/.venv/lib/python3.11/site-packages/outlive/child/serving.py", line 1 in serve

Thread 0x3 (most recent call first):
  File "/home/me/other.py", line 3 in wait
"""


def test_a_stack_begins_with_the_frames_of_the_users_code(cli, queue):
    job = queue.make(options={"max_crashes": 1})
    queue.run_job(job, Outcome.CRASHED, **KILLED | {"stack": DUMP})
    told = '    File "/home/me/shop.py", line 7 in parse\n      … and 2 more frames, of libraries and of outlive '
    assert told in cli("show", job).out
    assert "shop.py" in (shown := cli("killers").out)
    assert all(name not in shown for name in ("ctypes", "serving", "pool", "other"))
    full = cli("show", job, "--full").out
    assert all(name in full for name in ("ctypes", "serving", "pool", "other"))


def test_options_before_a_queues_command_are_not_silently_ignored(cli):
    ran = cli("queues", "--database-url", "postgresql:///other", "pause", "slow")
    assert ran.code == 2
    assert ran.err == "outlive: put the options after pause, not before it\n"


def test_hostile_text_reaches_the_terminal_as_text(cli, queue):
    job = queue.make(args=b'{"a": "[bold]x[/bold]\\u001b[2J"}', queue="[blink]q")
    evidence = {"error": HOSTILE, "output": HOSTILE, "stack": HOSTILE, "signal": "[u]SIG"}
    while queue.state_of(job) != "quarantined":
        queue.run_job(job, Outcome.CRASHED, after_s=0.0, **evidence)
    for words in (("jobs",), ("show", job), ("killers",), ("queues",), ("stats",)):
        ran = cli(*words)
        assert ran.code == 0
        assert not [char for char in ran.out if char != "\n" and not char.isprintable()], words
    assert "[red]boo[/red]" in cli("show", job).out
    assert "[blink]q" in cli("queues").out
    assert cli("show", job, "--json").json["attempts"][0]["error"] == HOSTILE
    assert "\x9b" not in cli("show", job, "--json").out


def test_a_command_gives_up_on_a_lock_and_names_the_next_step(cli, queue, connect, monkeypatch):
    monkeypatch.setattr("outlive.cli.command.LOCK_WAIT_S", 0.05)
    other = connect()
    other.execute("begin")
    other.execute("lock table outlive.jobs in access exclusive mode")
    refused = cli("jobs")
    assert refused.code != 0
    assert "another transaction holds a lock" in refused.err
    assert "`outlive doctor` names the session" in refused.err
