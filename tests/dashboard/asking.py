"""A dashboard in an event loop of its own thread, and requests to it as a browser sends them."""

import asyncio
import html
import json
import re
import threading
from collections.abc import Coroutine
from functools import cached_property
from typing import Any, Self, TypeVar
from uuid import UUID

import httpx2
from starlette.requests import HTTPConnection

from outlive import config
from outlive.dashboard import build
from outlive.dashboard.shield import LOOPBACK
from outlive.states import Outcome
from tests.driving.making import Queue

T = TypeVar("T")
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x1b[31mred\x1b]0;title\x07שלום"
OPERATOR = "operator-token-0123"
VIEWER = "viewer-token-456789"
ORIGIN = "http://127.0.0.1:8321"


class Dashboard:
    """One dashboard. `get` and `post` are those of an operator."""

    def __init__(self, database_url: str, **settings: object) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        read = config.load(environ={}, flags={"database_url": database_url, **settings})
        self.root_path = read.dashboard_root_path
        self.site = build(read, token=OPERATOR, viewer_token=VIEWER, hosts=LOOPBACK)

    def __enter__(self) -> Self:
        self._thread.start()
        self.operator = self.browser(OPERATOR)
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.site.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @cached_property
    def viewer(self) -> "Browser":
        return self.browser(VIEWER)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def browser(self, token: str | None = None) -> "Browser":
        return Browser(self, token)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self.operator.get(path, **headers)


class Browser:
    def __init__(self, dashboard: Dashboard, token: str | None) -> None:
        self._dashboard = dashboard
        # A failure must reach the test as the page that a person sees.
        transport = httpx2.ASGITransport(app=dashboard.site, raise_app_exceptions=False)
        self.client = httpx2.AsyncClient(transport=transport, base_url=ORIGIN)
        if token is not None:
            assert self.post(f"{dashboard.root_path}/login", token=token).status_code == 303

    def get(self, path: str, **headers: str) -> httpx2.Response:
        named = {key.replace("_", "-").encode(): value.encode("latin-1") for key, value in headers.items()}
        return self._dashboard.run(self.client.get(path, headers=named))

    def post(self, path: str, headers: dict[str, str] | None = None, /, **fields: Any) -> httpx2.Response:
        sent = {"origin": ORIGIN, "sec-fetch-site": "same-origin", **(headers or {})}
        return self._dashboard.run(self.client.post(path, data=fields, headers=sent))

    def post_body(self, path: str, body: str) -> httpx2.Response:
        """Send a form that is encoded already."""
        headers = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
        return self._dashboard.run(self.client.post(path, content=body.encode(), headers=headers))

    def proof(self) -> str:
        """What the forms of this session carry."""
        access = self._dashboard.site.access
        cookie = f"{access.cookie}={self.client.cookies[access.cookie]}".encode()
        return access.proof(HTTPConnection({"type": "http", "headers": [(b"cookie", cookie)]}))

    def said(self, answer: httpx2.Response) -> str:
        """What the page to which an action leads says about it."""
        shown = re.search(r'<p class="done" role="status">(.*?)</p>', self.get(answer.headers["location"]).text)
        return html.unescape(re.sub("<[^>]+>", "", shown[1])) if shown else ""


def words(response: httpx2.Response) -> str:
    """The text of a page, as a person reads it."""
    assert response.status_code == 200, response.text
    main = response.text.split("<main", 1)[1].split("</main>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", main).split())


def make_hostile(queue: Queue) -> UUID:
    """A failed job whose every text is written for a browser or a terminal to obey."""
    args = json.dumps({"x": HOSTILE, "large": "y" * 900_000}).encode()
    job = queue.make(HOSTILE.replace("\x1b", "").replace("\x07", ""), args=args, queue="<b>q")
    queue.run_job(job, Outcome.FAILED, error=HOSTILE, output=HOSTILE, stack=HOSTILE, final=True)
    return job
