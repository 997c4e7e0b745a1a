"""Pause, resume, drain, run: what operators do to a queue, a source, a schedule or a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive import store
from outlive.dashboard.actions.questions import Question
from outlive.errors import BadArguments
from outlive.operations import By
from outlive.operations.controls import CONTROLS, Control, audited, limit_of_source
from outlive.statement import Statement

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

RATE, SET_RATE = "rate_limit_per_minute", CONTROLS["set_rate"]


@dataclass(frozen=True, slots=True)
class Operate:
    control: Control
    name: str

    async def question(self, site: Site) -> Question:
        return Question(self.control.asked(self.name), self.control.note)

    async def perform(self, site: Site, by: By) -> None:
        await _operate(site, by, self.control, self.name, self.control.make(self.name))


@dataclass(frozen=True, slots=True)
class SetRate:
    source: str
    rate: str
    """As the operator writes it. If it is empty, the rate that the app declares applies."""

    async def question(self, site: Site) -> Question:
        rates = {row["name"]: row[RATE] for row in await site.database.run(store.list_sources())}
        if self.source not in rates:
            raise BadArguments(f"there is no source {self.source}")
        present = rates[self.source]
        return Question(SET_RATE.asked(self.source), SET_RATE.note, rate="" if present is None else f"{present:g}")

    async def perform(self, site: Site, by: By) -> None:
        limits = {RATE: limit_of_source(RATE, self.rate)}
        await _operate(site, by, SET_RATE, self.source, store.set_source(self.source, limits), **limits)


async def _operate(
    site: Site, by: By, control: Control, name: str, statement: Statement[Any], **limits: float | None
) -> None:
    what = {control.noun: name, **limits}
    done = await site.writing.do_at_once(audited(statement, by, control.action, what))
    if done in (False, []):
        raise BadArguments(f"there is no {control.noun} {name}, or it was {control.done} already")
    site.note(by.entry, control.result(name))
