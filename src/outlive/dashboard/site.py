"""The dashboard as an ASGI app: its routes, its login, and what a page says when something is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from outlive import db, errors
from outlive.config import Config
from outlive.dashboard import actions
from outlive.dashboard.access import SESSION_S, Access, Role, is_embedded_elsewhere, refusal
from outlive.dashboard.actions.questions import NothingToDo
from outlive.dashboard.answers import Answers
from outlive.dashboard.database import Away, Database
from outlive.dashboard.live import Live
from outlive.dashboard.pages import PAGES
from outlive.dashboard.people import PERSON, TROUBLE, People, Who, WrongToken, address_of, person_of
from outlive.dashboard.probes import Probes
from outlive.dashboard.proxy import Proxy
from outlive.dashboard.rendering import STATIC, Links, Templates
from outlive.dashboard.searches import Searches
from outlive.dashboard.shield import Shield
from outlive.dashboard.visits import NotFound, Page, Refused, Visit, inside
from outlive.errors import BadArguments, BatchNotFound, ConfigError, DatabaseBusy, JobNotFound, OutliveError
from outlive.metrics.database import DatabaseMetrics
from outlive.model import new_job_id
from outlive.operations.enqueuing import BadFields

KEPT = 200

_log = logging.getLogger("outlive.dashboard")


class Files(StaticFiles):
    """The stylesheet and the scripts. Their addresses change with their content."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:
        response = super().file_response(*arguments, **more)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


class Site:
    """One dashboard: where it reads, who may see it, and its pages."""

    def __init__(
        self,
        settings: Config,
        address: Callable[[], str],
        access: Access,
        hosts: Iterable[str] | None,
        who: Who | None = None,
    ) -> None:
        self.access = access
        self.database = Database(address)
        self.writing = Database(address, size=2, purpose=db.ACTIONS)
        self.people = People(access, self.database.run, who)
        self.answers = Answers(self.database)
        self.searches = Searches(self.database)
        self.metrics = DatabaseMetrics(self.database.run, self.database.name)
        self._probes = Probes(self)
        self.templates = Templates()
        self.live = Live(self._fragments)
        self.notices: dict[UUID, str] = {}
        """What became of the last actions, by their entries in the audit."""
        self.acting: set[asyncio.Task[None]] = set()
        routes: list[Route | Mount] = [
            Mount("/static", Files(directory=STATIC)),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/act", self._act, methods=["POST"]),
            *self._probes.routes(),
        ]
        for page in PAGES:
            if page.look is actions.confirm:
                self._question = page
            routes.append(Route(page.path, partial(self._show, page), methods=["GET"]))
            if page.live:
                routes.append(Route(f"/live{page.path}".rstrip("/"), partial(self._stream, page), methods=["GET"]))
        kinds = (OutliveError, Refused, NothingToDo, HTTPException, Exception)
        self._routed = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, self._failed))
        self._routed.router.redirect_slashes = False  # They name a scheme and a host, which only a proxy may know.
        proxy = Proxy(settings.dashboard_proxy, settings.dashboard_user_header)
        self._app = Shield(self._identified, hosts, proxy, settings.dashboard_root_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _identified(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find out who a request comes from, once. For what everyone may see, that need not wait for the database."""
        root = scope.get("root_path", "")
        path = scope.get("path", "").removeprefix(root)
        scope["path"] = root + (path.rstrip("/") or "/")
        if scope["type"] == "http" and not path.startswith(("/static/", "/healthz")):
            try:
                scope[PERSON] = await self.people.person(HTTPConnection(scope))
            except OutliveError as error:
                scope[TROUBLE] = error
        await self._routed(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Read the last hour before the first page asks for it. An app that mounts the dashboard does not do this."""
        await receive()
        self.answers.start()
        warning = asyncio.create_task(self._probes.warn())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        warning.cancel()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def close(self) -> None:
        await self.answers.stop()
        await self.metrics.close()
        await self.database.close()
        await self.writing.close()

    # Pages

    async def _show(self, page: Page, request: Request) -> Response:
        if refused := await self._unknown(request):
            return refused
        visit = self._visit(request, page)
        found = await self._found(visit)
        query = f"?{request.url.query}" if request.url.query else ""
        live = f"{visit.links.root}/live{_below(request)}{query}" if page.live and not found.get("still") else None
        return self._html(request, page.template, {**found, "live": live}, found.get("status", 200))

    async def _stream(self, page: Page, request: Request) -> Response:
        person = person_of(request)
        if person is None:
            return PlainTextResponse("log in first", 401)
        visit = self._visit(request, page)
        if not self.live.has_room(visit):
            return PlainTextResponse("too many pages are open", 503)
        headers = {"x-accel-buffering": "no"}
        events = self.while_allowed(request, person.role, self.live.stream(visit))
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def while_allowed(
        self, request: HTTPConnection, role: Role, events: AsyncGenerator[bytes, None]
    ) -> AsyncIterator[bytes]:
        """End a stream before it shows anything to a person whose token was removed."""
        async with aclosing(events):
            async for event in events:
                with suppress(OutliveError):
                    person = await self.people.person(request)
                    if person is None or person.role is not role:
                        return
                yield event

    def _visit(self, request: Request, page: Page) -> Visit:
        person = person_of(request)
        assert person is not None
        query = tuple(sorted(request.query_params.multi_items()))
        return Visit(page, person.role, _root(request), request.path_params.get("id", ""), query)

    async def _found(self, visit: Visit) -> Mapping[str, Any]:
        self.answers.start()
        found = await visit.page.look(self, visit)
        return {
            "said": self._notice(visit),
            **found,
            "at": visit.links,
            "visit": visit,
            "operator": visit.role is Role.OPERATOR,
        }

    async def _fragments(self, visit: Visit) -> Mapping[str, str]:
        return self.templates.fragments(visit.page.template, await self._found(visit))

    def _html(self, request: Request, template: str, found: Mapping[str, Any], status: int) -> Response:
        """A page in its frame, which differs between viewers."""
        frame = {"person": request.scope.get(PERSON), "proof": self.access.proof(request), "here": _below(request)}
        html = self.templates.page(template, {**frame, "at": Links(_root(request)), "live": None, **found})
        again = {"refresh": "3"} if status == 503 and request.method == "GET" else {}
        return HTMLResponse(html, status, headers=again)

    def say(self, request: Request, status: int, title: str, words: str, since: datetime | None = None) -> Response:
        """A page that only says something."""
        return self._html(request, "problem.html", {"title": title, "words": words, "since": since}, status)

    # Actions

    async def _act(self, request: Request) -> Response:
        _expect_own_page(request)
        if (person := person_of(request)) is None:
            return self._ask(request, 401)
        given = await fields(request)
        values = dict(given)
        if person.role is not Role.OPERATOR:
            raise Refused(actions.VIEWER)
        if not self.access.proves(request, values.get("proof", "")):
            raise Refused("This form is from another session: go back, and try once more.")
        who = f"{person.shown} from {address_of(request) or 'here'} (dashboard)"
        try:
            entry, back = await actions.perform(self, given, who), values.get("back", "")
        except (BadArguments, ConfigError) as error:
            return await self._ask_again(request, given, error)
        match values.get("action"):
            case "prune" if back.startswith("/jobs/"):
                back = "/jobs"  # The page of the job is gone, with the job.
            case "enqueue":
                back = f"/jobs/{entry}"
        return self._back(request, back, entry)

    async def _ask_again(self, request: Request, given: list[tuple[str, str]], error: OutliveError) -> Response:
        """The form of an action once more, with what was typed, and what is wrong with it."""
        visit = Visit(self._question, Role.OPERATOR, _root(request), query=tuple(given))
        found = await self._found(visit)
        if not found["question"].fields:
            raise error
        wrong = {"wrong_fields": error.fields} if isinstance(error, BadFields) else {"wrong": str(error)}
        return self._html(request, visit.page.template, {**found, **wrong}, 400)

    def _back(self, request: Request, back: str, entry: UUID) -> Response:
        """Lead to a page of the dashboard that says what became of an action."""
        there = _root(request) + inside(back)
        return RedirectResponse(f"{there}{'&' if '?' in there else '?'}done={entry}", 303)

    def note(self, entry: UUID, words: str) -> None:
        """Keep what became of an action for the page that it leads to."""
        self.notices[entry] = words
        while len(self.notices) > KEPT:
            del self.notices[next(iter(self.notices))]

    def _notice(self, visit: Visit) -> str | None:
        try:
            return self.notices.get(UUID(visit.get("done") or ""))
        except ValueError:
            return None

    # Login

    async def _unknown(self, request: Request) -> Response | None:
        """The answer to a request without a session: exchange the token of a link for a cookie, or ask for one."""
        query = request.url.remove_query_params("token").query
        here = f"{_below(request)}?{query}" if query else _below(request)
        if token := request.query_params.get("token"):
            if is_embedded_elsewhere(request):
                raise Refused("This link was opened by a page of another site.")
            return await self._let_in(request, token, here)
        if person_of(request) is not None:
            return None
        response = self._ask(request, 401, back=here)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link on another site: the browser keeps our strict cookie back, and sends it when it asks once more.
            response.headers["refresh"] = "0"
        return response

    def _ask(self, request: Request, status: int, words: str = "", *, back: str = "/") -> Response:
        """Ask for a token. The page `back` follows."""
        found = {"title": "Log in", "words": words, "back": back, "person": None}
        return self._html(request, "login.html", found, status)

    async def _let_in(self, request: Request, token: str, back: str) -> Response:
        try:
            person = await self.people.admit(request, token)
        except WrongToken as error:
            return self._ask(request, error.status, str(error), back=back)
        response = RedirectResponse(_root(request) + inside(back), 303)
        response.set_cookie(
            self.access.cookie,
            self.access.session(person.key),
            max_age=SESSION_S,
            path=_root(request) or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            return self._ask(request, 200)
        _expect_own_page(request)
        given = dict(await fields(request))
        return await self._let_in(request, given.get("token", "").strip(), given.get("back", "/"))

    async def _logout(self, request: Request) -> Response:
        _expect_own_page(request)
        response = RedirectResponse(Links(_root(request))("login"), 303)
        response.delete_cookie(self.access.cookie, path=_root(request) or "/", httponly=True, samesite="strict")
        return response

    # What goes wrong

    async def _failed(self, request: Request, error: Exception) -> Response:
        match error:
            case errors.MissingRight():
                return self.say(request, 502, "The database refused", str(error))
            case OutliveError() if request.scope.get(PERSON) is None:  # A stranger learns nothing about the database.
                return self.say(request, 503, "The database does not answer", "")
            case Away():
                return self.say(request, 503, "The database can't be reached", str(error), since=error.since)
            case DatabaseBusy():
                return self.say(request, 503, "The database is slow", str(error))
            case errors.SchemaMismatch():
                return self.say(request, 503, "The database has another schema", str(error))
            case NotFound() | JobNotFound() | BatchNotFound():
                return self.say(request, 404, "Not found", str(error))
            case Refused():
                return self.say(request, 403, "Refused", str(error))
            case BadArguments() | ConfigError():
                return self.say(request, 400, "This can't be done", str(error))
            case OutliveError():
                return self.say(request, 502, "The database refused", str(error))
            case NothingToDo():
                self.note(entry := new_job_id(), str(error))
                return self._back(request, error.back, entry)
            case HTTPException():
                return self.say(request, error.status_code, error.detail, "")
            case _:
                _log.error("a page failed: %s", request.url.path, exc_info=error)
                return self.say(request, 500, "This is a bug in outlive", "The log of the dashboard has the details.")


async def fields(request: Request) -> list[tuple[str, str]]:
    try:
        body = await request.body()
    except ClientDisconnect:
        raise HTTPException(413, "this form is too large") from None
    return [
        (key, value.replace("\0", ""))
        for key, value in parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=5000)
    ]


def _expect_own_page(request: Request) -> None:
    """Refuse a write that does not come from a page of this dashboard."""
    if why := refusal(request):
        raise Refused(why)


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _below(request: Request) -> str:
    """The path of a request below the one at which the dashboard is mounted."""
    return "/" + request.url.path.removeprefix(_root(request)).lstrip("/")
