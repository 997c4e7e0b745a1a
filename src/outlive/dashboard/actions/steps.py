"""Let a job begin again at a step, give a value in place of one, or send the signal that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from outlive import store
from outlive.dashboard.actions.jobs import facts_of
from outlive.dashboard.actions.questions import Field, Form, Question
from outlive.errors import BadArguments
from outlive.operations import By, step_verbs

if TYPE_CHECKING:
    from outlive.dashboard.site import Site


async def ask_to_rerun(site: Site, form: Form) -> Question:
    return Question(f"Begin again at the step {form['step']}?", step_verbs.RERUN, await _facts(site, form))


async def rerun(site: Site, form: Form, by: By) -> None:
    site.note(by.entry, await site.writing.do_at_once(step_verbs.rerun(_job(form), form["step"], by)))


async def ask_to_supply(site: Site, form: Form) -> Question:
    """The field `replacing` names the kept step whose value is replaced. Without it, the step is not kept yet."""
    facts, replacing = await _facts(site, form), form["replacing"]
    value = Field("value", "Value", form["value"], '{"words": 0}')
    if replacing:
        return Question(f"Replace the value of the step {replacing}?", step_verbs.SUPPLY, facts, fields=[value])
    step = Field("step", "Step", form["step"], "parse:page-17")
    return Question("Give a value in place of a step?", step_verbs.SUPPLY, facts, fields=[step, value])


async def supply(site: Site, form: Form, by: By) -> None:
    step, replacing = form["replacing"] or form["step"], bool(form["replacing"])
    keeping = step_verbs.supply(_job(form), step, form["value"], by, replacing=replacing)
    site.note(by.entry, await site.writing.do_at_once(keeping))


async def ask_to_send(site: Site, form: Form) -> Question:
    signal = Field("signal", "Signal", form["signal"], "packed")
    value = Field("value", "Value", form.typed(["value"]).get("value", "null"), '{"parcels": 1}')
    return Question("Send a signal?", step_verbs.SEND, await _facts(site, form), fields=[signal, value])


async def send(site: Site, form: Form, by: By) -> None:
    site.note(by.entry, await site.writing.do_at_once(step_verbs.send(_job(form), form["signal"], form["value"], by)))


def _job(form: Form) -> UUID:
    try:
        return UUID(form["id"])
    except ValueError:
        raise BadArguments(f"there is no job {form['id'][:40]!r}") from None


async def _facts(site: Site, form: Form) -> list[tuple[str, str]]:
    return facts_of(await site.database.run(store.list_jobs([_job(form)])))
