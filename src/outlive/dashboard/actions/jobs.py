"""Retry, repeat, cancel, release or delete jobs: those that an operator has selected, or all that match a filter.

A form leads to the page `/confirm`, which shows the action's question and changes nothing. The answer is a POST with
the same fields, and the action is done. What became of it is noted for the page to which the operator goes back.

`site.database` only reads, and `site.writing` is for what operators do. `run` runs one statement; `do` an operation of
several, in which the answer to one decides about the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from outlive import store
from outlive.dashboard.actions.questions import Fact, Form, NothingToDo, Question, wait_a_moment_for
from outlive.dashboard.job_choice import filter_of, ids_of
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


async def ask_of_selected(verb: Verb, site: Site, form: Form) -> Question:
    if not (ids := ids_of(form.fields)):
        raise NothingToDo("No job was selected.", form)
    jobs = await site.database.run(store.list_jobs(ids[:LISTED]))
    return _question(verb, Count(len(ids)), jobs=jobs) if len(ids) > 1 else _question(verb, Count(1), facts_of(jobs))


async def act_on_selected(verb: Verb, site: Site, form: Form, by: By) -> None:
    await _act(site, verb, ids_of(form.fields), by)


async def ask_of_matching(verb: Verb, site: Site, form: Form) -> Question:
    wanted = await _wanted(verb, site, form)
    count = await site.database.do(selection.count(wanted, patience_s=COUNT_S))
    if not count.jobs:
        raise NothingToDo(f"No job that matches can be {verb.past}.", form)
    given = msgspec.to_builtins(wanted)
    facts = [(label.capitalize(), words) for label, words in (selection.in_words(*part) for part in given.items())]
    fixed = {key: given[key] for key in ("since", "before") if key in given}
    return replace(_question(verb, count, facts, await first_of(site, wanted)), fixed=fixed)


async def act_on_matching(verb: Verb, site: Site, form: Form, by: By) -> None:
    await _act(site, verb, await _wanted(verb, site, form), by)


async def _wanted(verb: Verb, site: Site, form: Form) -> JobFilter:
    """The jobs that match now. The answer to a question has its moments: it means the same jobs."""
    return await site.database.do(selection.fixed(verb.narrowed(await site.database.do(filter_of(form.values)))))


def facts_of(jobs: Table) -> list[tuple[str, str]]:
    return [(label, str(job[column])) for job in jobs for label, column in FACTS]


async def first_of(site: Site, wanted: JobFilter) -> Table:
    """The first jobs that match, as far as they are found at once."""
    found = await site.database.do(store.find_page(wanted, limit=LISTED, patience_s=FIND_S))
    return await site.database.run(store.list_jobs(found.ids, wanted.states))


def _question(verb: Verb, count: Count, facts: Sequence[Fact] = (), jobs: Table | None = None) -> Question:
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
