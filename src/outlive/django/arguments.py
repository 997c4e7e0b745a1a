"""The arguments of a task of Django: plain JSON that its function can be called with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Model

from outlive.django.api import Task, normalize_json
from outlive.references import Reference


def fitted(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as JSON has them. TypeError if they have no form there, or if the function can't be called with
    them: no attempt could succeed.
    """
    args = [_plain(task, f"args[{index}]", value) for index, value in enumerate(args)]
    kwargs = {name: _plain(task, name, value) for name, value in kwargs.items()}
    context = (None,) if task.takes_context else ()
    try:
        inspect.signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.module_path} can't be enqueued: {error}") from None
    return args, kwargs


def _plain(task: Task, name: str, value: Any) -> Any:
    """An argument as JSON has it. Django's own error names neither the task nor the argument."""
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:
        advice = "pass numbers, text, lists or dicts of them"
        if isinstance(value, Model):
            advice = "pass its primary key"
        if isinstance(value, Reference):
            error.args = ("the result of another job",)
            advice = "only tasks of outlive.django.app() take that: declare it with @app.task (docs/how-to/django.md)"
        text = f"{task.module_path} can't be enqueued: argument {name} is not JSON ({error}): {advice}"
        raise type(error)(text) from None
