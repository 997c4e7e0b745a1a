"""Autoreload in development: a process beside the worker, which watches files as `runserver` does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from django.apps import apps
from django.db import connections
from django.utils import autoreload

from outlive import linux


def reload_on_changes() -> None:
    """Fork a watcher for the worker that this process is about to become. It ends with the worker."""
    worker = os.getpid()
    connections.close_all()
    if os.fork():
        return
    linux.when_parent_dies(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != worker:  # It died before that.
        os._exit(0)

    def reload(file_path: Path, **_: Any) -> bool:
        os.kill(worker, signal.SIGHUP)
        return True  # This process itself stays as it is.

    autoreload.file_changed.connect(reload)
    watcher = autoreload.StatReloader()
    watcher.watch_dir(sys.path[0], "*.py")
    for folder in _folders():
        watcher.watch_dir(folder, "**/*.py")
    watcher.run_loop()


def _folders() -> set[Path]:
    """Those of the project and of its apps. A virtual environment in the project is left out, with all that is
    installed in it: to look at thousands of files each second takes a tenth of a core.
    """
    below = {one for one in Path(sys.path[0]).iterdir() if one.is_dir() and not one.name.startswith(".")}
    of_apps = {Path(one.path) for one in apps.get_app_configs()}
    ours = below | {one for one in of_apps if not one.is_relative_to(sys.prefix)}
    return {one for one in ours if not (one / "pyvenv.cfg").exists()}
