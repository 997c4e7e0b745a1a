"""What operators do: to jobs that they select or that match a filter, to batches, queues, sources, schedules, workers.

The page `/confirm` asks first, and says how many jobs it concerns. Its form then proves that it comes from that page.
Both find the same action in their fields. Every action is written to the audit, in its own transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlive.dashboard.access import Role
from outlive.dashboard.actions.batches import CancelBatch, CloseBatch
from outlive.dashboard.actions.controls import Operate, SetRate
from outlive.dashboard.actions.jobs import ActOnMatching, ActOnSelected
from outlive.dashboard.actions.questions import Action, NothingToDo
from outlive.dashboard.job_choice import filter_of, ids_of
from outlive.dashboard.visits import Elsewhere, Refused, Visit, inside
from outlive.errors import BadArguments
from outlive.model import new_job_id
from outlive.operations import By
from outlive.operations.controls import CONTROLS
from outlive.operations.verbs import VERBS

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

VIEWER = "You are logged in as a viewer: log in with the operator token to change jobs."
Fields = Sequence[tuple[str, str]]


async def confirm(site: Site, visit: Visit) -> Mapping[str, Any]:
    """The page that asks before an action."""
    if visit.role is not Role.OPERATOR:
        raise Refused(VIEWER)
    back = inside(visit.get("back") or "")
    try:
        question = await action_in(visit.query).question(site)
    except NothingToDo as reason:
        raise Elsewhere(str(reason), back) from None
    return {"title": "Confirm", "back": back, "question": question}


async def perform(site: Site, fields: Fields, who: str) -> UUID:
    """Do what the page has asked about. Returns the entry of the audit."""
    by = By(who, new_job_id())
    await action_in(fields).perform(site, by)
    return by.entry


def action_in(fields: Fields) -> Action:
    """The action that the fields of an address or a form name."""
    values = dict(fields)
    action, name = values.get("action", ""), values.get("name", "").replace("\0", "").strip()
    verb, _, which = action.partition("_")
    if action == "cancel_batch":
        return CancelBatch(name)
    if action == "close_batch":
        return CloseBatch(name)
    if action == "set_rate":
        return SetRate(name, values.get("rate", "").strip())
    if action in CONTROLS:
        return Operate(CONTROLS[action], name)
    if verb in VERBS and which == "all":
        return ActOnMatching(VERBS[verb], VERBS[verb].narrowed(filter_of(values)))
    if action in VERBS:
        return ActOnSelected(VERBS[action], ids_of(fields))
    raise BadArguments(f"there is no action {action[:40]!r}")
