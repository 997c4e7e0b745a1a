"""Apps whose database a framework decides, at each call: in a project of Django it is that of a backend in TASKS.

Such an app joins the transaction that the framework has open: jobs are enqueued there without `connection=…`, and a
test that is rolled back leaves none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from outlive import job_gateway
from outlive.client.app import App
from outlive.client.statement_runner import StatementRunner

if TYPE_CHECKING:
    from outlive.caller_connections import SyncConnection
    from outlive.client.connections import Connections
    from outlive.config import Config
    from outlive.statement import Statement

T = TypeVar("T")
P = ParamSpec("P")


class Home(Protocol):
    """What the framework decides."""

    def exists(self) -> bool:
        """Whether the settings of now have it. Tests replace them."""

    @property
    def config(self) -> Config: ...
    def connections(self) -> Connections:
        """Connections of our own to its database. A test that may not use it is refused."""

    def transaction(self) -> SyncConnection | None:
        """The connection of the framework, if this thread has a transaction open there."""

    def found_in_test(self, one: Statement[T]) -> T | None:
        """The outcomes of jobs that have run in the transaction which a test rolls back. None: it has no such job."""

    def joins(self, statement: Statement[object]) -> bool:
        """Whether this statement runs in that transaction."""

    def in_thread(self, call: Callable[P, T]) -> Callable[P, Coroutine[object, object, T]]:
        """The call for async code: it runs in the thread that may have a transaction open."""


class HomedApp(App):
    def __init__(self) -> None:
        super().__init__()
        self.runner = HomedRunner(lambda: self.config, lambda: self.settings.get("database_url"), lambda: self.home)

    @property
    @abstractmethod
    def home(self) -> Home | None:
        """None: the app is like any other."""

    @property
    def config(self) -> Config:
        return super().config if (home := self.home) is None else home.config


class HomedRunner(StatementRunner):
    def __init__(
        self, config: Callable[[], Config], own_url: Callable[[], object], home: Callable[[], Home | None]
    ) -> None:
        super().__init__(config, own_url)
        self._home = home

    @property
    def connections(self) -> Connections:
        return super().connections if (home := self._home()) is None else home.connections()

    @property
    def joins(self) -> bool:  # type: ignore[override]  # It is asked each time.
        return self._home() is not None

    def transaction(self) -> SyncConnection | None:
        return None if (home := self._home()) is None else home.transaction()

    def run_all(self, statements: Sequence[Statement[T]], connection: SyncConnection | None = None) -> list[T]:
        if connection is None and (home := self._home()) is not None and all(map(home.joins, statements)):
            connection = home.transaction()
        return super().run_all(statements, connection)

    def read(self, one: Statement[T], until: float | None) -> T:
        """A transaction would wait forever for a job that it has enqueued itself."""
        if self._gateway is None and (home := self._home()) is not None and (found := home.found_in_test(one)):
            return found
        if until is None and self._gateway is None and self.joins:
            return self.connections.run_all([one])[0]
        return super().read(one, until)

    async def arun_all(self, statements: Sequence[Statement[T]], connection: object = None) -> list[T]:
        if connection is None and job_gateway.gateway is None and (home := self._home()) is not None:
            return await home.in_thread(self.run_all)(statements)
        return await super().arun_all(statements, connection)  # type: ignore[arg-type]
