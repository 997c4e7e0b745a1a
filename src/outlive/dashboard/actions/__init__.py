"""What operators do: to jobs that they select or that match a filter, to batches, queues, sources, schedules, workers.

The page `/confirm` asks first, and says how many jobs it concerns. Its form then proves that it comes from that page.
Both find the same action in their fields. Every action is written to the audit, in its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlive.dashboard.access import Role
from outlive.dashboard.actions.batches import CancelBatch, CloseBatch
from outlive.dashboard.actions.controls import LIMITS, SCHEDULE, Operate, SetSchedule, SetSource, SetWorker
from outlive.dashboard.actions.enqueuing import OPTIONS, EnqueueJob
from outlive.dashboard.actions.jobs import LISTED, ActOnMatching, ActOnSelected
from outlive.dashboard.actions.questions import Action, NothingToDo
from outlive.dashboard.actions.steps import TYPED, Rerun, Send, Supply
from outlive.dashboard.job_choice import filter_of, ids_of
from outlive.dashboard.visits import Elsewhere, Refused, Visit, inside
from outlive.errors import BadArguments
from outlive.model import new_job_id
from outlive.operations import By
from outlive.operations.controls import CONTROLS, Control
from outlive.operations.verbs import VERBS, Verb

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
    return {"title": "Confirm", "back": back, "question": question, "wrong": None, "wrong_fields": {}, "most": LISTED}


async def perform(site: Site, fields: Fields, who: str) -> UUID:
    """Do what the page has asked about. Returns the entry of the audit."""
    by = By(who, new_job_id())
    await action_in(fields).perform(site, by)
    return by.entry


def action_in(fields: Fields) -> Action:
    """The action that the fields of an address or a form name."""
    name = dict(fields).get("action", "")
    if name not in _ACTIONS:
        raise BadArguments(f"there is no action {name[:40]!r}")
    return _ACTIONS[name](fields)


def _act_on_selected(verb: Verb, fields: Fields) -> Action:
    return ActOnSelected(verb, ids_of(fields))


def _act_on_matching(verb: Verb, fields: Fields) -> Action:
    return ActOnMatching(verb, verb.narrowed(filter_of(dict(fields))))


def _operate(control: Control, fields: Fields) -> Action:
    return Operate(control, _text("name", fields))


def _text(field: str, fields: Fields) -> str:
    return dict(fields).get(field, "").replace("\0", "").strip()


def _typed(names: Collection[str], fields: Fields) -> Mapping[str, str]:
    """What an operator has written into the form of a question."""
    return {name: _text(name, fields) for name in names if name in dict(fields)}


def _enqueue_job(fields: Fields) -> Action:
    names = [name for name, _ in fields if name in OPTIONS or name.startswith("arg.")]
    return EnqueueJob(_text("name", fields), _typed(names, fields))


_ACTIONS: Mapping[str, Callable[[Fields], Action]] = {
    **{name: partial(_act_on_selected, verb) for name, verb in VERBS.items()},
    **{f"{name}_all": partial(_act_on_matching, verb) for name, verb in VERBS.items()},
    **{name: partial(_operate, control) for name, control in CONTROLS.items()},
    "cancel_batch": lambda fields: CancelBatch(_text("name", fields)),
    "close_batch": lambda fields: CloseBatch(_text("name", fields)),
    "enqueue": _enqueue_job,
    "rerun": lambda fields: Rerun(_text("id", fields), _text("step", fields)),
    "send": lambda fields: Send(_text("id", fields), _typed(TYPED, fields)),
    "supply": lambda fields: Supply(_text("id", fields), _text("replacing", fields), _typed(TYPED, fields)),
    "set_source": lambda fields: SetSource(_text("name", fields), _typed(LIMITS, fields)),
    "set_worker": lambda fields: SetWorker(_text("name", fields), _typed(("slots", "queues"), fields)),
    "set_schedule": lambda fields: SetSchedule(_text("name", fields), _typed(SCHEDULE, fields)),
}
