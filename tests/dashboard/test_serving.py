"""The dashboard as a command, beside a worker, and mounted in another app."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from outlive import App, config, db
from outlive.dashboard import asgi, build
from outlive.dashboard.access import kept_token
from tests.dashboard.asking import OPERATOR, Dashboard
from tests.driving import pages
from tests.driving.commands import Cli, ended, started
from tests.driving.making import make
from tests.driving.workers import ROOT
from tests.waiting import eventually


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def test_the_command_prints_a_link_that_logs_in_and_prints_it_again_while_it_runs(
    database_url: str, connection: db.Connection, tmp_path: Path
) -> None:
    home = str(tmp_path)
    (tmp_path / "locks").mkdir()  # As if the embedded server had been here.
    with started() as commands:
        command = Cli(database_url).process("dashboard", "--listen", "127.0.0.1:0", OUTLIVE_HOME=home)
        commands.append(command)
        assert command.stdout is not None
        link = command.stdout.readline().split()[-1]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{16}", link)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert "Overview" in opener.open(link, timeout=10).read().decode()
        address = link.partition("?")[0]
        assert fetched(address + "readyz") == "ok"
        again = Cli(database_url).process("dashboard", "--listen", address[7:-1], OUTLIVE_HOME=home)
        commands.append(again)
        assert f"if yours runs there, its link is {link} ;" in ended(again).err
        command.send_signal(signal.SIGTERM)
        assert ended(command).code == 0


def test_the_token_that_is_made_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    assert kept_token(tmp_path / "none") is None
    (home := tmp_path / "home").mkdir()
    assert kept_token(home) == kept_token(home) is not None
    file = home / "dashboard-token"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("")  # The disk was full, or another dashboard is just making it.
    assert kept_token(home) == kept_token(home) is not None
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert kept_token(home) is None
    file.unlink()
    if os.geteuid() == 0:
        os.chown(home, 12345, 12345)
        assert kept_token(home) is None


def test_up_starts_a_dashboard_that_ends_with_it(empty_database_url: str) -> None:
    up = Cli(empty_database_url).process("up", "tests.faults:app", "--slots", 1, OUTLIVE_DASHBOARD_LISTEN="127.0.0.1:0")
    with started() as commands:
        commands.append(up)
        assert up.stdout is not None
        before, line, after = (up.stdout.readline() for _ in range(3))
        assert before == after == "\n"
        address = line.split()[-1].partition("?")[0]
        assert fetched(address + "healthz") == "ok"
        up.kill()  # Its dashboard notices by itself.
        up.wait()

        def is_gone() -> bool:
            try:
                fetched(address + "healthz")
            except OSError:
                return True
            return False

        eventually(is_gone, what="the dashboard has ended")


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    """Nothing but outlive and what it needs can be imported here."""
    for name in ("starlette", "jinja2", "uvicorn"):
        (tmp_path / f"{name}.py").write_text("raise ModuleNotFoundError(name=__name__)")
    script = (
        "import importlib.util as u, sys; find = u.find_spec; "
        "u.find_spec = lambda name, *more: None if name in ('starlette', 'jinja2', 'uvicorn') else find(name, *more); "
        "sys.argv = ['outlive', 'dashboard']; from outlive.cli import main; main()"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)
    assert ran.returncode == 2
    assert "pip install 'outlive[dashboard]'" in ran.stderr
    plain = "import sys, outlive; from outlive import App; print('starlette' in sys.modules, 'jinja2' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", plain], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_the_code_of_its_page_in_the_docs_works(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, settings, _, web = pages.blocks_of("how-to/dashboard.md")
    assert command.text.splitlines()[-1] == "outlive dashboard"
    (tmp_path / "outlive.toml").write_text(settings.text)
    read = config.load(tmp_path / "outlive.toml", environ={})
    assert read.dashboard_listen == "0.0.0.0:8321"
    assert build(read, token=read.dashboard_token or "", viewer_token=read.dashboard_viewer_token)
    (tmp_path / "shop.py").write_text(f"from outlive import App\napp = App({database_url!r})\n")
    (tmp_path / "web.py").write_text(web.text)
    monkeypatch.setenv("DASHBOARD_TOKEN", OPERATOR)
    script = "from starlette.routing import Match; import web; "
    script += "print(web.app.routes[0].matches({'type': 'http', 'path': '/jobs/workers', 'method': 'GET'})[0])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert ran.stdout == "Match.FULL\n"


def test_it_can_be_mounted_in_another_app(dashboard: Dashboard, database_url: str, connection: db.Connection) -> None:
    job = make(connection)
    app = App(database_url)
    app.configure(config.load(environ={}, flags={"database_url": database_url}))
    mine = asgi(app, token=OPERATOR)
    whole = Starlette(routes=[Mount("/ops/jobs", mine)])

    async def visit() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app=whole)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            answers = [await client.get(f"/ops/jobs/?token={OPERATOR}")]
            answers += [await client.get(f"/ops/jobs{path}") for path in ("/", "/jobs", f"/jobs/{job}", "/confirm")]
            answers.append(await client.get("/ops/jobs/static/style.css"))
        await mine.close()
        return answers

    login, *pages, style = dashboard.run(visit())
    assert login.headers["location"] == "/ops/jobs/"
    assert "Path=/ops/jobs;" in login.headers["set-cookie"]
    assert style.status_code == 200
    for page in pages[:3]:
        assert page.status_code == 200
        links = re.findall(r'(?:href|src|action|data-live)="([^"]*)"', page.text)
        assert len(links) > 10
        assert [link for link in links if not link.startswith(("/ops/jobs", "#"))] == []
