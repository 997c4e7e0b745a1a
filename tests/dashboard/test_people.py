"""People: tokens with a name, users whom a proxy names, and what the audit says about them."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Iterator

import httpx2
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from outlive import config, store
from outlive.dashboard import asgi
from outlive.dashboard.access import Role
from outlive.dashboard.people import AGAIN_S, People, Person, Signed, hash_of
from outlive.dashboard.proxy import USER, Proxy
from outlive.errors import ConfigError, DatabaseBusy
from outlive.statement import Statement
from outlive.store.statements import Table
from tests.dashboard.asking import OPERATOR, VIEWER, Browser, Dashboard
from tests.driving.commands import Cli
from tests.driving.databases import session
from tests.waiting import aeventually, eventually

AUDIT = "select who from outlive.audit order by at, id"


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(database_url)


@pytest.fixture
def behind_proxy(database_url: str) -> Iterator[Dashboard]:
    """Every request of a test comes from 127.0.0.1, which is the proxy here."""
    with Dashboard(database_url, dashboard_proxy="127.0.0.1, 10.0.0.0/24", dashboard_user_header="X-User") as dashboard:
        yield dashboard


def added(cli: Cli, name: str, role: str) -> str:
    ran = cli("dashboard", "token", "add", name, "--role", role)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.strip()


def pause(browser: Browser, **headers: str) -> httpx2.Response:
    return browser.post("/act", headers, action="pause_queue", name="default", proof=browser.proof())


def test_a_person_logs_in_with_a_token_of_her_own_and_the_audit_names_her(dashboard, cli, queue):
    queue.make()
    assert dashboard.browser().post("/login", token="no-token-of-a-person").status_code == 401
    anna = dashboard.browser(added(cli, "anna", "operator"))  # While the dashboard runs.
    assert "anna" in anna.get("/").text
    assert pause(anna).status_code == 303
    assert queue.values(AUDIT)[-1] == "anna from 127.0.0.1 (dashboard)"
    bob = dashboard.browser(added(cli, "bob@example.org", "viewer"))
    assert bob.get("/jobs").status_code == 200
    assert pause(bob).status_code == 403
    assert pause(dashboard.operator).status_code == 303  # The tokens of the settings still work.
    listed = cli("dashboard", "token", "list", "--json").json
    assert [(one["name"], one["role"]) for one in listed] == [("anna", "operator"), ("bob@example.org", "viewer")]
    assert "hash" not in listed[0]


def test_a_token_that_is_removed_logs_in_no_more_and_ends_its_sessions(dashboard, cli, queue):
    token = added(cli, "anna", "operator")
    anna = dashboard.browser(token)
    assert anna.get("/").status_code == 200
    assert cli("dashboard", "token", "remove", "anna").code == 0
    assert dashboard.browser().post("/login", token=token).status_code == 401
    eventually(lambda: anna.get("/").status_code == 401, within_s=AGAIN_S + 10)
    assert anna.get("/live/").status_code == 401
    again = added(cli, "anna", "viewer")
    assert anna.get("/").status_code == 401  # A session belongs to a token, not to a name.
    assert dashboard.browser(again).get("/").status_code == 200
    actions = queue.values("select action from outlive.audit order by at, id")
    assert actions == ["add token", "remove token", "add token"]
    assert token not in queue.value("select string_agg(a::text, '') from outlive.audit a")


def test_a_stream_ends_before_it_shows_anything_to_a_person_whose_token_was_removed(dashboard, cli):
    anna = dashboard.browser(added(cli, "anna", "viewer"))
    name = dashboard.site.access.cookie
    headers = [(b"cookie", f"{name}={anna.client.cookies[name]}".encode())]

    async def news() -> AsyncGenerator[bytes, None]:
        yield b"before"
        await dashboard.site.writing.run(store.remove_dashboard_token("anna"))
        late = time.monotonic() + AGAIN_S
        await aeventually(lambda: time.monotonic() > late, within_s=60)
        yield b"after"

    async def look() -> list[bytes]:
        request = HTTPConnection({"type": "http", "headers": headers})
        return [event async for event in dashboard.site.while_allowed(request, Role.VIEWER, news())]

    assert dashboard.run(look()) == [b"before"]


def test_only_the_hash_of_a_token_is_stored_and_viewers_of_the_database_can_not_read_it(cli, queue, database_url):
    token = added(cli, "anna", "operator")
    assert len(token) == 32
    [stored] = queue.values("select hash from outlive.dashboard_tokens")
    assert bytes(stored) == hashlib.sha256(token.encode()).digest()
    for role in ("outlive_viewer", "outlive_enqueue", "outlive_job", "outlive_protocol"):
        with session(queue, database_url, role) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute("select name from outlive.dashboard_tokens")


def test_a_token_is_given_to_a_name_once_and_taken_back_once(cli):
    for words in (["add", "anna", "--role", "boss"], ["add", ""], ["add", "operator"], ["add", "x" * 201]):
        assert cli("dashboard", "token", *words).code == 2
    assert "no person has a token" in cli("dashboard", "token", "list").out
    added(cli, "anna", "viewer")
    ran = cli("dashboard", "token", "add", "anna")
    assert (ran.code, ran.out) == (1, "")
    assert "anna has a token already" in ran.err
    assert cli("dashboard", "token", "remove", "anna").code == 0
    assert "anna has no token" in cli("dashboard", "token", "remove", "anna").err


def test_no_name_can_pass_for_another_sentence_of_the_audit():
    for name in ("operator", "viewer", "anna from 10.0.0.9 (cli)", 'a"b', "x (dashboard)"):
        shown = Person(Role.OPERATOR, name).shown
        assert shown.startswith('"')
        assert shown.endswith('"')
    for name in ("anna", "anna.k@example.org", "CORP\\anna", "Zoë"):
        assert Person(Role.OPERATOR, name).shown == name
    assert Person(Role.OPERATOR).shown == "operator"


def test_while_the_tokens_can_not_be_read_known_ones_hold_for_a_minute_and_few_requests_wait(
    dashboard, cli, database_url, monkeypatch
):
    token = added(cli, "anna", "viewer")
    tried: list[str] = []

    async def run(statement: Statement[Table]) -> Table:
        tried.append(statement.name)
        return await dashboard.site.database.run(statement)

    tokens = People(dashboard.site.access, run)

    def login() -> Person | None:
        return dashboard.run(tokens.find("hash", hash_of(token), fresh=True))

    assert login() is not None
    monkeypatch.setattr("outlive.dashboard.people.AGAIN_S", 600.0)
    with psycopg.connect(database_url) as other:
        other.execute("lock table outlive.dashboard_tokens in access exclusive mode")
        assert [login() is not None for _ in range(3)] == [True] * 3
        assert len(tried) == 2  # The second one failed.
        monkeypatch.setattr("outlive.dashboard.people.HOLD_S", 0.0)
        with pytest.raises(DatabaseBusy):
            login()
        assert len(tried) == 2
    monkeypatch.setattr("outlive.dashboard.people.AGAIN_S", 0.0)
    assert login() is not None
    assert len(tried) == 3


def test_files_and_the_probe_of_the_process_do_not_ask_who_a_request_comes_from(dashboard, monkeypatch):
    async def person(connection: HTTPConnection) -> Person | None:
        raise AssertionError("this may wait for the database")

    monkeypatch.setattr(dashboard.site.people, "person", person)
    assert dashboard.get("/static/style.css").status_code == 200
    assert dashboard.get("/healthz").status_code == 200
    assert dashboard.get("/jobs").status_code == 500


# Behind a proxy


def test_without_a_proxy_in_the_settings_no_header_is_believed(dashboard, queue):
    queue.make()
    forged = {"x-forwarded-for": "203.0.113.9", "x-user": "anna", "x-forwarded-user": "anna"}
    assert dashboard.browser().get("/", x_user="anna", x_forwarded_user="anna").status_code == 401
    assert pause(dashboard.operator, **forged).status_code == 303
    assert queue.values(AUDIT) == ["operator from 127.0.0.1 (dashboard)"]
    stranger = dashboard.browser()
    tried = [stranger.get("/?token=a-wrong-token", x_forwarded_for=f"10.0.0.{n}").status_code for n in range(40)]
    assert tried == [401] * 10 + [429] * 30
    assert stranger.get(f"/?token={VIEWER}").status_code == 303


def test_a_user_whom_the_proxy_names_looks_and_acts_only_if_the_name_is_an_operators(behind_proxy, cli, queue):
    queue.make()
    added(cli, "anna", "operator")
    client = behind_proxy.browser()
    assert client.get("/").status_code == 401
    assert "carl" in client.get("/", x_user="carl").text
    assert client.get("/confirm?action=pause_queue&name=default", x_user="carl").status_code == 403
    asked = client.get("/confirm?action=pause_queue&name=default", x_user="anna")
    assert asked.status_code == 200
    proof = asked.text.split('name="proof" value="')[1].split('"')[0]
    form = {"action": "pause_queue", "name": "default", "proof": proof}
    seen = {"x-user": "anna", "x-forwarded-for": "203.0.113.9, 198.51.100.7, 10.0.0.3"}
    assert client.post("/act", {**seen, "x-user": "carl"}, **form).status_code == 403
    assert client.post("/act", {**seen, "origin": "http://evil.example"}, **form).status_code == 403
    assert client.post("/act", seen, **{**form, "proof": "0"}).status_code == 403
    assert client.post("/act", seen, **form).status_code == 303
    assert queue.values(AUDIT)[-1] == "anna from 198.51.100.7 (dashboard)"


def signed_in(request: HTTPConnection) -> Signed:
    """What an app that mounts the dashboard may know: here its visitors say so themselves."""
    name = request.headers.get("x-signed-in")
    return None if name is None else (name, "operator" if name == "anna" else "viewer")


async def signed_in_later(request: HTTPConnection) -> Signed:
    return await asyncio.to_thread(signed_in, request)


@pytest.mark.parametrize("who", [signed_in, signed_in_later])
def test_the_app_around_says_who_is_signed_in_and_what_they_may_do(dashboard, database_url, queue, who):
    mine = asgi(database_url, token=OPERATOR, who=who)
    transport = httpx2.ASGITransport(app=Starlette(routes=[Mount("/ops", mine)]))

    async def visit() -> None:
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            assert (await client.get("/ops/")).status_code == 401
            asked = "/ops/confirm?action=pause_queue&name=default"
            bob, anna = {"x-signed-in": "bob"}, {"x-signed-in": "anna"}
            assert "bob" in (await client.get("/ops/", headers=bob)).text
            assert (await client.get(asked, headers=bob)).status_code == 403
            page = (await client.get(asked, headers=anna)).text
            proof = page.split('name="proof" value="')[1].split('"')[0]
            form = {"action": "pause_queue", "name": "default", "proof": proof}
            own = {"origin": "http://shop.example", "sec-fetch-site": "same-origin"}
            given = [own | bob, own | anna | {"origin": "http://evil.example"}, own | anna]
            answers = [await client.post("/ops/act", data=form, headers=headers) for headers in given]
            assert [answer.status_code for answer in answers] == [403, 403, 303]
        await mine.close()

    queue.make()
    dashboard.run(visit())
    assert queue.values(AUDIT)[-1] == "anna from 127.0.0.1 (dashboard)"


def test_an_operators_token_gives_a_user_of_the_proxy_the_role_and_not_the_name(behind_proxy, queue):
    queue.make()
    carl = behind_proxy.browser(OPERATOR)
    assert pause(carl, **{"x-user": "carl"}).status_code == 303
    assert queue.values(AUDIT) == ["carl from 127.0.0.1 (dashboard)"]


@pytest.mark.parametrize(
    ("peer", "headers", "client", "user"),
    [
        ("10.0.0.3", [("x-forwarded-for", "1.2.3.4"), ("x-user", "anna")], "1.2.3.4", "anna"),
        ("10.0.1.3", [("x-forwarded-for", "1.2.3.4"), ("x-user", "anna")], "10.0.1.3", None),
        ("::ffff:10.0.0.3", [("x-forwarded-for", "9.9.9.9, 1.2.3.4, 10.0.0.9")], "1.2.3.4", None),
        ("10.0.0.3", [("x-forwarded-for", "9.9.9.9"), ("x-forwarded-for", "1.2.3.4")], "1.2.3.4", None),
        ("10.0.0.3", [("x-forwarded-for", "1.2.3.4, nonsense")], "10.0.0.3", None),
        ("10.0.0.3", [("x-user", "anna"), ("x-user", "bob")], "10.0.0.3", None),
        ("10.0.0.3", [("x-user", "a\nb")], "10.0.0.3", None),
        ("10.0.0.3", [("x-user", "Zoë".encode().decode("latin-1"))], "10.0.0.3", "Zoë"),
        ("10.0.0.3", [("x-user", " anna\t")], "10.0.0.3", "anna"),
        ("10.0.0.3", [("x-user", "anna\xa0".encode().decode("latin-1"))], "10.0.0.3", None),
        ("10.0.0.3", [("x-user", "x" * 201)], "10.0.0.3", None),
        ("", [("x-user", "anna")], "", None),
    ],
)
def test_a_proxy_is_believed_only_at_its_address_and_only_what_it_has_seen(peer, headers, client, user):
    raw = [(name.encode(), text.encode("latin-1")) for name, text in headers]
    scope = {"type": "http", "client": (peer, 1), "scheme": "http", "headers": raw, USER: "forged"}
    Proxy(["10.0.0.0/24"], "x-user").read(scope)
    assert (scope["client"][0], scope.get(USER)) == (client, user)


def test_a_header_for_users_needs_the_address_of_the_proxy():
    for wrong, says in (
        ({"dashboard_user_header": "X-User"}, "any client could send that header"),
        ({"dashboard_user_header": "X User", "dashboard_proxy": "::1"}, "the name of a header"),
        ({"dashboard_proxy": "proxy.example.org"}, "IP addresses or networks"),
        ({"dashboard_user_header": "X-User", "dashboard_proxy": "0.0.0.0/0"}, "names every address"),
        ({"dashboard_user_header": "X-User", "dashboard_proxy": "10.0.0.4, ::/0"}, "names every address"),
    ):
        with pytest.raises(ConfigError, match=says):
            config.load(environ={}, flags=wrong)
    read = config.load(environ={"OUTLIVE_DASHBOARD_PROXY": "10.0.0.4,::1"})
    assert read.dashboard_proxy == ("10.0.0.4/32", "::1/128")
