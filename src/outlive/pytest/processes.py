"""Runs the jobs of a test in a real worker, each in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from outlive.client.app import App
from outlive.client.home import HomedApp
from outlive.errors import ConfigError, OutliveError
from outlive.pytest.django_in_worker import of_test
from outlive.pytest.target import TARGET, VARIABLE, Wanted
from outlive.temporary.program import started

SLOTS = 2
CHECK_S = 0.02


def drain(found: Wanted, url: str, queues: Sequence[str] | None, settled: Callable[[], bool], within_s: float) -> None:
    """Start a worker that has these tasks, wait until it has nothing to do, and stop it."""
    words = [sys.executable, "-m", "outlive", "worker", TARGET, "--slots", str(SLOTS), "--quiet"]
    if queues is not None:
        words += ["--queues", ",".join(queues)]
    environ = {
        **os.environ,
        "OUTLIVE_DATABASE_URL": url,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        VARIABLE: msgspec.json.encode(found).decode(),
    }
    with started(words, environment=environ, directory=Path.cwd()) as worker:
        deadline = time.monotonic() + within_s
        while not settled():
            ended = worker.process.poll() is not None
            if ended or time.monotonic() > deadline:
                how = "has ended" if ended else f"is not done after {within_s:g} s"
                raise OutliveError(f"the worker of this test {how}: {worker.tail().strip() or 'it has logged nothing'}")
            time.sleep(CHECK_S)


def wanted(apps: Sequence[App], enqueued: Collection[str], kill_after: str | None = None) -> Wanted:
    """How a worker finds these apps and their tasks. Tasks inside functions are left out, unless they have jobs."""
    modules: dict[str, None] = {}
    places = []
    for app in apps:
        hidden = {task.name for task in app.tasks.values() if "<locals>" in task.function.__qualname__}
        for name in sorted(hidden.intersection(enqueued)):
            raise ConfigError(f"the task {name} is inside a function, where no worker finds it: move it out")
        if app.tasks.keys() - hidden:
            modules |= {task.function.__module__: None for name, task in app.tasks.items() if name not in hidden}
            places += _places(app)
    return Wanted(list(modules), places, kill_after, of_test())


def _places(app: App) -> list[str]:
    """Where an app is, as `module:name`. A project that has only tasks of Django gives their app no name, and they have
    no jobs here."""
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if value is app:
                return [f"{module.__name__}:{name}"]
    if isinstance(app, HomedApp):
        return []
    some = next(iter(app.tasks))
    raise ConfigError(f"the app of the task {some} has no name in any module, so no worker finds it: assign it to one")
