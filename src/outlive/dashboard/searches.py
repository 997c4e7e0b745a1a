"""Searches for which no index has all parts of the filter, so that they may take longer than a page. Each look at an
open page continues its search for a moment: the page fills up by itself."""

from __future__ import annotations

import time
from collections import OrderedDict

from outlive.dashboard.database import Database
from outlive.operations import selection
from outlive.store import Found, JobFilter

PAGE = 50
PATIENCE_S = 0.1
"""How long one look searches."""
KEPT_S = 10.0
"""After this time a search that has ended begins again. Its page shows the last answer until there is a new one."""
REACH = 100_000
"""At so many jobs a search stops, and its page has a button that goes on from there: a page that is left open does not
search for hours."""
MOST = 100
NOTHING = Found([], 0, 0, None)


def goes_on(found: Found) -> bool:
    """Whether the search for a page continues: it has neither found enough nor come to an end or to its reach."""
    return found.next is not None and len(found.ids) < PAGE and found.looked < REACH


class Search:
    """A search for one page of jobs: what it has found so far, and the last whole answer."""

    def __init__(self, wanted: JobFilter, past: str | None, *, oldest: bool) -> None:
        self._wanted, self._past, self._oldest = wanted, past, oldest
        self._so_far = NOTHING
        self._whole: Found | None = None
        self._ended_at = 0.0

    async def go_on(self, database: Database) -> Found:
        if self._whole is not None and time.monotonic() - self._ended_at < KEPT_S:
            return self._whole
        had, limit = self._so_far, PAGE - len(self._so_far.ids)
        past = had.next or self._past
        steps = selection.page(self._wanted, limit=limit, past=past, oldest=self._oldest, patience_s=PATIENCE_S)
        more = await database.do(steps)
        ids = [*had.ids, *more.ids]
        found = Found(ids, len(ids), more.seen, more.next, had.looked + more.looked)
        if goes_on(found):
            self._so_far = found
            return found if self._whole is None else self._whole
        self._so_far, self._whole, self._ended_at = NOTHING, found, time.monotonic()
        return found


class Searches:
    """The last searches, by what they look for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: OrderedDict[tuple[JobFilter, str | None, bool], Search] = OrderedDict()

    async def look(self, wanted: JobFilter, past: str | None, *, oldest: bool) -> Found:
        search = Search(wanted, past, oldest=oldest)
        if not wanted.indexed:
            search = self._kept.setdefault((wanted, past, oldest), search)
            self._kept.move_to_end((wanted, past, oldest))
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        return await search.go_on(self._database)
