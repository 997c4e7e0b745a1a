"""A database and the backend, and nothing else that a project has."""

import os

import django

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}}
INSTALLED_APPS = ["outlive.django", *(["django_tasks"] if django.VERSION < (6, 0) else [])]
TASKS = {
    "default": {"BACKEND": "outlive.django.backend.OutliveBackend", "OPTIONS": {"modules": ["tests.django.paying"]}}
}
