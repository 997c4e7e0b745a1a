"""Retry, repeat, cancel, release or delete jobs: those that an operator has selected, or all that match a filter.

A form leads to the page `/confirm`, which shows the action's `question` and changes nothing. The answer is a POST with
the same fields: it makes the same action again, and `perform` does it. What became of it is noted for the page to which
the operator goes back.

`site.database` only reads, and `site.writing` is for what operators do. `run` runs one statement; `do` an operation of
several, in which the answer to one decides about the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from outlive import store
from outlive.dashboard.actions.questions import NothingToDo, Question, wait_a_moment_for
from outlive.humanize import number
from outlive.operations import By, selection, verbs
from outlive.operations.selection import Count
from outlive.operations.verbs import PRUNE, Tally, Verb
from outlive.store import JobFilter
from outlive.store.statements import Table

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

COUNT_S = 0.5
"""How long a question counts the jobs that match. Then it says "more than"."""
FIND_S = 0.2
"""How long it looks for the jobs that it names."""
LISTED = 10
"""How many jobs a question names."""
FACTS = (("Task", "task"), ("Job", "id"), ("State", "state"))


@dataclass(frozen=True, slots=True)
class ActOnSelected:
    verb: Verb
    ids: list[UUID]

    async def question(self, site: Site) -> Question:
        if not self.ids:
            raise NothingToDo("No job was selected.")
        jobs = await site.database.run(store.list_jobs(self.ids[:LISTED]))
        if len(self.ids) > 1:
            return _question(self.verb, Count(len(self.ids)), jobs=jobs)
        facts = [(label, str(job[column])) for job in jobs for label, column in FACTS]
        return _question(self.verb, Count(1), facts)

    async def perform(self, site: Site, by: By) -> None:
        await _act(site, self.verb, self.ids, by)


@dataclass(frozen=True, slots=True)
class ActOnMatching:
    verb: Verb
    wanted: JobFilter

    async def question(self, site: Site) -> Question:
        count = await site.database.do(selection.count(self.wanted, patience_s=COUNT_S))
        if not count.jobs:
            raise NothingToDo(f"No job that matches can be {self.verb.past}.")
        parts = [selection.in_words(key, value) for key, value in msgspec.to_builtins(self.wanted).items()]
        facts = [(label.capitalize(), words) for label, words in parts]
        return _question(self.verb, count, facts, await first_of(site, self.wanted))

    async def perform(self, site: Site, by: By) -> None:
        await _act(site, self.verb, self.wanted, by)


async def first_of(site: Site, wanted: JobFilter) -> Table:
    """The first jobs that match, as far as they are found at once."""
    found = await site.database.do(selection.page(wanted, limit=LISTED, patience_s=FIND_S))
    return await site.database.run(store.list_jobs(found.ids, wanted.states))


def _question(verb: Verb, count: Count, facts: Sequence[tuple[str, str]] = (), jobs: Table | None = None) -> Question:
    return Question(verb.asked(count), verb.note, facts, danger=verb is PRUNE, jobs=jobs or ())


async def _act(site: Site, verb: Verb, chosen: JobFilter | list[UUID], by: By) -> None:
    """Begin, and wait for a moment: thousands of jobs may take minutes, and the audit shows how far they are."""
    await wait_a_moment_for(_act_on_all(site, verb, chosen, by), site, by)


async def _act_on_all(site: Site, verb: Verb, chosen: JobFilter | list[UUID], by: By) -> None:
    tally = Tally(verb)
    try:
        await site.writing.do(verbs.act(tally, chosen, by))
    except Exception as error:
        site.note(by.entry, f"{tally}, then it failed: {error}")
        raise
    unchanged = tally.jobs - tally.changed
    site.note(by.entry, f"{tally}{f', {number(unchanged)} not changed' if unchanged else ''}{_first_note(tally)}")


def _first_note(tally: Tally) -> str:
    """Why the first job was not changed. Of a single job that was repeated, the id of the new one."""
    noted = tally.repeated if tally.jobs == 1 and tally.changed else tally.unchanged
    return next((f": {one.note}" for one in noted if one.note), "")
