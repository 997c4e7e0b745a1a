"""Our backend in the place of Django's DummyBackend, for Django's own tests of that one."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import connections

from outlive import sql
from outlive.django.api import Task, TaskResult
from outlive.django.backend import OutliveBackend


class Backend(OutliveBackend):
    """It has what the tests use besides Django's API."""

    results: ClassVar[list[TaskResult]] = []
    """The results as the database has them. They are read at once: the tests look from other threads."""

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        result = super().enqueue(task, args, kwargs)
        self.results.append(self.get_result(result.id))
        return result

    def clear(self) -> None:
        self.results.clear()
        with connections[self.database].cursor() as cursor:
            cursor.execute(sql.read("schema/flush.sql"))
