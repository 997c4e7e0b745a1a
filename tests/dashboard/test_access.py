"""Who may look and who may act."""

import html
import re
from itertools import product
from uuid import UUID

import httpx2
import pytest

from outlive import config, db
from outlive.dashboard import asgi
from outlive.dashboard.pages import PAGES
from outlive.dashboard.serving import serve
from outlive.errors import ConfigError
from outlive.metrics import exposition
from tests.dashboard.asking import OPERATOR, VIEWER

PATHS = [page.path.replace("{id}", str(UUID(int=7))) for page in PAGES]
LIVE = [f"/live{path}" for path in PATHS if path != "/confirm"]


def test_without_a_session_a_page_shows_nothing(dashboard):
    stranger = dashboard.browser()
    for path, cookie in product((*PATHS, *LIVE), ("", "operator.99999999999.x.y", "operator", "..", "é")):
        answer = stranger.get(path, cookie=f"{dashboard.site.access.cookie}={cookie}")
        assert answer.status_code == 401, path
        assert "aria-current" not in answer.text, path
        assert "`" not in answer.text, path


def test_a_link_with_a_token_becomes_a_cookie_and_an_address_without_it(dashboard):
    browser = dashboard.browser()
    answer = browser.get(f"/jobs?state=failed&token={OPERATOR}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=failed")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert OPERATOR not in cookie
    assert browser.get("/jobs?state=failed").status_code == 200


def test_a_link_without_a_session_leads_to_its_page_after_the_login(dashboard):
    browser = dashboard.browser()
    asked = browser.get("/jobs?state=failed&text=a%26b").text
    (there,) = map(html.unescape, re.findall('name="back" value="(.*?)"', asked))
    assert there == "/jobs?state=failed&text=a%26b"
    wrong = browser.post("/login", token="wrong", back=there)
    assert f'value="{html.escape(there)}"' in wrong.text
    assert browser.post("/login", token=VIEWER, back=there).headers["location"] == there
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example"):
        assert browser.post("/login", token=VIEWER, back=elsewhere).headers["location"] == "/"


def test_a_forged_or_expired_session_is_refused(dashboard):
    access = dashboard.site.access
    good = dashboard.viewer.client.cookies[access.cookie]
    role, until, chance, signature = good.split(".")
    for forged in (f"operator.{until}.{chance}.{signature}", f"{role}.9{until}.{chance}.{signature}", f"{good}0"):
        assert dashboard.browser().get("/", cookie=f"{access.cookie}={forged}").status_code == 401
    assert dashboard.browser().get("/", cookie=f"{access.cookie}={good}").status_code == 200


def test_wrong_tokens_are_refused_and_lock_out_no_holder_of_a_right_one(dashboard):
    stranger = dashboard.browser()
    statuses = [stranger.post("/login", token=f"guess-{n}").status_code for n in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert dashboard.operator.get("/").status_code == 200
    assert stranger.get(f"/?token={OPERATOR}").status_code == 303
    assert stranger.post("/login", token="one-more-guess").status_code == 429
    assert stranger.post("/login", token=OPERATOR).status_code == 303


def test_a_name_of_another_site_that_points_here_gets_no_answer(dashboard):
    assert dashboard.get("/", host="evil.example:8321").status_code == 421
    assert dashboard.get("/", host="localhost:8321").status_code == 200
    assert dashboard.get("/", host="[::1]:8321").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://["},
        {"origin": "http://[::1"},
    ],
)
def test_a_form_of_another_site_is_refused(dashboard, headers):
    assert dashboard.operator.post("/logout", headers).status_code == 403
    assert dashboard.browser().post("/login", headers, token=OPERATOR).status_code == 403


def test_images_on_another_site_are_not_even_counted_as_guesses(dashboard):
    stranger = dashboard.browser()
    image = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}
    for _ in range(12):
        assert stranger.get("/?token=bogus-bogus-bogus-bogus", **image).status_code == 403
    assert stranger.get(f"/?token={OPERATOR}", **image).status_code == 403
    assert stranger.get("/?token=bogus-bogus-bogus-bogus").status_code == 401
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert stranger.get(f"/?token={OPERATOR}", **link).status_code == 303


def test_a_host_that_is_no_address_is_refused(database_url, dashboard):
    async def ask(host: str) -> int:
        anywhere = asgi(database_url, token=OPERATOR)
        transport = httpx2.ASGITransport(app=anywhere, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get("/", headers={"host": host})
        await anywhere.close()
        return answer.status_code

    hosts = ("[", "x:y", "jobs.example.org", "[::1]:8321")
    assert [dashboard.run(ask(host)) for host in hosts] == [400, 400, 401, 401]


def test_every_answer_forbids_what_the_pages_do_not_need(dashboard):
    for path in ("/", "/login", "/nowhere", "/static/style.css", "/static/nothing", "/jobs/nonsense"):
        answer = dashboard.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
    assert dashboard.get("/jobs").headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?! src)|\sstyle=|\son\w+=", dashboard.get("/").text)


def test_a_request_that_is_too_large_is_refused(dashboard):
    assert dashboard.operator.post("/login", token="x" * 300_000).status_code == 413


def test_after_logging_out_the_browser_has_no_session(dashboard):
    browser = dashboard.browser(VIEWER)
    assert browser.get("/").status_code == 200
    assert browser.post("/logout").status_code == 303
    assert browser.get("/").status_code == 401


def test_a_dashboard_is_never_open_to_others_without_a_good_token(database_url):
    def refused(**flags: str) -> str:
        with pytest.raises(ConfigError) as error:
            serve(config.load(environ={}, flags={"database_url": database_url, **flags}), print)
        return str(error.value)

    assert config.load(environ={}).dashboard_listen.startswith("127.0.0.1:")
    assert "set dashboard_token" in refused(dashboard_listen="0.0.0.0:0")
    assert "fewer than 16" in refused(dashboard_listen="0.0.0.0:0", dashboard_token="short")
    assert "fewer than 16" in refused(dashboard_token=OPERATOR, dashboard_viewer_token="short")
    assert "viewers would be operators" in refused(dashboard_token=OPERATOR, dashboard_viewer_token=OPERATOR)
    assert "it must be a host and a port" in refused(dashboard_listen="nowhere")
    with pytest.raises(ConfigError, match="needs a token"):
        asgi(database_url)


def test_metrics_need_a_token_and_probes_need_none(dashboard):
    stranger = dashboard.browser()
    assert stranger.get("/metrics").status_code == 401
    assert stranger.get("/metrics", authorization="Bearer wrong").status_code == 401
    for answer in (
        stranger.get("/metrics", authorization=f"Bearer {VIEWER}"),
        stranger.get("/metrics", authorization=f"bearer {OPERATOR}"),
        dashboard.viewer.get("/metrics"),
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (200, exposition.CONTENT_TYPE)
        assert "# TYPE outlive_" in answer.text
    assert stranger.get("/jobs", authorization=f"Bearer {OPERATOR}").status_code == 401
    assert [stranger.get(path).text for path in ("/healthz", "/readyz")] == ["ok", "ok"]
    statuses = {stranger.get("/metrics", authorization="Bearer wrong").status_code for _ in range(10)}
    assert statuses == {401, 429}
    assert stranger.get("/metrics", authorization=f"Bearer {OPERATOR}").status_code == 200


@pytest.mark.parametrize("change", ["set version = version - 1", "set (version, serves) = (version + 1, version + 1)"])
def test_it_is_not_ready_for_the_schema_of_another_version(dashboard, queue, change):
    assert dashboard.get("/readyz").status_code == 200
    queue.execute(f"update outlive.schema_version {change}")
    answer = dashboard.browser().get("/readyz")
    assert (answer.status_code, answer.text) == (503, "the database does not have the schema of this version")
    assert dashboard.get("/healthz").status_code == 200


def test_it_is_not_ready_without_a_schema(dashboard, queue):
    queue.execute("drop schema outlive cascade")
    assert dashboard.browser().get("/readyz").status_code == 503


def test_a_page_can_write_nothing(dashboard):
    async def read_only(connection: db.AsyncConnection) -> object:
        cursor = await connection.execute("show default_transaction_read_only")
        return await cursor.fetchone()

    assert dashboard.run(dashboard.site.database.within(read_only)) == ("on",)
