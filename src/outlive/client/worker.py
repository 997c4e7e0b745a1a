"""A handle on a worker: reloading its code from afar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlive import store

if TYPE_CHECKING:
    from outlive.client.statement_runner import StatementRunner


@dataclass(frozen=True, slots=True)
class Worker:
    """A handle on the workers of a name. It holds only the name, and each call asks the database."""

    name: str
    """The name of the worker."""
    _runner: StatementRunner = field(repr=False, compare=False)

    def reload(self) -> bool:
        """Let the worker import its code again. False if no worker of this name is active.

        Jobs that run go on with the old code. If the new code can't be imported, `outlive workers` says why.
        """
        return bool(self._runner.run(store.reload_workers(self.name)))

    async def areload(self) -> bool:
        """The async twin of `reload`."""
        found = await self._runner.arun(store.reload_workers(self.name))
        return bool(found)
