"""The decorator of Django 6, or the same one from django-tasks for Django 5.2."""

from collections.abc import Callable
from typing import Any

try:
    from django.tasks import task as _task
except ImportError:
    from django_tasks import task as _task

task: Callable[..., Any] = _task
