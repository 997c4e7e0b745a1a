"""What a page is, and what one look at it depends on."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from uuid import UUID

from outlive.dashboard.access import Role
from outlive.dashboard.rendering import Links
from outlive.errors import OutliveError

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

MAX_VALUE = 500


class NotFound(OutliveError):
    """There is nothing at this address. The text says what may have become of it."""


class Refused(Exception):
    """The role of the viewer does not allow this. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A look at a page, or at the page of one thing. Two viewers with equal visits see the same."""

    page: Page
    role: Role
    root: str
    thing: str = ""
    query: tuple[tuple[str, str], ...] = ()

    def get(self, key: str) -> str | None:
        """A value of the query; None if it is empty. What can't be stored in Postgres can't match anything there."""
        found = dict(self.query).get(key, "").replace("\0", "").strip()[:MAX_VALUE]
        return found or None

    def id(self) -> UUID:
        try:
            return UUID(self.thing)
        except ValueError:
            raise NotFound("This is not an id: an id has 32 hexadecimal digits.") from None

    @property
    def here(self) -> str:
        """The address of the page below the dashboard's own, to come back to after an action."""
        path = self.page.path.replace("{id}", quote(self.thing, safe=""))
        query = urlencode([(key, value) for key, value in self.query if key != "done"])
        return f"{path}?{query}" if query else path

    @property
    def links(self) -> Links:
        return Links(self.root)


def inside(back: str) -> str:
    r"""This address if it is below the dashboard's own, or else that of the overview. Browsers read `\` as `/`."""
    return back if re.match(r"/(?![/\\])", back) and back.isprintable() else "/"


Look = Callable[["Site", Visit], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its address, its template, and the function that finds what the template shows."""

    path: str
    template: str
    look: Look
    live: bool = True
