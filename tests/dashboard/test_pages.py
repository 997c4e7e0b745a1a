"""What the pages show."""

import json

import psycopg

from outlive import db
from outlive.states import Outcome
from tests.dashboard.asking import Dashboard, words
from tests.driving.databases import new_database
from tests.driving.making import KILLED, make, make_finished, make_quarantined, register_worker, run_job
from tests.waiting import eventually


def test_the_overview_says_what_needs_attention(dashboard: Dashboard, connection: db.Connection) -> None:
    assert "No jobs and no workers yet" in words(dashboard.get("/"))
    make_quarantined(connection)
    make(connection)
    register_worker(connection, state="dead")
    for told in (
        "1 job is in quarantine",
        "Jobs wait, and no worker is active",
        "1 worker has died",
        "1 of 1 attempts died in the last hour",
    ):
        eventually(lambda told=told: told in words(dashboard.get("/")), what=told)  # type: ignore[misc]


def test_the_jobs_of_a_state_are_listed(dashboard: Dashboard, connection: db.Connection) -> None:
    failed, done = make_finished(connection, Outcome.FAILED), make_finished(connection)
    page = dashboard.get("/jobs?state=failed").text
    assert (str(failed) in page, str(done) in page) == (True, False)
    assert "ValueError: no" in page


def test_the_page_of_a_killer_says_why_its_process_died(dashboard: Dashboard, connection: db.Connection) -> None:
    stack = (
        '  File "/home/me/shop/render.py", line 7 in read_xref\n  File "/usr/lib/python3.11/json/x.py", line 1 in y\n'
    )
    dump = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n" + stack
    evidence = KILLED | {"stack": dump}
    job = make(connection, "pdf.render", args=b'{"path": "poison.pdf"}', options={"max_crashes": 1})
    run_job(connection, job, Outcome.CRASHED, **evidence)
    shown = words(dashboard.get(f"/jobs/{job}"))
    assert "SIGSEGV: it touched memory that is not its own" in shown
    assert "peak memory 512 MB" in shown
    assert "opening poison.pdf" in shown
    assert shown.index("render.py") < shown.index("All frames") < shown.index("json/x.py")


def test_a_job_that_does_not_exist_is_no_error_of_the_server(dashboard: Dashboard) -> None:
    assert dashboard.get("/jobs/01a1e44e-59aa-7251-b8db-923b6d87e804").status_code == 404
    assert dashboard.get("/jobs/nonsense").status_code == 404


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x1b[31mred\x1b]0;title\x07שלום"


def test_the_text_of_jobs_is_shown_and_never_obeyed(dashboard: Dashboard, connection: db.Connection) -> None:
    args = json.dumps({"x": HOSTILE, "large": "y" * 900_000}).encode()
    job = make(connection, HOSTILE.replace("\x1b", "").replace("\x07", ""), args=args, queue="<b>q")
    run_job(connection, job, Outcome.FAILED, error=HOSTILE, output=HOSTILE, stack=HOSTILE, final=True)
    for path in ("/jobs", f"/jobs/{job}", "/", "/jobs?task=<script>alert(1)</script>&queue=%22%3E%3Cscript%3E"):
        page = dashboard.get(path)
        assert page.status_code == 200
        assert len(page.text) < 150_000
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        assert not {"\x1b", "\x07", "\u202e"} & set(page.text)
    assert "שלום" in page.text or "שלום" in dashboard.get(f"/jobs/{job}").text


def test_pages_say_since_when_the_database_is_away_and_recover(server_url: str) -> None:

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
        assert dashboard.get("/healthz").status_code == 200
        for answer in (dashboard.browser().get("/readyz"), dashboard.get("/metrics")):
            assert (answer.status_code, answer.text) == (503, "the database does not answer")
        admin.execute(f"alter database {name} allow_connections true".encode())
        eventually(lambda: dashboard.get("/jobs").status_code == 200, what="the page is back")
