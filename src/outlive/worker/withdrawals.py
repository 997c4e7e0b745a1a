"""Logs which schedules are no longer in force, because no living worker declares them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

_log = logging.getLogger("outlive.worker")


def log(app: str, schedules: Sequence[str]) -> None:
    _log.warning(
        "schedules no longer fire, because the app %s runs and no longer declares them: %s. They are deleted after a "
        "week. If they belong to another service whose app has the same name, they fire again when that service "
        'starts; tell the two apart with App(service="…")',
        app,
        ", ".join(schedules),
    )
