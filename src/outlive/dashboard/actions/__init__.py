"""What operators do: to jobs that they select or that match a filter, to batches, queues, sources, schedules, workers.

The page `/confirm` asks first, and says how many jobs it concerns. Its form then proves that it comes from that page.
Both find the same action in their fields. Every action is written to the audit, in its own transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlive.dashboard.access import Role
from outlive.dashboard.actions import batches, controls, enqueuing, jobs, new_schedule, steps
from outlive.dashboard.actions.questions import Action, Form
from outlive.dashboard.visits import Refused, Visit, inside
from outlive.errors import BadArguments
from outlive.model import new_job_id
from outlive.operations import By
from outlive.operations.controls import CONTROLS
from outlive.operations.verbs import VERBS

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

VIEWER = "You are logged in as a viewer: log in with the operator token to change jobs."
_ACTIONS: Mapping[str, Action] = {
    **{
        name: Action(partial(jobs.ask_of_selected, one), partial(jobs.act_on_selected, one))
        for name, one in VERBS.items()
    },
    **{
        f"{name}_all": Action(partial(jobs.ask_of_matching, one), partial(jobs.act_on_matching, one))
        for name, one in VERBS.items()
    },
    **{name: Action(partial(controls.ask, one), partial(controls.operate, one)) for name, one in CONTROLS.items()},
    "cancel_batch": Action(batches.ask_to_cancel, batches.cancel),
    "close_batch": Action(batches.ask_to_close, batches.close),
    "enqueue": Action(enqueuing.ask, enqueuing.enqueue),
    "rerun": Action(steps.ask_to_rerun, steps.rerun),
    "send": Action(steps.ask_to_send, steps.send),
    "supply": Action(steps.ask_to_supply, steps.supply),
    "set_source": Action(controls.ask_of_source, controls.set_source),
    "set_worker": Action(controls.ask_of_worker, controls.set_worker),
    "add_schedule": Action(new_schedule.ask, new_schedule.make),
    "set_schedule": Action(controls.ask_of_schedule, controls.set_schedule),
}


async def confirm(site: Site, visit: Visit) -> Mapping[str, Any]:
    """The page that asks before an action."""
    if visit.role is not Role.OPERATOR:
        raise Refused(VIEWER)
    form = Form(visit.query)
    question, back, most = await _action_in(form).ask(site, form), inside(form["back"]), jobs.LISTED
    return {"title": "Confirm", "back": back, "question": question, "wrong": None, "wrong_fields": {}, "most": most}


async def perform(site: Site, fields: Sequence[tuple[str, str]], who: str) -> UUID:
    """Do what the page has asked about. Returns the entry of the audit."""
    form, by = Form(fields), By(who, new_job_id())
    await _action_in(form).do(site, form, by)
    return by.entry


def _action_in(form: Form) -> Action:
    name = form.values.get("action", "")
    if name not in _ACTIONS:
        raise BadArguments(f"there is no action {name[:40]!r}")
    return _ACTIONS[name]
