"""Searches for which no index has all parts of the filter, or which find many jobs, so that they may take longer than a
page. Each look at an open page continues its search for a moment: the page fills up by itself."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from outlive.dashboard.database import Database
from outlive.store import Found, JobFilter, find_page

PAGE = 50
MANY = 5_000
"""How many jobs a page takes that sorts or groups them by what no index has: the newest that match."""
PATIENCE_S = 0.1
"""How long one look searches."""
KEPT_S = 10.0
"""After this time a search that has ended begins again. Its page shows the last answer until there is a new one."""
REACH = 100_000
"""At so many jobs a search stops, and its page has a button that goes on from there: a page that is left open does not
search for hours."""
AT_ONCE = 200
"""How many jobs one look finds at most where each has to be checked: some 40 ms."""
MOST = 100
NOTHING = Found([], 0, 0, None)


def goes_on(found: Found, most: int) -> bool:
    """Whether the search for a page continues: it has neither found enough nor come to an end or to its reach."""
    return found.next is not None and len(found.ids) < most and found.looked < REACH


@dataclass(slots=True)
class Search:
    """A search for one page of jobs: what it has found so far, and the last whole answer."""

    wanted: JobFilter
    past: str | None
    oldest: bool
    most: int
    so_far: Found = NOTHING
    whole: Found | None = None
    ended_at: float = 0.0

    async def go_on(self, database: Database) -> Found:
        if self.whole is not None and time.monotonic() - self.ended_at < KEPT_S:
            return self.whole
        had, limit = self.so_far, self.most - len(self.so_far.ids)
        if not self.wanted.indexed:
            limit = min(limit, AT_ONCE)
        past = had.next or self.past
        steps = find_page(self.wanted, limit=limit, past=past, oldest=self.oldest, patience_s=PATIENCE_S)
        more = await database.do(steps)
        ids = [*had.ids, *more.ids]
        found = Found(ids, len(ids), more.seen, more.next, had.looked + more.looked)
        if goes_on(found, self.most):
            self.so_far = found
            return found if self.whole is None else self.whole
        self.so_far, self.whole, self.ended_at = NOTHING, found, time.monotonic()
        return found


class Searches:
    """The last searches, by what they look for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept = functools.lru_cache(MOST)(Search)

    async def look(self, wanted: JobFilter, past: str | None, *, oldest: bool, most: int = PAGE) -> Found:
        search = Search if wanted.indexed and most == PAGE else self._kept
        return await search(wanted, past, oldest, most).go_on(self._database)
