"""Settings. The database is the one that the variables PGHOST, PGUSER, … of libpq name, or else an embedded one."""

import os

import django
from psycopg.conninfo import conninfo_to_dict

from outlive import embedded

SECRET_KEY = "an example has no secrets"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"

DATABASES: dict[str, dict[str, object]] = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ.get("PGDATABASE", "shop")}
}
if "PGHOST" not in os.environ:  # For a first try: the Postgres of outlive[embedded]. It stops with its last process.
    place = conninfo_to_dict(embedded.ensure())
    DATABASES["default"] |= {"NAME": place["dbname"], "USER": place["user"], "HOST": place["host"]}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "outlive.django",
    "shop",
]
if django.VERSION < (6, 0):  # Django 6 has the Tasks API itself.
    INSTALLED_APPS.append("django_tasks")

TASKS = {
    "default": {
        "BACKEND": "outlive.django.backend.OutliveBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 3, "dashboard_url": "http://127.0.0.1:8321"},
    }
}

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
