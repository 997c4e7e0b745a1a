"""The apps of a project's backends, as a worker imports them: `outlive worker outlive.django.worker:default`.

The name after the colon is the alias in TASKS. Importing this module sets Django up, finds the tasks, and closes every
connection that this has opened: each job is a fork of this process, and opens its own.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

import django

from outlive.child.log_records import SAID
from outlive.client.app import App
from outlive.django import shared as shared_tasks
from outlive.django.backend import backends
from outlive.django.connecting import close_connections, shrink_pools
from outlive.django.discovery import all_tasks, declare, import_tasks
from outlive.django.registry import app_of

LOGGERS = ("django.tasks", "django_tasks")
"""Where Django logs the ends of tasks."""


def _take_shared() -> None:
    """Let one backend run the tasks of outlive.celery too, if the project has any."""
    celery, backend = sys.modules.get("outlive.celery"), shared_tasks.backend()
    if celery is not None and backend is not None:
        app, shared = app_of(backend), celery.app
        app.tasks |= shared.tasks
        app.sources |= shared.sources
        app.declared_schedules |= shared.declared_schedules
        app.process_starts += shared.process_starts
        app.lifespans += shared.lifespans


def _mark_failures() -> None:
    """Django's own record of a job that has failed is for its other handlers, such as that which mails the admins."""

    def mark(record: logging.LogRecord) -> bool:
        if record.exc_info == (None, None, None):  # As Django 6.0.0 to 6.0.2 have it without a failure.
            record.exc_info = None
        if record.exc_info:
            setattr(record, SAID, True)
        return True

    for name in LOGGERS:
        logging.getLogger(name).addFilter(mark)


def _leave_to_us() -> None:
    """Keep Sentry from making an event of Django's record beside that of outlive."""
    with suppress(ImportError):  # The worker says which package is missing.
        from sentry_sdk.integrations.logging import ignore_logger

        for name in LOGGERS:
            ignore_logger(name)


def __getattr__(alias: str) -> App:
    """The app of a backend, with all tasks."""
    backend = backends().get(alias)
    if backend is None:
        raise AttributeError(alias)
    for task in all_tasks():
        declare(backend, task)
    for other in backends().values():
        app_of(other)  # Its jobs know by its address that they have another database.
    app = app_of(backend)
    if app.config.sentry:
        _leave_to_us()
    return app


django.setup()
import_tasks()
_take_shared()
close_connections()
shrink_pools()
_mark_failures()
