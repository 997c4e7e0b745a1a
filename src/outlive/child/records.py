"""The log records of jobs: they go to the supervisor, unless the app has said where they should go.

Records that find no handler come here, in place of Python's own last resort. So nothing is written twice, and an app or
a job that calls `logging.basicConfig` gets what it asks for; its lines are part of the job's output then. `logging` is
not imported for this: every fork would pay for it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader

LOGGING = "logging"


def send(level: str) -> None:
    """From now on, send the log records of this level and above to the supervisor."""
    if LOGGING in sys.modules:
        _install(level)
    else:
        sys.meta_path.insert(0, _OnImport(level))


def _install(level: str) -> None:
    from outlive.child import last_resort

    last_resort.install(level)


class _OnImport:
    """Finds `logging` once, and has its loader install the handler."""

    def __init__(self, level: str) -> None:
        self._level = level
        self._loader: Loader

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != LOGGING:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self._loader = spec.loader
            spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _install(self._level)
