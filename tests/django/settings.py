"""The settings of the example project, with the tasks and pages of the tests."""

from project.settings import *  # noqa: F403

ROOT_URLCONF = "tests.django.urls"
# A second way into the same database, whose connections stay open.
DATABASES["kept"] = {**DATABASES["default"], "CONN_MAX_AGE": None, "TEST": {"MIRROR": "default"}}  # noqa: F405
# And a third, with a pool.
DATABASES["pooled"] = {**DATABASES["default"], "OPTIONS": {"pool": True}, "TEST": {"MIRROR": "default"}}  # noqa: F405
TASKS = {
    "default": {
        "BACKEND": "outlive.django.backend.OutliveBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"modules": ["tests.django.tasks"], "max_attempts": 1, "dashboard_url": "http://board.example/"},
    }
}
