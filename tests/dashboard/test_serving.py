"""The dashboard as a command, beside a worker, and mounted in another app."""

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import uvicorn
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from outlive import App, config
from outlive.dashboard import asgi, build
from outlive.dashboard.access import kept_token
from outlive.dashboard.connections import MOST as MOST_CONNECTIONS
from outlive.dashboard.connections import Connection
from tests.dashboard.asking import OPERATOR, Dashboard
from tests.driving import pages
from tests.driving.commands import Cli, ended, started
from tests.driving.workers import ROOT
from tests.waiting import eventually


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def test_the_command_prints_a_link_that_logs_in(database_url, queue):
    with started() as commands:
        command = Cli(database_url).process("dashboard", "--listen", "127.0.0.1:0")
        commands.append(command)
        assert command.stdout is not None
        link = command.stdout.readline().split()[-1]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{16}", link)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert "Overview" in opener.open(link, timeout=10).read().decode()
        assert fetched(link.partition("?")[0] + "readyz") == "ok"
        command.send_signal(signal.SIGTERM)
        assert ended(command).code == 0


def test_with_the_embedded_server_the_link_is_printed_again_while_it_runs(server_url):
    """The server of the tests is one. `outlive up` gives its address to the dashboard, as here."""
    home = Path(str(conninfo_to_dict(server_url)["host"])).parent
    with started() as commands:
        first = Cli(server_url).process("dashboard", "--listen", "127.0.0.1:0", OUTLIVE_HOME=str(home))
        commands.append(first)
        assert first.stdout is not None
        link = first.stdout.readline().split()[-1]
        assert link.endswith(f"?token={kept_token(home)}")
        again = Cli(server_url).process("dashboard", "--listen", urlsplit(link).netloc, OUTLIVE_HOME=str(home))
        commands.append(again)
        assert f"if yours runs there, its link is {link} ;" in ended(again).err


@contextmanager
def served(database_url: str) -> Iterator[tuple[str, int]]:
    """The command, and where it listens."""
    with started() as commands:
        command = Cli(database_url).process(
            "dashboard", "--listen", "127.0.0.1:0", OUTLIVE_DASHBOARD_TOKEN=OPERATOR, FORWARDED_ALLOW_IPS="*"
        )
        commands.append(command)
        assert command.stdout is not None
        place = urlsplit(command.stdout.readline().split()[-1])
        yield place.hostname or "", place.port or 0


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_clients_that_send_no_request_keep_no_other_out(database_url):
    with served(database_url) as place:
        slow = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
        with ExitStack() as clients:
            idle = [clients.enter_context(socket.create_connection(place, 30)) for _ in range(600)]
            for client in idle[300:]:  # The others were closed already.
                with suppress(OSError):
                    client.sendall(slow)
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            link = f"http://{place[0]}:{place[1]}/?token={OPERATOR}"
            assert "Overview" in opener.open(link, timeout=30).read().decode()
            eventually(lambda: sum(map(is_closed, idle)) >= 600 - MOST_CONNECTIONS)


def test_a_forwarded_address_is_believed_from_no_client_whatever_the_environment_says(database_url, queue):
    with served(database_url) as (host, port), httpx2.Client(base_url=f"http://{host}:{port}") as client:
        queue.make()
        client.get(f"/?token={OPERATOR}")
        asked = client.get("/confirm?action=pause_queue&name=default").text
        proof = asked.split('name="proof" value="')[1].split('"')[0]
        form = {"action": "pause_queue", "name": "default", "proof": proof}
        assert client.post("/act", data=form, headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 303
        bad = client.post("/act", data=form, headers={"Origin": "http://["})
        assert bad.status_code == 403
    assert queue.values("select who from outlive.audit") == ["operator from 127.0.0.1 (dashboard)"]


@contextmanager
def answering(app: ASGIApp) -> Iterator[tuple[tuple[str, int], set[Connection]]]:
    """A server in a thread: where it listens, and its connections."""
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, lifespan="off", log_config=None, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        yield listening.getsockname(), server.server_state.connections  # type: ignore[misc]
        server.should_exit = True
        thread.join(30)


def test_a_connection_has_some_seconds_for_each_request(monkeypatch):
    monkeypatch.setattr("outlive.dashboard.connections.SEND_S", 0.2)
    others_closed = threading.Event()

    async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/late":
            await asyncio.to_thread(others_closed.wait, 30)  # Longer than a client may take to send.
        await PlainTextResponse("ok")(scope, receive, send)

    with (
        answering(answer_late) as (place, _),
        ThreadPoolExecutor(1) as requests,
        socket.create_connection(place) as silent,
        socket.create_connection(place) as slow,
    ):
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le")
        late = requests.submit(fetched, f"http://127.0.0.1:{place[1]}/late")
        eventually(lambda: is_closed(silent) and is_closed(slow))
        others_closed.set()
        assert late.result(timeout=30) == "ok"


async def answer_at_length(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("ok" if scope["path"] == "/ok" else "x" * 1_000_000)(scope, receive, send)


def reading_nothing(place: tuple[str, int]) -> socket.socket:
    client = socket.create_connection(place, 30)
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    return client


def test_clients_that_read_no_answer_keep_no_other_out(monkeypatch):
    monkeypatch.setattr("outlive.dashboard.connections.MOST", 3)
    monkeypatch.setattr("outlive.dashboard.connections.SEND_S", 600.0)
    with answering(answer_at_length) as (place, connections), ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(reading_nothing(place))
        eventually(lambda: [one.flow.write_paused for one in list(connections)] == [True] * 3)
        assert fetched(f"http://127.0.0.1:{place[1]}/ok") == "ok"
        eventually(lambda: len(connections) == 2)


def test_a_client_has_some_seconds_to_read_an_answer(monkeypatch):
    monkeypatch.setattr("outlive.dashboard.connections.SEND_S", 1.0)
    with answering(answer_at_length) as (place, connections), reading_nothing(place) as client:
        assert client.recv(1) == b"H"  # Of HTTP: the server has begun to answer.
        eventually(lambda: not connections)


def test_the_token_that_is_made_is_kept_for_its_user_alone(tmp_path):
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


def test_the_token_that_is_kept_opens_no_dashboard_of_another_database(empty_database_url, tmp_path):
    assert (kept := kept_token(tmp_path)) is not None
    with started() as commands:
        words = ("dashboard", "--listen", "127.0.0.1:0")
        commands.append(own := Cli(empty_database_url).process(*words, OUTLIVE_HOME=str(tmp_path)))
        assert own.stdout is not None
        link = own.stdout.readline()
    assert "?token=" in link
    assert kept not in link


def test_a_dashboard_whose_role_may_not_read_the_jobs_says_so_when_it_starts(database_url):
    viewer = Cli(make_conninfo(database_url, options="-c role=outlive_viewer"))
    with started() as commands:
        commands.append(command := viewer.process("dashboard", "--listen", "127.0.0.1:0"))
        assert command.stderr is not None
        said = command.stderr.readline()
    assert "the dashboard can't show its pages: the database refused: permission denied for view" in said
    assert "run this as a member of outlive_worker" in said


def test_up_starts_a_dashboard_that_ends_with_it(empty_database_url):
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


def test_up_logs_as_json_that_the_port_of_its_dashboard_is_taken(empty_database_url, tmp_path):
    (tmp_path / "shop_json.py").write_text('import outlive\napp = outlive.App(log_format="json")\n')
    with socket.create_server(("127.0.0.1", 0)) as taken, started() as commands:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        around = {"PYTHONPATH": str(tmp_path), "OUTLIVE_DASHBOARD_LISTEN": listen}
        commands.append(up := Cli(empty_database_url).process("up", "shop_json:app", "--slots", 1, **around))
        assert up.stderr is not None
        lines = (json.loads(line) for line in up.stderr)
        [said] = itertools.islice((line for line in lines if line["level"] == "error"), 1)
        assert said["message"].startswith(f"the dashboard can't listen on {listen} (Address already in use)")


def test_up_without_the_extra_says_what_to_install_and_runs_its_worker(empty_database_url):
    url = {"OUTLIVE_DATABASE_URL": empty_database_url}
    command = [sys.executable, "-c", WITHOUT_EXTRA, "up", "tests.faults:app", "--slots", "1"]
    up = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ | url)
    with started() as commands:
        commands.append(up)
        assert up.stderr is not None
        before = [*itertools.takewhile(lambda line: "Worker" not in line, up.stderr)]
        assert up.poll() is None
        [line] = [line for line in before if "dashboard" in line]
        assert line.rstrip().endswith(
            "the dashboard needs jinja2, starlette, uvicorn: pip install 'outlive[dashboard]'"
        )


WITHOUT_EXTRA = """
import importlib.util as u, sys
sys.argv[0], find = "outlive", u.find_spec
u.find_spec = lambda name, *more: None if name in ('starlette', 'jinja2', 'uvicorn') else find(name, *more)
from outlive.cli import main
main()
"""


def test_without_the_extra_the_command_says_what_to_install(tmp_path):
    """Nothing but outlive and what it needs can be imported here."""
    for name in ("starlette", "jinja2", "uvicorn"):
        (tmp_path / f"{name}.py").write_text("raise ModuleNotFoundError(name=__name__)")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA, "dashboard"], capture_output=True, text=True, env=env, check=False
    )
    assert ran.returncode == 2
    assert "pip install 'outlive[dashboard]'" in ran.stderr
    plain = "import sys, outlive; from outlive import App; print('starlette' in sys.modules, 'jinja2' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", plain], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


@pytest.mark.long
def test_the_code_of_its_page_in_the_docs_works(database_url, tmp_path, monkeypatch):
    command, *others, web, staff = pages.blocks_of("how-to/dashboard.md")
    settings, behind_proxy = (block for block in others if block.kind == "toml")
    (tokens,) = (block.text for block in others if block.kind == "bash")
    with pages.shell(tmp_path, database_url) as shell:
        assert "anna" in shell.run(tokens)
    assert command.text.splitlines()[-1] == "outlive dashboard"
    (tmp_path / "outlive.toml").write_text(settings.text)
    read = config.load(tmp_path / "outlive.toml", environ={})
    assert read.dashboard_listen == "0.0.0.0:8321"
    assert build(read, token=read.dashboard_token or "", viewer_token=read.dashboard_viewer_token)
    (tmp_path / "outlive.toml").write_text(behind_proxy.text)
    read = config.load(tmp_path / "outlive.toml", environ={})
    assert (read.dashboard_proxy, read.dashboard_user_header) == (("10.0.0.4/32",), "x-forwarded-user")
    (tmp_path / "shop.py").write_text(f"from outlive import App\napp = App({database_url!r})\n")
    (tmp_path / "web.py").write_text(f"{web.text}\n{staff.text}")
    for name in ("DASHBOARD_TOKEN", "OUTLIVE_DASHBOARD_TOKEN"):
        monkeypatch.setenv(name, OPERATOR)
    script = "from starlette.routing import Match; import web; "
    script += "print(web.app.routes[0].matches({'type': 'http', 'path': '/jobs/workers', 'method': 'GET'})[0])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert ran.stdout == "Match.FULL\n"


def test_it_can_be_mounted_in_another_app(dashboard, database_url, queue):
    job = queue.make()
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


def test_mounted_in_another_app_it_takes_no_user_from_a_header(
    dashboard: Dashboard, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLIVE_DASHBOARD_PROXY", "10.0.0.4")
    monkeypatch.setenv("OUTLIVE_DASHBOARD_USER_HEADER", "X-User")
    mine = asgi(database_url, token=OPERATOR)
    # A server that believes X-Forwarded-For from everyone passes on the address that a client has made up.
    believing = ProxyHeadersMiddleware(mine, trusted_hosts="*")  # type: ignore[arg-type]

    async def visit() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=believing, client=("203.0.113.9", 1))  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            answer = await client.get("/", headers={"x-forwarded-for": "10.0.0.4", "x-user": "anna"})
        await mine.close()
        return answer

    assert dashboard.run(visit()).status_code == 401
