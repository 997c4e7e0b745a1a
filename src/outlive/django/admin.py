"""Pages of the admin: jobs, killers and workers. Jobs can be retried, cancelled and released, and nothing else changed.

A filter is answered by the search that the dashboard uses, and shows the newest jobs that match.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import msgspec
from django.contrib import admin, messages
from django.contrib.admin.utils import display_for_value
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.db.utils import ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.text import Truncator

from outlive import operations, store
from outlive.django.backend import OutliveBackend, backends
from outlive.django.models import Attempt, Job, Killer, Request, Worker
from outlive.django.registry import app_of
from outlive.humanize import number, short_id
from outlive.model import new_job_id
from outlive.operations import selection
from outlive.operations.verbs import CANCEL, RELEASE, RETRY, Tally, Verb, act
from outlive.statement import Statement
from outlive.states import State
from outlive.store import JobFilter

T = TypeVar("T")
MOST_COUNTED = 10_000
MOST_FOUND = 1_000
"""How many jobs a filter shows, and an action takes."""
MOST_CHOICES = 200
MOST_OF_ERROR = 80


class BoundedPaginator(Paginator):
    """Counts no more rows than a person pages through: there may be millions of jobs."""

    @cached_property
    def count(self) -> int:
        return int(self.object_list[:MOST_COUNTED].count())


def _backend() -> OutliveBackend | None:
    """The first backend of outlive: the pages show the jobs of its database."""
    return next(iter(backends().values()), None)


def _run(backend: OutliveBackend, statement: Statement[T]) -> T:
    """Run a statement in a transaction of its own."""
    return app_of(backend).runner.run(statement)


def _action(verb: Verb) -> Callable[..., None]:
    def do(page: admin.ModelAdmin, request: HttpRequest, chosen: QuerySet[Any]) -> None:
        if (backend := _backend()) is None:
            return
        tally, by = Tally(verb), operations.By(f"{request.user} (admin)", new_job_id())
        ids = list(chosen.values_list("id", flat=True)[:MOST_FOUND])
        operations.run(act(tally, ids, by), lambda statement: _run(backend, statement))
        page.message_user(request, str(tally), messages.SUCCESS if tally.changed else messages.WARNING)
        for one in tally.unchanged:
            page.message_user(request, f"{one.id} is {one.state}: {one.note}", messages.WARNING)

    do.__name__ = verb.name
    decorated: Callable[..., None] = admin.action(description=f"{verb.word} jobs", permissions=["operate"])(do)
    return decorated


def _filter(given: Mapping[str, str]) -> JobFilter:
    states = tuple(state for state in State if state == given.get("state"))
    return JobFilter(states=states, task=given.get("task") or None, queue=given.get("queue") or None)


class _Part(admin.SimpleListFilter):
    """One part of a filter. `JobAdmin` puts them together: the search takes all of them at once."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset

    def get_facet_queryset(self, changelist: ChangeList) -> dict[str, str]:
        """How many jobs each choice has, by the counts of all jobs. These know nothing of what is searched for."""
        if changelist.query or (backend := _backend()) is None:
            return {}
        counts, given = _run(backend, store.count_jobs()), self.request.GET.dict()
        wanted = [_filter({**given, str(self.parameter_name): value}) for value, _ in self.lookup_choices]
        found = [selection.count_in(counts, one) for one in wanted]
        return {f"{n}__c": number(one.jobs, estimated=one.estimated) for n, one in enumerate(found)}


class _ByState(_Part):
    title = parameter_name = "state"

    def lookups(self, request: HttpRequest, page: Any) -> list[tuple[str, str]]:
        return [(str(state), str(state)) for state in State]


class _ByTask(_Part):
    """The tasks that workers have registered: to find those of all jobs would read every job."""

    title = parameter_name = "task"
    text = "select distinct name from outlive.tasks order by 1 limit %s"

    def lookups(self, request: HttpRequest, page: Any) -> list[tuple[str, str]]:
        if (backend := _backend()) is None:
            return []
        with connections[backend.database].cursor() as cursor:
            cursor.execute(self.text, [MOST_CHOICES])
            return [(name, name) for (name,) in cursor.fetchall()]


class _ByQueue(_ByTask):
    title = parameter_name = "queue"
    text = "select distinct queue from outlive.tasks where queue is not null order by 1 limit %s"


class ReadOnly(admin.ModelAdmin):
    """A list and pages that change nothing, except by the verbs: the list has them as actions, the pages as buttons."""

    verbs: ClassVar[tuple[Verb, ...]] = ()

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    page = ""
    """The page of the dashboard, below its address."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        backend = _backend()
        queryset = super().get_queryset(request)
        return queryset.none() if backend is None else queryset.using(backend.database)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        try:
            page = super().changelist_view(request, extra_context)
        except ProgrammingError as error:
            text = f"outlive's schema is missing or old ({error}): run `manage.py migrate`"
            return HttpResponse(text, status=503, content_type="text/plain")
        shown = getattr(page, "context_data", None) or {}
        if "cl" in shown and (ends_at := shown["cl"].result_count) in (MOST_FOUND, MOST_COUNTED):
            shown["subtitle"] = f"The list ends after {ends_at:,}: there may be more"
        return page

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one row. Its template has a button for each verb that the job's state allows."""
        row = self.get_object(request, object_id)
        state = getattr(row, "status", State.QUARANTINED)
        offered = [verb for verb in self.verbs if row and state in verb.takes and self.has_operate_permission(request)]
        return super().changeform_view(request, object_id, form_url, {**(extra_context or {}), "verbs": offered})

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("outlive.operate_job"))

    @admin.display(ordering="id")
    def job(self, row: Any) -> Any:
        """Its first digits, on one line."""
        return format_html('<span style="white-space: nowrap">{}</span>', short_id(row.pk))

    @admin.display(description="dashboard")
    def dashboard(self, row: Any) -> Any:
        """A link, if OPTIONS["dashboard_url"] is set."""
        backend = _backend()
        if backend is None or not backend.dashboard_url:
            return ""
        return format_html('<a href="{}/{}">show</a>', backend.dashboard_url.rstrip("/"), self.page.format(row.pk))


@admin.register(Job)
class JobAdmin(ReadOnly):
    page = "jobs/{}"
    list_display: ClassVar = ("job", "task", "status", "last_error", "attempt", "created_at", "queue", "dashboard")
    list_filter: ClassVar = (_ByState, _ByTask, _ByQueue)
    search_fields: ClassVar = ("id", "task")  # They only make the field appear.
    search_help_text = "The first digits of an id, or the whole name of a task"
    verbs: ClassVar = (RETRY, CANCEL, RELEASE)
    actions: ClassVar = [_action(verb) for verb in verbs]
    fields: ClassVar = (
        *("id", "task", "queue", "status", "priority", "created_at", "ready_at", "locked_by", "locked_at"),
        *("completed_at", "held_since", "arguments", "attempts", "dashboard"),
    )
    readonly_fields: ClassVar = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """The newest jobs that match: Django's own search would read every job."""
        wanted, backend = _filter(request.GET.dict()), _backend()
        if search_term and not wanted.task:
            wanted = msgspec.structs.replace(wanted, task=search_term)
        if backend is None or wanted == JobFilter():
            return queryset, False
        if (digits := selection.prefix(search_term)) and (
            ids := _run(backend, store.with_prefix("jobs", digits, limit=MOST_FOUND))
        ):
            given = (("status", "state"), ("task", "task"), ("queue", "queue"))
            parts = {field: value for field, name in given if (value := request.GET.get(name))}
            return queryset.filter(id__in=ids, **parts), False
        return queryset.filter(id__in=_run(backend, store.find_jobs(wanted, limit=MOST_FOUND)).ids), False

    def last_error(self, job: Job) -> str:
        return str(Truncator(job.error or "").chars(MOST_OF_ERROR))

    def arguments(self, job: Job) -> Any:
        """As they were enqueued, in JSON."""
        found = Request.objects.using(job._state.db).annotate(text=Cast("args", TextField())).get(job=job.id)
        return format_html("<pre>{}</pre>", json.dumps(json.loads(found.text), indent=2, ensure_ascii=False))

    def attempts(self, job: Job) -> Any:
        """Each that has ended: how, and its traceback or its result."""
        found = Attempt.objects.using(job._state.db).filter(job=job.id).order_by("attempt")
        rows = (
            (
                *(one.attempt, one.outcome, one.worker, display_for_value(one.ended_at, "-")),
                *(one.error or "", one.stack or one.text or ""),
            )
            for one in found.annotate(text=Cast("result", TextField()))
        )
        return format_html_join("", "<p>{}: {} on {}, {}<br>{}</p><pre>{}</pre>", rows) or "No attempt has ended."


@admin.register(Killer)
class KillerAdmin(ReadOnly):
    page = "jobs/{}"
    list_display: ClassVar = ("job", "task", "outcome", "signal", "quarantined_at", "killed_on", "dashboard")
    verbs: ClassVar = (RELEASE, CANCEL)
    actions: ClassVar = [_action(verb) for verb in verbs]


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    page = "workers"
    list_display: ClassVar = (
        *("name", "hostname", "state", "running", "busy_slots", "slots", "seen", "trouble", "dashboard"),
    )

    @admin.display(description="last seen", ordering="last_seen")
    def seen(self, worker: Worker) -> Any:
        """An active one holds its lock at this moment: its heartbeats are rarer than that."""
        return "now" if worker.state == "active" else worker.last_seen
