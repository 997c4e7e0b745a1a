"""What other programs ask: metrics, which need a token, and whether the dashboard is up and ready, which need none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from outlive import store
from outlive.dashboard.people import WrongToken, person_of
from outlive.dashboard.shield import PROBES
from outlive.errors import MissingRight, OutliveError, SchemaMismatch
from outlive.metrics import exposition
from outlive.metrics.database import SILENT
from outlive.migrate import VERSION

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

_log = logging.getLogger("outlive.dashboard")
ANOTHER_SCHEMA = "the database does not have the schema of this version"


class Probes:
    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[Route]:
        answers = (self._is_well, self._is_ready, self._metrics)
        return [Route(path, answer, methods=["GET"]) for path, answer in zip(PROBES, answers, strict=True)]

    async def _metrics(self, request: Request) -> Response:
        """What Prometheus reads, with a token in the header Authorization or the cookie of a browser."""
        if person_of(request) is None and (refused := await self._without_bearer(request)):
            return refused
        try:
            text = await self._site.metrics.text()
        except ModuleNotFoundError:
            return PlainTextResponse("metrics need another extra: pip install 'outlive[metrics]'", 501)
        if not text:
            return PlainTextResponse(self._site.metrics.trouble, 503)
        return Response(text, headers={"content-type": exposition.CONTENT_TYPE})

    async def _without_bearer(self, request: Request) -> Response | None:
        """The answer to a request whose header Authorization has no token of this dashboard."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        words, status = "send a token of this dashboard: Authorization: Bearer TOKEN", 401
        try:
            if scheme.lower() == "bearer" and token.strip():
                await self._site.people.admit(request, token.strip())
                return None
        except WrongToken as error:
            words, status = str(error), error.status
        return PlainTextResponse(words, status, headers={"www-authenticate": "Bearer"})

    async def _is_well(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _is_ready(self, request: Request) -> Response:
        trouble = await self.trouble()
        return PlainTextResponse(trouble or "ok", 503 if trouble else 200)

    async def trouble(self) -> str:
        """Why the pages can't be shown, also to a role that may read the views alone; empty if they can."""
        try:
            if await self._site.database.run(store.schema_version(VERSION)) != VERSION:
                return ANOTHER_SCHEMA
            await self._site.database.run(store.list_attempts(UUID(int=0)))
        except SchemaMismatch:
            return ANOTHER_SCHEMA
        except MissingRight as error:
            return str(error)
        except OutliveError:
            return SILENT
        return ""

    async def warn(self) -> None:
        if trouble := await self.trouble():
            _log.warning("the dashboard can't show its pages: %s", trouble)
