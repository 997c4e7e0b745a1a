"""Let a job begin again at a step, give a value in place of one, or send the signal that it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlive import store
from outlive.dashboard.actions.jobs import FACTS
from outlive.dashboard.actions.questions import Field, Question
from outlive.errors import BadArguments
from outlive.operations import By, step_verbs

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

TYPED = ("step", "signal", "value")


@dataclass(frozen=True, slots=True)
class Rerun:
    id: str
    step: str

    async def question(self, site: Site) -> Question:
        return Question(f"Begin again at the step {self.step}?", step_verbs.RERUN, await _facts(site, self.id))

    async def perform(self, site: Site, by: By) -> None:
        site.note(by.entry, await site.writing.do_at_once(step_verbs.rerun(_uuid(self.id), self.step, by)))


@dataclass(frozen=True, slots=True)
class Supply:
    """`replacing` is the name of the kept step whose value is replaced; empty for a step that is not kept yet."""

    id: str
    replacing: str
    typed: Mapping[str, str]

    async def question(self, site: Site) -> Question:
        value = Field("value", "Value", self.typed.get("value", ""), '{"words": 0}')
        if self.replacing:
            words = f"Replace the value of the step {self.replacing}?"
            return Question(words, step_verbs.SUPPLY, await _facts(site, self.id), fields=[value])
        step = Field("step", "Step", self.typed.get("step", ""), "parse:page-17")
        facts = await _facts(site, self.id)
        return Question("Give a value in place of a step?", step_verbs.SUPPLY, facts, fields=[step, value])

    async def perform(self, site: Site, by: By) -> None:
        step, value = self.replacing or self.typed.get("step", ""), self.typed.get("value", "")
        keeping = step_verbs.supply(_uuid(self.id), step, value, by, replacing=bool(self.replacing))
        site.note(by.entry, await site.writing.do_at_once(keeping))


@dataclass(frozen=True, slots=True)
class Send:
    id: str
    typed: Mapping[str, str]

    async def question(self, site: Site) -> Question:
        signal = Field("signal", "Signal", self.typed.get("signal", ""), "packed")
        value = Field("value", "Value", self.typed.get("value", "null"), '{"parcels": 1}')
        return Question("Send a signal?", step_verbs.SEND, await _facts(site, self.id), fields=[signal, value])

    async def perform(self, site: Site, by: By) -> None:
        signal, value = self.typed.get("signal", ""), self.typed.get("value", "")
        site.note(by.entry, await site.writing.do_at_once(step_verbs.send(_uuid(self.id), signal, value, by)))


def _uuid(id: str) -> UUID:
    try:
        return UUID(id)
    except ValueError:
        raise BadArguments(f"there is no job {id[:40]!r}") from None


async def _facts(site: Site, id: str) -> list[tuple[str, Any]]:
    jobs = await site.database.run(store.list_jobs([_uuid(id)]))
    return [(label, str(job[column])) for job in jobs for label, column in FACTS]
