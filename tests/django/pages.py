"""A module of views with a task of its own, which a worker finds through the addresses."""

from __future__ import annotations

from tests.django.decorator import task


@task
def visit() -> str:
    return "found"
