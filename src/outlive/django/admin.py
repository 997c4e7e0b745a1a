"""Pages of the admin: read-only lists of jobs, workers and killers, with links to the dashboard."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.db.utils import ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html

from outlive.django.backend import OutliveBackend, backends
from outlive.django.models import Job, Killer, Worker

MOST_COUNTED = 10_000


class BoundedPaginator(Paginator):
    """Counts no more rows than a person pages through: there may be millions of jobs."""

    @cached_property
    def count(self) -> int:
        return int(self.object_list[:MOST_COUNTED].count())


def _backend() -> OutliveBackend | None:
    """The first backend of outlive: the pages show the jobs of its database."""
    return next(iter(backends().values()), None)


class ReadOnly(admin.ModelAdmin):
    """A list that shows and changes nothing."""

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
            return super().changelist_view(request, extra_context)
        except ProgrammingError as error:
            text = f"outlive's schema is missing or old ({error}): run `manage.py migrate`"
            return HttpResponse(text, status=503, content_type="text/plain")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

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
    list_display: ClassVar = ("id", "task", "queue", "status", "attempt", "created_at", "completed_at", "dashboard")
    search_fields: ClassVar = ("=id", "=task")
    search_help_text = "An id or the whole name of a task"


@admin.register(Killer)
class KillerAdmin(ReadOnly):
    page = "jobs/{}"
    list_display: ClassVar = ("id", "task", "outcome", "signal", "quarantined_at", "killed_on", "dashboard")


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    page = "workers"
    list_display: ClassVar = ("name", "hostname", "state", "running", "slots", "last_seen", "trouble", "dashboard")
