"""The dashboard below a path, behind a real web server that serves other things too."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from outlive.errors import ConfigError
from outlive.states import State
from tests.dashboard.asking import OPERATOR, Dashboard
from tests.dashboard.browsing import CHROMIUM, live, opened, served
from tests.driving.pages import blocks_of
from tests.waiting import eventually

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextmanager
def behind_nginx(dashboard: str, folder: Path) -> Iterator[str]:
    """nginx, with the lines that the page about the dashboard has for it."""
    (location,) = (block.text for block in blocks_of("how-to/dashboard.md") if block.text.startswith("location /jobs/"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    temporary = "".join(f"{kind}_temp_path temp;" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    server = f"listen 127.0.0.1:{port}; {location.replace('10.0.0.5:8321', urlsplit(dashboard).netloc)}"
    http = f"access_log off; {temporary} server {{ {server} }}"
    (folder / "nginx.conf").write_text(f"daemon off; master_process off; pid pid; events {{}} http {{ {http} }}")

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    with subprocess.Popen([str(NGINX), "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]) as process:
        try:
            eventually(listens, what="nginx listens")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium")
@pytest.mark.skipif(NGINX is None, reason="there is no nginx: apt install nginx-light")
def test_behind_nginx_a_browser_logs_in_acts_and_sees_changes(browser, database_url, queue, tmp_path):
    job = queue.make()
    with (
        served(database_url, "--root-path", "/jobs") as dashboard,
        behind_nginx(dashboard, tmp_path) as front,
        opened(browser, front) as page,
    ):
        assert urlsplit(dashboard).path == "/jobs/"
        page.goto(f"/jobs/jobs/{job}")
        page.fill("#token", OPERATOR)
        page.click("form.login button")
        assert page.url == f"{front}/jobs/jobs/{job}"
        assert {cookie["path"] for cookie in page.context.cookies()} == {"/jobs"}
        live(page)
        page.click("text=Cancel")
        page.click("form .acts button")
        expect(page.locator(".done")).to_have_text("1 job cancelled")
        assert queue.state_of(job) is State.CANCELLED
        page.goto("/jobs")  # nginx adds the slash.
        page.locator("body").press("g")
        page.keyboard.press("j")
        page.wait_for_url(f"{front}/jobs/jobs")
        live(page)
        other = queue.make()
        expect(page.locator(f"#j-{other}")).to_be_visible(timeout=5_000)
        page.click("text=log out")
        assert page.url == f"{front}/jobs/login"


def test_below_a_path_it_answers_there_and_probes_also_without_the_path(database_url, queue):
    with Dashboard(database_url, dashboard_root_path="/ops/jobs/") as dashboard:
        stranger = dashboard.browser()
        login = stranger.get(f"/ops/jobs/workers?token={OPERATOR}")
        assert login.headers["location"] == "/ops/jobs/workers"
        assert stranger.get("/ops/jobs/workers").status_code == 200
        assert "Overview" in stranger.get("/ops/jobs").text
        for path in ("/healthz", "/readyz", "/ops/jobs/readyz"):
            assert stranger.get(path).text == "ok", path
        for path in ("/", "/workers", "/ops", "/ops/jobsworkers", "/static/style.css"):
            assert stranger.get(path).status_code == 404, path
        said = "this dashboard is below /ops/jobs/: a proxy in front must pass on paths as they are"
        assert stranger.get("/workers").text == said


@pytest.mark.parametrize("root", ["", "/ops/jobs"])
def test_a_path_with_a_slash_at_its_end_is_answered_in_place(database_url, queue, root):
    """A redirect would need the scheme and the host, which only a proxy in front knows."""
    job = queue.make()
    with Dashboard(database_url, dashboard_root_path=root) as dashboard:
        for path in ("/jobs", f"/jobs/{job}", "/healthz"):
            with_slash, without = (dashboard.get(f"{root}{path}{end}") for end in ("/?queue=a", "?queue=a"))
            assert with_slash.status_code == without.status_code, path
            assert "location" not in with_slash.headers
            assert re.findall(r'data-live="[^"]*"', with_slash.text) == re.findall(r'data-live="[^"]*"', without.text)
        assert dashboard.get(f"{root}/static/").status_code == 404


@pytest.mark.parametrize("path", ["jobs", "/a b", "//evil.example", "/../up", "/jobs?x"])
def test_what_is_no_path_is_refused(database_url, path):
    with pytest.raises(ConfigError, match="a path like '/jobs'"):
        Dashboard(database_url, dashboard_root_path=path)
