"""What the pages show."""

import html
import re
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outlive import store
from outlive.model import Ended, MemoryCourse, SourceLimits
from outlive.output import LiveOutput
from outlive.protocol import Progress
from outlive.states import Outcome
from tests.dashboard.asking import Dashboard, make_hostile, words
from tests.driving.commands import Cli
from tests.driving.databases import new_database
from tests.driving.making import KILLED, WORKER, Queue, new_worker
from tests.waiting import eventually


def test_the_overview_says_what_needs_attention(dashboard: Dashboard, queue: Queue) -> None:
    assert "No jobs and no workers yet" in words(dashboard.get("/"))
    queue.make_quarantined()
    queue.make_finished(Outcome.FAILED)
    queue.make()
    queue.register_worker(state="dead")
    for told in (
        "1 job is in quarantine",
        "1 job is ready and no worker is active",
        "1 worker died in the last hour: crawler-1",
        "1 of 2 attempts died in the last hour",
        "1 job failed for good in the last hour",
    ):
        eventually(lambda told=told: told in words(dashboard.get("/")), what=told)  # type: ignore[misc]


def test_the_overview_names_problems_first_and_leads_to_each_and_always_shows_the_slots(dashboard, queue):
    queue.make_quarantined()
    queue.register_worker()
    queue.claim_job(queue.make())
    queue.run(store.register_sources([SourceLimits(f"shop-{n}") for n in range(9)]))
    for n in range(9):
        queue.run(store.count_outcomes([(f"shop-{n}", None, False)] * 5))
    queue.execute("update outlive.workers set trouble = 'it is out of memory'")
    page = dashboard.get("/").text
    levels = re.findall('<li class="(bad|warn)"><a', page)
    assert levels == ["bad"] + ["warn"] * 10
    assert "and 3 more" in page
    assert "1 worker is active , with 4 slots, 1 busy." in words(dashboard.get("/"))


@pytest.mark.parametrize(("days", "shown"), [(0.02, ["hour", "day", "week"]), (0.5, ["day", "week"]), (6, ["week"])])
def test_the_charts_show_the_last_hour_day_or_week(dashboard, queue, days, shown):
    queue.make_quarantined(crashes=1)
    queue.execute("update outlive.attempts set ended_at = outlive.now() - %s * interval '1 day'", [days])
    for span in ("hour", "day", "week"):
        deaths = "1 of 1" if span in shown else "0 of 0"
        assert f"{deaths} attempts died in the last {span}" in words(dashboard.get(f"/?span={span}"))


def test_a_job_that_has_left_its_state_since_it_was_found_is_not_listed(dashboard, queue):
    """A search keeps what it has found for some seconds."""
    running = [queue.claim_job(queue.make()) for _ in range(2)]
    address = "/jobs?state=running&text=work"
    assert all(str(one.id) in dashboard.get(address).text for one in running)
    queue.end(Ended(running[0].token))
    assert [str(one.id) in dashboard.get(address).text for one in running] == [False, True]


def test_a_pending_job_says_since_when_it_is_ready_and_its_arguments_come_before_its_attempts(dashboard, queue):
    job = queue.make(args=b'{"page": 7}')
    said = words(dashboard.get(f"/jobs/{job}"))
    assert "Ready 20" in said
    assert "Next try" not in said
    assert said.index("Arguments") < said.index("No attempt has ended yet")


def test_the_last_error_of_a_job_comes_before_its_arguments(dashboard, queue):
    job = queue.make()
    for said in ("the first", "the second"):
        queue.run_job(job, Outcome.FAILED, error=said, after_s=0.0)
    shown = words(dashboard.get(f"/jobs/{job}"))
    assert "Last error the second attempt 2" in shown.split("Arguments")[0]
    assert "the first" not in shown.split("Arguments")[0]


def test_a_job_of_the_list_shows_its_arguments_its_run_time_and_its_worker(dashboard, queue):
    queue.register_worker()
    queue.run_job(queue.make(args=b'{"url": "https://example.org"}'))
    queue.execute("update outlive.attempts set started_at = ended_at - interval '90 seconds'")
    shown = words(dashboard.get("/jobs?state=succeeded"))
    for told in ("https://example.org", "90 s", "crawler-1", "1 job matches"):
        assert told in shown
    assert 'href="/jobs?worker=crawler-1"' in dashboard.get("/jobs").text


def test_what_the_list_of_jobs_cuts_is_whole_under_the_pointer(dashboard, queue):
    error = "ValueError: " + "no such row " * 15
    queue.run_job(queue.make(args=b'{"url": "https://example.org/%s"}' % (b"x" * 90)), Outcome.FAILED, error=error)
    page = html.unescape(dashboard.get("/jobs").text)
    assert f'title="{error.strip()}"' in page
    assert 'title="{"url": "https://example.org/' + "x" * 90 + '"}"' in page


def test_the_oldest_jobs_come_first_where_they_are_wanted_on_all_pages(dashboard, queue):
    jobs = [str(job) for job in queue.make_many(60)]
    first = dashboard.get("/jobs?state=pending&sort=oldest").text
    assert re.findall('title="([^"]+)">[^<]+</a>', first) == jobs[:50]
    assert "60 jobs match" in first
    [more] = re.findall('href="([^"]+)" rel="next">Newer', first)
    assert re.findall('title="([^"]+)">[^<]+</a>', dashboard.get(more.replace("&amp;", "&")).text) == jobs[50:]


def test_of_jobs_that_wait_those_that_are_due_come_first_unless_the_others_are_wanted(dashboard, queue):
    later, soon, now = [str(queue.make(delay_s=delay_s)) for delay_s in (86400.0, 60.0, 0.0)]
    for address, expected in (
        ("state=pending", [now, soon, later]),
        ("state=pending,retryable", [now, soon, later]),
        ("state=pending&sort=newest", [later, soon, now]),
        ("", [now, soon, later]),
        ("sort=oldest", [later, soon, now]),
    ):
        assert re.findall('title="([^"]+)">[^<]+</a>', dashboard.get(f"/jobs?{address}").text) == expected, address


def ran_in(queue: Queue, seconds: float, **wanted: Any) -> str:
    """A job that has succeeded after so many seconds."""
    claimed = queue.claim_job(queue.make(**wanted))
    queue.set_now(later_s=seconds)
    queue.end(Ended(claimed.token))
    queue.set_now()
    return str(claimed.id)


def test_the_jobs_that_ran_the_longest_come_first_where_they_are_wanted(dashboard, queue, monkeypatch):
    queue.set_now()
    short, long, longer = (ran_in(queue, seconds) for seconds in (1.0, 90.0, 600.0))
    queue.make()
    for address, expected in (("", [longer, long, short]), ("&state=succeeded,pending", [longer, long, short])):
        page = dashboard.get(f"/jobs?sort=longest{address}").text
        assert re.findall('title="([^"]+)">[^<]+</a>', page) == expected
        assert "of the newest" not in page
    assert "3 jobs match" in words(dashboard.get("/jobs?sort=longest&task=work"))
    monkeypatch.setattr("outlive.dashboard.searches.MANY", 2)
    shown = words(dashboard.get("/jobs?sort=longest&state=succeeded"))
    assert "the longest first, of the newest 2 that match (a filter by time takes others)" in shown
    assert "3 jobs match" in shown


def test_a_search_for_the_longest_jobs_of_a_worker_goes_on_by_itself(dashboard, queue, monkeypatch):
    monkeypatch.setattr("outlive.dashboard.searches.AT_ONCE", 2)
    monkeypatch.setattr("outlive.dashboard.searches.PATIENCE_S", 0.0)
    queue.set_now()
    jobs = [ran_in(queue, seconds) for seconds in (90.0, 1.0, 60.0)]
    queue.execute("update outlive.attempts set worker_name = 'crawler-1'")
    looks = [dashboard.get("/jobs?sort=longest&worker=crawler-1").text for _ in range(2)]
    shown = [re.findall('title="([^"]+)">[^<]+</a>', look) for look in looks]
    assert [len(set(shown[0])), shown[1]] == [2, [jobs[0], jobs[2], jobs[1]]]
    assert ["and the search goes on" in look for look in looks] == [True, False]


def test_the_list_of_running_jobs_begins_with_the_longest_of_all(dashboard, queue):
    queue.set_now()
    first, second = queue.make_many(2)
    queue.claim_job(second)
    queue.set_now(later_s=60.0)
    queue.claim_job(first)
    page = dashboard.get("/jobs?state=running&sort=longest").text
    assert re.findall('title="([^"]+)">[^<]+</a>', page) == [str(second), str(first)]
    assert page.count(">longest</option>") == 1


def test_failed_jobs_are_grouped_by_error_and_each_group_leads_to_its_jobs(dashboard, queue, monkeypatch):
    for page in range(3):
        error = f"ValueError: page {page} has no title\n  File 'a.py'"
        queue.run_job(queue.make(), Outcome.FAILED, error=error, final=True)
    queue.run_job(queue.make("mail"), Outcome.FAILED, error="OSError: no route", final=True)
    [grouped] = re.findall('<a href="([^"]+)">Group these by error', dashboard.get("/jobs?state=failed").text)
    page = dashboard.get(html.unescape(grouped))
    assert "ValueError: page … has no title work 3" in words(page)
    assert "OSError: no route mail 1" in words(page)
    [pages, mails] = re.findall('<td data-label="Error" class="name"><a href="([^"]+)"', page.text)
    assert "3 jobs match" in words(dashboard.get(html.unescape(pages)))
    assert "1 job matches" in words(dashboard.get(html.unescape(mails)))
    monkeypatch.setattr("outlive.dashboard.searches.MANY", 2)
    shown = words(dashboard.get("/jobs?sort=errors&queue=default"))
    assert "without its numbers and ids, of the newest 2 that match" in shown
    assert "OSError: no route mail 1" in shown


def test_the_list_of_a_worker_says_that_suspended_jobs_have_none(dashboard, queue):
    queue.make_suspended()
    said = "A job has no worker while it is suspended"
    for address, told in (("", True), ("&state=suspended,failed", True), ("&state=failed", False)):
        assert (said in dashboard.get(f"/jobs?worker=crawler-1{address}").text) is told


def test_a_search_that_takes_longer_than_a_page_goes_on_by_itself(dashboard, queue, monkeypatch):
    monkeypatch.setattr("outlive.store.finding.LOOK", 10)
    monkeypatch.setattr("outlive.dashboard.searches.PATIENCE_S", 0.0)
    needle = str(queue.make(args=b'["needle"]'))
    queue.make_many(25)
    looks = [dashboard.get("/jobs?text=needle").text for _ in range(3)]
    assert [needle in look for look in looks] == [False, False, True]
    assert [f"{seen} jobs were searched so far, and the search goes on" in looks[n] for n, seen in ((0, 10), (1, 20))]
    assert "goes on" not in looks[2]


def test_a_search_stops_at_its_reach_and_goes_on_from_there_if_it_is_told_to(dashboard, queue, monkeypatch):
    monkeypatch.setattr("outlive.store.finding.LOOK", 10)
    monkeypatch.setattr("outlive.dashboard.searches.PATIENCE_S", 0.0)
    monkeypatch.setattr("outlive.dashboard.searches.REACH", 20)
    needle = str(queue.make(args=b'["needle"]'))
    queue.make_many(25)
    dashboard.get("/jobs?text=needle")
    first = dashboard.get("/jobs?text=needle").text
    assert "20 jobs were searched. Older ones may match." in first
    assert "goes on" not in first
    [more] = re.findall('href="([^"]+)" rel="next">Look further', first)
    last = dashboard.get(more.replace("&amp;", "&")).text
    assert needle in last
    assert "Look further" not in last


def test_a_rare_state_beside_many_jobs_is_counted_exactly_on_every_page(dashboard, queue, database_url):
    queue.make_many(12_000)
    queue.execute("update outlive.waiting set failures = 1 where id in (select id from outlive.waiting limit 2)")
    assert "2 retryable" in words(dashboard.get("/"))
    assert "≈12,000 pending" in words(dashboard.get("/"))
    assert "2 jobs match" in words(dashboard.get("/jobs?state=retryable"))
    assert "≈12,000 jobs match" in words(dashboard.get("/jobs?state=pending"))
    assert "≈12,000" in words(dashboard.get("/queues"))
    counts = Cli(database_url)("stats", "--json").json
    assert (counts["by_state"]["retryable"], counts["estimated"]["by_state"]) == (2, ["pending"])
    assert "≈12,000" in Cli(database_url)("stats").out


def test_a_worker_is_busy_in_its_slots_and_what_it_has_claimed_ahead_is_told_apart(dashboard, queue, database_url):
    queue.register_worker()
    queue.execute("update outlive.workers set slots = 4")
    queue.make_many(10)
    queue.claim(limit=10)
    assert "4 of 4, 6 claimed ahead" in words(dashboard.get("/workers"))
    assert "4 of 4, 6 claimed ahead" in " ".join(Cli(database_url)("workers").out.split())


def test_an_active_worker_was_seen_now_and_a_late_or_dead_one_when_its_last_heartbeat_came(dashboard, queue):
    long_ago = queue.value("select now() - interval '42 s'")
    for name, state, seen in (("active", "active", None), ("frozen", "active", long_ago), ("lost", "dead", None)):
        queue.register_worker(new_worker(), name=name, state=state, last_seen=seen)
    active, late, dead = re.findall('data-label="Heartbeat"[^>]*>(.*?)</td>', dashboard.get("/workers").text)
    assert (active, late.startswith('<span class="warn"><time'), dead.startswith("<time")) == ("now", True, True)


def test_a_wrong_value_of_the_filter_is_told_beside_it(dashboard):
    for query, told in (
        ("since=yesterday", "it must be a duration"),
        ("before=x", "it must be a duration"),
        ("since=25:05", "it must be a duration"),
        ("since=14:05&zone=Mars", "the time zone &#39;Mars&#39; is not known here"),
        ("batch=x", "is not the id of a batch"),
    ):
        answer = dashboard.get(f"/jobs?task=import&{query}")
        assert answer.status_code == 400
        assert told in answer.text
        assert f'value="{query.split("=")[-1]}"' in answer.text
        assert 'value="import"' in answer.text


def test_a_time_that_has_its_zone_is_taken_from_a_browser_whose_zone_is_not_known_here(dashboard, queue):
    job = str(queue.make())
    past, now = "2026-01-01T14:05Z", f"{queue.value('select clock_timestamp()'):%Y-%m-%dT%H:%M:%SZ}"
    answers = [dashboard.get(f"/jobs?{query}&zone=Mars") for query in (f"since={past}", f"before={past}", "since=2h")]
    assert [(one.status_code, job in one.text) for one in answers] == [(200, True), (200, False), (200, True)]
    wrong = dashboard.get(f"/jobs?since={now}&before=14:05&zone=Mars")
    assert "add one to the time, as in 2026-11-19T14:05Z" in wrong.text
    assert re.findall(r'name="(\w+)"[^>]*aria-invalid', wrong.text) == ["before"]


def test_a_page_and_a_command_find_a_job_by_its_id_as_pages_show_it(dashboard, queue, database_url):
    job, _ = str(queue.make()), queue.make()
    [shown] = re.findall(f'title="{job}">([^<]+)<', dashboard.get("/jobs").text)
    assert len(shown) < len(job)
    assert re.findall('title="([^"]+)">[^<]+</a>', dashboard.get(f"/jobs?text={shown}").text) == [job]
    assert job in Cli(database_url)("show", shown).out


def test_a_death_is_a_problem_for_an_hour(dashboard, queue):
    queue.register_worker(state="dead")
    assert "1 worker died in the last hour" in words(dashboard.get("/"))
    queue.execute("update outlive.workers set died_at = outlive.now() - interval '61 minutes'")
    queue.execute("update outlive.workers set last_seen = died_at")
    assert "worker died" not in words(dashboard.get("/"))
    assert "dead" in words(dashboard.get("/workers"))


@pytest.mark.parametrize(
    "memory",
    [
        "[]",
        '"<script>"',
        '{"limit_bytes": 1, "at_s": [], "used_bytes": []}',
        '{"limit_bytes": null, "at_s": [0, 1], "used_bytes": [5]}',
        '{"limit_bytes": -7, "at_s": [0, 1], "used_bytes": [-5, 2]}',
    ],
)
def test_a_course_of_memory_that_cannot_be_read_hides_nothing_else(memory, dashboard, queue):
    job = queue.make("pdf.render", options={"max_crashes": 1})
    queue.run_job(job, Outcome.CRASHED, **KILLED | {"memory": memory.encode()})
    assert "peak 512 MB" in words(dashboard.get(f"/jobs/{job}"))


def test_the_page_of_a_killer_says_why_its_process_died(dashboard, queue):
    stack = (
        '  File "/home/me/shop/render.py", line 7 in read_xref\n  File "/usr/lib/python3.11/json/x.py", line 1 in y\n'
    )
    dump = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n" + stack
    memory = msgspec.json.encode(MemoryCourse(256_000_000, [0.0, 1.5, 3.0], [0, 90_000_000, 260_000_000]))
    evidence = KILLED | {"stack": dump, "memory": memory}
    job = queue.make("pdf.render", args=b'{"path": "poison.pdf"}', options={"max_crashes": 1})
    queue.run_job(job, Outcome.CRASHED, **evidence)
    shown = words(dashboard.get(f"/jobs/{job}"))
    assert "SIGSEGV: it touched memory that is not its own" in shown
    assert "peak 512 MB" in shown
    assert "opening poison.pdf" in shown
    assert "Memory against its limit of 256 MB 0 256 MB 0 s 3 s" in shown
    assert shown.index("render.py") < shown.index("All frames") < shown.index("json/x.py")


def test_the_page_of_a_running_job_shows_what_it_says_and_how_its_memory_changes(dashboard, queue):
    running = queue.claim_job(queue.make())
    assert "Its worker is asked what it has said" in words(dashboard.get(f"/jobs/{running.id}"))
    course = MemoryCourse(256_000_000, [0.0, 3.0], [0, 90_000_000])
    queue.run(store.write_output(WORKER, [LiveOutput(running.token, 1, "page 7\n", course)]))
    shown = words(dashboard.get(f"/jobs/{running.id}"))
    assert "Memory against its limit of 256 MB 0 256 MB 90 MB 0 s 3 s page 7" in shown


def test_the_page_of_a_running_job_shows_large_counts_with_all_their_digits(dashboard, queue):
    running = queue.claim_job(queue.make())
    queue.run(store.write_progress(WORKER, [Progress(running.token, 1_234_567.0, 5_000_000.0, "rows")]))
    assert "1,234,567 of 5,000,000 · rows" in words(dashboard.get(f"/jobs/{running.id}"))


def test_of_more_sources_than_a_page_shows_those_in_trouble_come_first_and_it_says_so(dashboard, queue):
    names = [f"shop-{n:04}" for n in range(1001)]
    queue.run(store.register_sources([SourceLimits(name, rate_limit_per_minute=1_000_000) for name in names[1:]]))
    assert "first 1,000 sources" in (shown := words(dashboard.get("/sources")))
    assert "1,000,000/min" in shown
    queue.run(store.register_sources([SourceLimits(names[0], rate_limit_per_minute=0.05)]))
    queue.run(store.count_outcomes([("shop-1000", None, False)]))
    shown = words(dashboard.get("/sources"))
    assert "0.05/min" in shown
    assert shown.index("shop-1000") < shown.index("shop-0000")
    assert "shop-0999" not in shown
    assert "first 1,000 sources, those in trouble first. outlive sources --limit 100000 lists more." in shown


def test_a_source_is_found_by_the_beginning_of_its_name(dashboard, queue, database_url):
    names = [f"shop-{n:04}" for n in range(1001)]
    queue.run(store.register_sources([SourceLimits(name) for name in [*names, "100%"]]))
    shown = words(dashboard.get("/sources?name=shop-100"))
    assert "shop-1000 closed 0 of 5 no limit Pause Set" in shown
    assert "shop-0100" not in shown
    assert "No source has a name that begins with shop-2" in words(dashboard.get("/sources?name=shop-2"))
    assert "No source has a name that begins with %" in words(dashboard.get("/sources?name=%25"))
    cli = Cli(database_url)
    assert [row["name"] for row in cli("sources", "--name", "shop-100", "--json").json] == ["shop-1000"]
    assert "no source has a name that begins with shop-2" in cli("sources", "--name", "shop-2").out


def test_queues_without_jobs_are_listed_and_each_has_its_rate_and_its_waits(dashboard, queue):
    assert "No queue is known yet" in words(dashboard.get("/queues"))
    queue.register_task(queue="mail")
    queue.make_finished(queue="busy")
    queue.register_worker()
    queue.make_suspended(queue="asleep")
    eventually(lambda: "mail on 1 worker 0 0 0 0 0 0 0" in words(dashboard.get("/queues")), what="a queue without jobs")
    assert "asleep on 1 worker 0 0 0 0 1 0" in words(dashboard.get("/queues"))
    assert re.search(r"busy on 1 worker 0 0 0 0 0 0 0\.2 [\d.]+ m?s [\d.]+ m?s Pause", words(dashboard.get("/queues")))


def test_the_page_of_a_job_leads_to_what_is_paused_and_shows_no_command(dashboard, queue):
    queue.run(store.register_sources([SourceLimits("shop")]))
    job = queue.make(source="shop")
    queue.run(store.pause_queue("default"))
    page = dashboard.get(f"/jobs/{job}")
    assert "its queue default is paused; resume it" in words(page)
    assert '<a href="/queues"><bdi>resume it' in page.text
    queue.run(store.resume_queue("default"))
    queue.run(store.count_outcomes([("shop", None, False)] * 5))
    page = dashboard.get(f"/jobs/{job}")
    assert "the breaker of its source shop is open until" in words(page)
    assert '<a href="/sources?name=shop">' in page.text


def test_a_queue_that_no_worker_serves_or_whose_source_is_shut_is_not_just_on(dashboard, queue):
    queue.register_worker()
    queue.execute("update outlive.workers set queues = '{mail}'")
    queue.run(store.register_sources([SourceLimits("shop"), SourceLimits("bank"), SourceLimits("post")]))
    queue.run(store.count_outcomes([("shop", None, False)] * 5))
    queue.run(store.pause_source("bank"))
    for source in ("shop", "bank", "post"):
        queue.make(queue="mail", source=source)
    queue.make(queue="slow")
    shown = words(dashboard.get("/queues"))
    assert "mail on 1 worker bank : paused shop : breaker open 3 3" in shown
    assert "slow no worker 1 1" in shown


def test_each_count_of_a_queue_leads_to_as_many_jobs(dashboard, queue):
    queue.make_many(2)
    queue.make(delay_s=60.0)
    queue.claim_job(queue.make())
    queue.run(store.block([queue.make()], "until Monday"))
    queue.make_suspended()
    queue.make_quarantined()
    page = dashboard.get("/queues").text
    counts = re.findall(r'href="(/jobs\?queue=default&amp;[^"]*)"><span class="[^"]*">(\d+)<', page)
    assert [count for _, count in counts] == ["2", "3", "1", "1", "1", "1"]
    for address, count in counts:
        assert re.search(rf"\b{count} jobs? match", words(dashboard.get(address.replace("&amp;", "&")))), address


def test_a_job_that_does_not_exist_is_no_error_of_the_server(dashboard):
    assert dashboard.get("/jobs/01a1e44e-59aa-7251-b8db-923b6d87e804").status_code == 404
    assert dashboard.get("/jobs/nonsense").status_code == 404


def test_the_text_of_jobs_is_shown_and_never_obeyed(dashboard, queue):
    job = make_hostile(queue)
    for path in ("/jobs", f"/jobs/{job}", "/", "/jobs?task=<script>alert(1)</script>&queue=%22%3E%3Cscript%3E"):
        page = dashboard.get(path)
        assert page.status_code == 200
        assert len(page.text) < 150_000
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        assert not {"\x1b", "\x07", "\u202e"} & set(page.text)
    assert "שלום" in page.text or "שלום" in dashboard.get(f"/jobs/{job}").text


def test_pages_say_since_when_the_database_is_away_and_recover(server_url):

    with (
        new_database(server_url) as url,
        Dashboard(url) as dashboard,
        psycopg.connect(server_url, autocommit=True) as admin,
    ):
        assert dashboard.get("/jobs").status_code == 200
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        admin.execute(f"alter database {name} allow_connections false".encode())
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        for path in ("/", "/jobs", "/workers"):
            answer = dashboard.get(path)
            assert answer.status_code == 503
            assert "The database can&#39;t be reached since" in answer.text
        stranger = dashboard.browser()
        for answer in (stranger.post("/login", token="no-token-of-a-person"), stranger.get("/?token=no-token-at-all")):
            assert answer.status_code == 503
            assert "The database does not answer" in answer.text
            assert str(name) not in answer.text  # Nor any other word of the server.
        assert dashboard.get("/healthz").status_code == 200
        for answer in (dashboard.browser().get("/readyz"), dashboard.get("/metrics")):
            assert (answer.status_code, answer.text) == (503, "the database does not answer")
        admin.execute(f"alter database {name} allow_connections true".encode())
        eventually(lambda: dashboard.get("/jobs").status_code == 200, what="the page is back")


@pytest.mark.parametrize(
    ("role", "answers"),
    [
        ("pg_signal_backend", {"/readyz": "permission denied for schema outlive"}),
        ("outlive_enqueue", {"/metrics": "permission denied for view metrics"}),
        ("outlive_viewer", {"/readyz": "permission denied for view ended_attempts"}),
    ],
)
def test_probes_say_which_right_the_role_lacks(database_url, role, answers):
    with Dashboard(make_conninfo(database_url, options=f"-c role={role}")) as dashboard:
        for path, said in answers.items():
            answer = dashboard.get(path)
            role = "outlive_worker (to enqueue, outlive_enqueue is enough)"
            refused = f"the database refused: {said}; run this as a member of {role}"
            assert (answer.status_code, answer.text) == (503, refused)
        answer = dashboard.browser().post("/login", token="no-token-of-the-settings")
        assert (answer.status_code, "The database refused" in answer.text) == (502, True)


def test_the_page_of_a_job_reads_its_last_attempts_only(dashboard, queue):
    """A job that snoozes for ever has as many as it likes."""
    job = queue.make()
    for _ in range(60):
        queue.run_job(job, Outcome.RELEASED, after_s=0.0)
    shown = dashboard.get(f"/jobs/{job}").text
    assert "Earlier attempts are not shown" in shown
    assert "51 attempts within" in shown
