"""The dashboard in a real browser: each page, each action, live updates, the keyboard, a phone, and accessibility."""

import functools
import itertools
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from outlive import App, config, db, store
from outlive.model import Ended, Schedule, SourceLimits, new_job_id
from outlive.output import LiveOutput
from outlive.policy import Parameter
from outlive.protocol import Progress
from outlive.states import Outcome, State
from tests import faults
from tests.dashboard.asking import HOSTILE, OPERATOR, make_hostile
from tests.dashboard.browsing import CHROMIUM, live, opened, served
from tests.driving.databases import new_database
from tests.driving.making import WORKER, Queue, make, make_finished, make_quarantined, new_worker
from tests.waiting import eventually

PAGES = ("", "jobs", "tasks", "killers", "workers", "queues", "sources", "schedules", "batches", "audit")
BY_ERROR = "jobs?state=failed&sort=errors"
DESK: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
AXE_CACHE = Path(tempfile.gettempdir()) / "outlive-axe"
YES = "form .acts button"
AXE = "axe.run(document, {resultTypes: ['violations']})"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium")


@pytest.fixture(scope="module")
def url(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        yield url


@pytest.fixture(scope="module")
def queue(url: str) -> Iterator[Queue]:
    with Queue.at(url, db.PINNED) as connection:
        fill(connection)
        yield connection


def fill(queue: Queue) -> None:
    """A few of everything."""
    queue.register_worker()
    signature = (Parameter("url", "str", required=True), Parameter("deep", "bool", default="false"))
    queue.register_task(name="shop.fetch", signature=signature)
    queue.run(store.register_sources([SourceLimits("shop", rate_limit_per_minute=60, burst=5)]))
    nightly = Schedule(name="nightly", task="report", args=b"{}", cron="0 3 * * *")
    queue.run(store.declare_schedules([nightly], "shop:app"))
    queue.make_quarantined(crashes=2)
    queue.make_finished()
    queue.make_finished(Outcome.FAILED)
    queue.make(args=b'{"url": "<script>alert(1)</script>"}')


@pytest.fixture(scope="module")
def address(url: str, queue: Queue) -> Iterator[str]:
    with served(url) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page of an operator."""
    with opened(browser, address) as page:
        page.goto(f"/?token={OPERATOR}")
        yield page


def button_of(page: Page, name: str, word: str) -> Locator:
    """A button in the row of the thing with this name."""
    return page.locator("tr", has_text=name).locator(".button", has_text=word)


def act(page: Page, button: Locator, question: str, done: str, **fields: str) -> None:
    """Press a button, and answer the question that follows with yes."""
    button.click()
    expect(page.locator("h1")).to_have_text(question)
    for field, text in fields.items():
        page.fill(f"#{field}", text)
    page.click(YES)
    expect(page.locator(".done")).to_have_text(done)


def last_audit(queue: Queue) -> tuple[str, int, object]:
    """The last action, how many jobs it changed, and what it was done to."""
    [row] = queue.run(store.list_audit(limit=1))
    assert row["who"] == "operator from 127.0.0.1 (dashboard)"
    return row["action"], row["jobs"], msgspec.json.decode(row["what"])


def states_of(queue: Queue, jobs: Sequence[UUID]) -> list[State | None]:
    return [queue.state_of(job) for job in jobs]


def test_every_page_opens_and_updates_without_a_complaint_of_the_browser(page, queue):
    job = queue.make_finished(Outcome.FAILED)
    for path in (*PAGES, f"jobs/{job}", "jobs?state=failed&text=value"):
        page.goto(f"/{path}")
        expect(page.locator("main h1")).to_have_count(1)
        if "text" not in path:
            live(page)
    assert "token" not in page.url


def test_no_text_of_a_job_runs_or_breaks_a_page(page, queue):
    opened: list[str] = []
    page.on("dialog", lambda dialog: opened.append(dialog.message))
    job = make_hostile(queue)
    for path in (
        "",
        f"jobs/{job}",
        "jobs?state=failed",
        f"jobs?text={quote(HOSTILE)}",
        f"confirm?action=retry&id={job}",
    ):
        page.goto(f"/{path}")
        expect(page.locator("main h1")).to_have_count(1)
        assert page.locator("main img").count() == page.locator("main script").count() == 0, path
    page.goto(f"/jobs/{job}")
    live(page)
    expect(page.locator("#output-1 pre")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.title().count("outlive") == 1
    assert opened == []


VERBS: dict[str, tuple[str, str, Callable[..., UUID], State | None]] = {
    "cancel": ("Cancel", "cancelled", make, State.CANCELLED),
    "retry": ("Retry", "retried", functools.partial(make_finished, outcome=Outcome.FAILED), State.PENDING),
    "release": ("Release", "released", make_quarantined, State.PENDING),
    "prune": ("Delete", "deleted", make_finished, None),
}


@pytest.mark.parametrize(
    "verbs", [pytest.param(["cancel"], id="cancel"), pytest.param([*VERBS], id="all", marks=pytest.mark.long)]
)
def test_an_operator_acts_on_one_job_on_selected_ones_and_on_all_that_match(page, queue, verbs):
    """test_actions.py has every verb, without a browser."""
    for verb in verbs:
        word, done, make_one, after = VERBS[verb]
        jobs = [make_one(queue, task=f"to_{verb}") for _ in range(6)]
        spared = make_one(queue, task=f"not_to_{verb}")
        before = queue.state_of(spared)

        page.goto(f"/jobs/{jobs[0]}")
        act(page, page.locator(".acts").get_by_text(word, exact=True), f"{word} 1 job?", f"1 job {done}")
        assert states_of(queue, jobs) == [after] + 5 * [before]
        assert last_audit(queue) == (verb, 1, {"ids": [str(jobs[0])]})

        page.goto(f"/jobs?task=to_{verb}")
        for job in jobs[1:3]:
            page.check(f"input[value='{job}']")
        act(page, page.locator(f"button[value={verb}]"), f"{word} 2 jobs?", f"2 jobs {done}")
        assert states_of(queue, jobs) == 3 * [after] + 3 * [before]
        assert last_audit(queue) == (verb, 2, {"ids": [str(job) for job in jobs[1:3]]})

        page.goto(f"/jobs?task=to_{verb}&state={before}")
        act(page, page.get_by_role("button", name=f"{word} all"), f"{word} 3 jobs?", f"3 jobs {done}")
        assert states_of(queue, jobs) == 6 * [after]
        assert last_audit(queue) == (verb, 3, {"states": [before], "task": f"to_{verb}"})
        assert queue.state_of(spared) == before


def test_a_filter_by_time_means_the_zone_in_which_the_page_shows_times(browser, address, queue):
    hour_ago = queue.value("select clock_timestamp() - interval '1 hour'").astimezone(ZoneInfo("Asia/Tokyo"))
    with opened(browser, address, zone="Asia/Tokyo") as page:
        page.goto(f"/jobs?token={OPERATOR}&since=1h")
        expect(page.locator("#zone")).to_contain_text("Asia/Tokyo")
        since = page.get_by_label("Since")
        for written, zone in ((f"{hour_ago:%H:%M}", "Asia/Tokyo"), ("2h", "")):
            since.fill(written)
            page.get_by_role("button", name="Filter", exact=True).click()
            expect(since).to_have_value(written)
            expect(page.locator("form.filter [name=zone]")).to_have_value(zone)
            expect(page.locator("#live_jobs tbody tr").first).to_be_attached()


def test_back_after_an_action_leads_to_its_list_and_not_to_the_question(page, queue):
    job = queue.make(task="once")
    page.goto("/jobs?task=once")
    page.check(f"input[value='{job}']")
    act(page, page.locator("button[value=cancel]"), "Cancel 1 job?", "1 job cancelled")
    page.go_back()
    expect(page.locator("h1")).to_have_text("Jobs")
    expect(page.locator(f"#j-{job}")).to_contain_text("cancelled")


def test_an_operator_changes_queues_sources_schedules_and_workers_after_a_question(page, connection):
    connection.make(queue="slow")
    connection.register_worker(new_worker(), name="leaver")
    paused, enabled = "select paused_at is not null from outlive.{}", "select enabled from outlive.sources"
    queue, held = paused.format("queues"), paused.format("schedules")
    drains = "select drain_requested_at is not null from outlive.workers where name = 'leaver'"
    ran = "select exists (select from outlive.jobs where options ->> 'schedule' = 'nightly')"
    for noun, name, button, question, done, query, expected in (
        ("queue", "slow", "Pause", "Pause the queue slow?", "queue slow is paused", queue, True),
        ("queue", "slow", "Resume", "Resume the queue slow?", "queue slow is resumed", queue, False),
        ("source", "shop", "Pause", "Pause the source shop?", "source shop is paused", enabled, False),
        ("source", "shop", "Resume", "Resume the source shop?", "source shop is resumed", enabled, True),
        ("schedule", "nightly", "Run now", "Run the schedule nightly now?", "a job of nightly is enqueued", ran, True),
        ("schedule", "nightly", "Pause", "Pause the schedule nightly?", "schedule nightly is paused", held, True),
        ("schedule", "nightly", "Resume", "Resume the schedule nightly?", "schedule nightly is resumed", held, False),
        ("worker", "leaver", "Drain", "Drain the worker leaver?", "worker leaver is told to drain", drains, True),
    ):
        page.goto(f"/{noun}s")
        act(page, button_of(page, name, button), question, done)
        live(page)
        assert connection.value(query) is expected, question
        assert last_audit(connection) == (f"{button.split()[0].lower()} {noun}", 0, {noun: name})


def test_an_operator_sets_and_resets_the_limits_of_a_source(page, queue):
    limits = {
        "rate_limit_per_minute": 7.5,
        "burst": 2,
        "max_concurrency": 3,
        "breaker_failures": 4,
        "breaker_pause_s": 9,
    }
    for values in (limits, dict.fromkeys(limits)):
        page.goto("/sources")
        texts = {key: "" if value is None else str(value) for key, value in values.items()}
        question = "Set the limits of the source shop?"
        act(page, button_of(page, "shop", "Set"), question, "source shop is set", **texts)
        [found] = queue.run(store.source_limits("shop"))
        assert {key: found[f"set_{key}"] for key in limits} == values
        assert last_audit(queue) == ("set source", 0, {"source": "shop", **values})


def test_a_form_that_is_refused_keeps_what_was_typed(browser, address, queue):
    with browser.new_context(base_url=address) as context:
        page = context.new_page()
        page.goto(f"/schedules?token={OPERATOR}")
        button_of(page, "nightly", "Change").click()
        page.fill("#cron", "at noon")
        page.select_option("#overlap", "skip")
        page.click(YES)
        expect(page.locator("form [role=alert]")).to_contain_text("'at noon', which can't be read")
        expect(page.locator("#cron")).to_have_value("at noon")
        page.fill("#cron", "0 12 * * *")
        page.click(YES)
        expect(page.locator(".done")).to_have_text("schedule nightly is set")
        assert queue.row("select cron, overlap from outlive.schedules") == {"cron": "0 12 * * *", "overlap": "skip"}
        done = "schedule nightly is as its app declares it"
        act(page, button_of(page, "nightly", "Reset"), "Reset the schedule nightly?", done)


def test_an_operator_retries_the_failed_jobs_of_a_batch_closes_and_cancels_it(page, queue):
    batch = queue.run(store.open_batch(uuid4(), "import"))
    links = msgspec.json.encode({"batch": batch})
    jobs = [queue.make(links=links), queue.make_finished(Outcome.FAILED, links=links)]
    ended = "select array[closed_at is not null, cancelled_at is not null] from outlive.batches"
    page.goto(f"/batches/{batch}")
    press = functools.partial(page.get_by_role, "link", exact=True)

    act(page, press(name="Retry its failed jobs"), "Retry 1 job?", "1 job retried")
    assert states_of(queue, jobs) == [State.PENDING, State.PENDING]
    assert last_audit(queue) == ("retry", 1, {"states": ["failed"], "batch": str(batch)})

    act(page, press(name="Close"), "Close this batch?", "the batch is closed")
    assert queue.value(ended) == [True, False]
    assert last_audit(queue) == ("close batch", 0, {"batch": str(batch)})

    done = "the batch and its 2 unfinished jobs were cancelled"
    act(page, press(name="Cancel this batch"), "Cancel 2 jobs of this batch?", done)
    assert queue.value(ended) == [True, True]
    assert states_of(queue, jobs) == [State.CANCELLED, State.CANCELLED]
    assert last_audit(queue) == ("cancel batch", 2, {"batch": str(batch)})


def test_a_kill_is_seen_within_two_seconds(page, url, queue, start):
    start(slots=1, url=url)
    page.goto("/killers")
    live(page)
    app = App(url)
    app.configure(config.load(environ={}, flags={"database_url": url}))  # That of this module, not of this test.
    killer = app.task(faults.segfault.function).using(max_crashes=1).enqueue()
    query = "select extract(epoch from now() - ended_at) from outlive.attempts where job_id = %s"
    eventually(lambda: queue.execute(query, [killer.id]).fetchone(), within_s=20, what="the job has died")
    expect(page.locator(f"#k-{killer.id}")).to_contain_text("SIGSEGV", timeout=2_000)


def test_an_open_selection_and_open_details_survive_an_update(page, queue):
    job = queue.make_finished(Outcome.FAILED, task="kept")
    page.goto("/jobs?task=kept")
    live(page)
    page.check(f"input[value='{job}']")
    other = queue.make("kept")
    expect(page.locator(f"#j-{other}")).to_be_visible(timeout=5_000)
    expect(page.locator(f"input[value='{job}']")).to_be_checked()
    expect(page.locator(f"input[value='{other}']")).not_to_be_checked()


def test_the_keyboard_is_enough(page, queue):
    job = queue.make("typed")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.type("gj")
    page.wait_for_url("**/jobs")
    page.keyboard.press("/")
    page.keyboard.type("typed")
    page.keyboard.press("Enter")
    expect(page.locator(f"#j-{job}")).to_be_visible()
    page.locator("body").press("j")
    page.keyboard.press("x")
    expect(page.locator(f"input[value='{job}']")).to_be_checked()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job}")


def test_every_page_fits_a_phone(page, queue):
    job = queue.make_finished(Outcome.FAILED, task="a" * 150)
    page.set_viewport_size(PHONE)
    for path in (*PAGES, f"jobs/{job}", BY_ERROR):
        page.goto(f"/{path}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], f"/{path} is {wide} pixels wide"
        expect(page.locator("nav [aria-current]")).to_be_in_viewport(ratio=1)
        expect(page.locator(".chart.wide:visible")).to_have_count(0)


def test_a_list_of_failed_jobs_breaks_no_name_on_a_desk(page, queue):
    job = queue.make(task="shop.charge_card")
    queue.run_job(job, Outcome.FAILED, error="ConnectionError: " + "connection refused by the gateway " * 5, final=True)
    page.set_viewport_size({"width": 1200, "height": 900})
    page.goto("/jobs?state=failed&task=shop.charge_card")
    assert page.locator(f"#j-{job}").evaluate("row => row.offsetHeight") <= 60
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(one => one.scrollWidth <= one.clientWidth)")


def test_no_list_hides_a_button_or_a_column_on_a_desk(page, queue):
    running = queue.claim_job(queue.make(task="shop.import_catalog"))
    queue.run(store.write_progress(WORKER, [Progress(running.token, 26.0, 100.0, None)]))
    queue.execute("update outlive.workers set app = 'shop:app', hostname = 'web-1.example.org', memory_bytes = 67e6")
    dead = queue.register_worker(new_worker(), name="web-3", state="dead")
    queue.execute("update outlive.workers set died_at = now() - interval '23 s' where id = %s", [dead])
    long = queue.register_worker(new_worker(), name="crawler-" + "0123456789" * 5)
    queue.execute("update outlive.workers set app = 'shop:app' where id = %s", [long])
    times = {"cron": "*/15 6-20 * * MON-FRI", "timezone": "Europe/Berlin"}
    queue.run(store.add_schedule("imports-" + "0123456789" * 4, {"task": "report", "args": {}, **times}))
    queue.register_task(name="shop.render", signature=())
    make_finished(queue, task="shop.render")
    make_finished(queue, Outcome.FAILED, task="shop.render")
    make_quarantined(queue, task="shop.render")
    queue.make("shop.unknown", queue="mail", args=b'{"url": "https://example.org/a/page/with/a/long/address"}')
    shown = (*PAGES, "jobs?task=shop.render", "jobs?task=shop.unknown", "jobs?state=failed", BY_ERROR)
    for width, path in itertools.product((1440, 1200, 1024), shown):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"/{path}")
        wide = page.evaluate(
            "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
        )
        assert wide == [], (width, path)
        times = page.locator("td[data-label=When] bdi", has_text="Europe/Berlin").first
        assert path != "schedules" or times.evaluate("one => one.getClientRects().length") == 1
    queue.execute("delete from outlive.workers where id = any(%s)", [[dead, long]])
    queue.execute("delete from outlive.schedules where declared_by is null")
    queue.end(Ended(running.token))


def test_an_operator_enqueues_a_job_by_a_form(page, queue):
    page.goto("/tasks")
    button_of(page, "shop.fetch", "Enqueue").click()
    page.get_by_label("url: str").fill("https://example.org/")
    page.get_by_label("deep: bool").select_option("true")
    page.click(YES)
    expect(page.locator(".done")).to_have_text("a job of shop.fetch is enqueued")
    args = queue.value("select args from outlive.jobs where task = 'shop.fetch'")
    assert args == {"url": "https://example.org/", "deep": True}


def test_a_question_about_many_jobs_is_in_sight_on_a_phone_and_its_button_names_the_act(page, queue):
    for n in range(12):
        queue.make_finished(Outcome.FAILED, task="shop.import_catalog_of_a_supplier", args=b'{"page": %d}' % n)
    page.set_viewport_size({"width": 390, "height": 600})
    page.goto("/confirm?action=retry_all&state=failed&task=shop.import_catalog_of_a_supplier&back=/jobs")
    expect(page.locator("h1")).to_be_in_viewport(ratio=1)
    expect(page.locator(YES)).to_have_text("Retry 12 jobs")


def test_labels_and_values_do_not_overlap_on_a_phone(page):
    page.set_viewport_size(PHONE)
    for path in (*PAGES, BY_ERROR):
        page.goto(f"/{path}")
        cells = page.locator("td[data-label]:visible").evaluate_all(
            "all => all.map(one => [one.dataset.label, parseFloat(getComputedStyle(one).paddingLeft)])"
        )
        assert [cell for cell in cells if cell[1] <= 100] == [], path


def test_the_name_of_a_task_is_not_broken_on_a_desk(page, queue):
    queue.make(task="shop.send_reminder", queue="mail")
    page.goto("/jobs?task=shop.send_reminder")
    assert page.locator("td.name bdi").first.evaluate("one => one.getClientRects().length") == 1


def test_filters_fold_on_a_phone_and_buttons_stand_at_the_right(page, queue):
    queue.make(task="folded")
    task = page.get_by_label("Task", exact=True)
    page.goto("/jobs?task=folded")
    expect(task).to_be_visible()
    expect(page.locator("summary", has_text="Filters")).to_be_hidden()
    page.set_viewport_size(PHONE)
    expect(task).to_be_hidden()
    page.click("text=Filters: task folded")
    expect(task).to_be_visible()
    for path in ("queues", "sources", "schedules", "workers"):
        page.goto(f"/{path}")
        for cell in page.locator("td.acts:visible").all():
            inside, boxes = cell.bounding_box(), [button.bounding_box() for button in cell.locator(".button").all()]
            assert inside is not None
            right = max(box["x"] + box["width"] for box in boxes if box)
            assert abs(right - inside["x"] - inside["width"]) < 2, path
            assert len({box["y"] for box in boxes if box}) == 1, path


def test_the_output_of_a_running_job_follows_its_end_unless_the_reader_scrolls_up(page, queue):
    running = queue.claim_job(queue.make(task="talks"))

    def says(lines: int) -> None:
        said = "".join(f"line {n}\n" for n in range(lines))
        queue.run(store.write_output(WORKER, [LiveOutput(running.token, lines, said, None)]))
        expect(page.locator("pre.follow")).to_contain_text(f"line {lines - 1}", timeout=10_000)

    def place() -> list[int]:
        """How far the output is scrolled, and how far from its end that is."""
        return page.locator("pre.follow").evaluate(
            "it => [Math.round(it.scrollTop), Math.round(it.scrollHeight - it.clientHeight - it.scrollTop)]"
        )

    page.goto(f"/jobs/{running.id}")
    live(page)
    for lines in (60, 90):
        says(lines)
        assert (place()[0] > 0, place()[1] <= 1) == (True, True)
    page.locator("pre.follow").evaluate("it => { it.scrollTop = 40 }")
    says(120)
    assert (place()[0], place()[1] > 100) == (40, True)
    page.locator("pre.follow").evaluate("it => { it.scrollTop = it.scrollHeight }")
    says(150)
    assert place()[1] <= 1
    queue.end(Ended(running.token))


def test_pages_work_without_the_script(browser, address, queue):
    job = queue.make_finished(Outcome.FAILED, task="plain")
    with browser.new_context(base_url=address, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"/jobs/{job}?token={OPERATOR}")
        page.click("text=Retry")
        page.click(YES)
        expect(page.locator(".done")).to_have_text("1 job retried")
        page.goto("/jobs?task=plain")
        assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", page.inner_text("tbody"))


@functools.cache
def axe() -> str | None:
    """The source of axe-core, from npm; None if it can't be had."""
    npm = shutil.which("npm")
    AXE_CACHE.mkdir(exist_ok=True)
    if npm and not list(AXE_CACHE.glob("axe-core-*.tgz")):
        words = [npm, "pack", "axe-core", "--silent", "--pack-destination", str(AXE_CACHE)]
        subprocess.run(words, cwd=AXE_CACHE, capture_output=True, timeout=90, check=False)
    for archive in AXE_CACHE.glob("axe-core-*.tgz"):
        with tarfile.open(archive) as packed:
            source = packed.extractfile("package/axe.min.js")
            return source.read().decode() if source else None
    return None


@pytest.mark.long
@pytest.mark.timeout(300)
def test_axe_finds_nothing(browser, address, queue):
    source = axe()
    if source is None:
        pytest.skip("axe-core can't be had: npm pack axe-core")
    job, told = queue.make_quarantined(), []
    queue.keep_steps(job, "charge", "sleep")
    queue.make(links=b'{"after": ["%s"]}' % str(job).encode())
    batch = queue.run(store.open_batch(new_job_id(), "import"))
    queue.run_job(queue.make(links=b'{"batch": "%s"}' % str(batch).encode()), Outcome.FAILED, final=True)
    with browser.new_context(base_url=address, bypass_csp=True) as context:
        page = context.new_page()
        page.goto(f"/?token={OPERATOR}")
        questions = [f"retry&id={job}", "set_source&name=shop", "set_schedule&name=nightly"]
        questions += ["enqueue&name=shop.fetch", f"rerun&id={job}&step=charge", f"supply&id={job}"]
        pages = (*PAGES, f"jobs/{job}?step=charge", f"batches/{batch}", "jobs?sort=longest&worker=x", BY_ERROR)
        for path in (*pages, *(f"confirm?action={one}" for one in questions), "login"):
            page.goto(f"/{path}")
            page.add_script_tag(content=source)
            for scheme, size in itertools.product(("light", "dark"), (DESK, PHONE)):
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size(size)
                for one in page.evaluate(AXE)["violations"]:
                    nodes = [node["html"][:120] for node in one["nodes"][:3]]
                    told.append((path, scheme, size["width"], one["id"], nodes))
    assert told == []
