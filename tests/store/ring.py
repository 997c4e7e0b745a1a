"""Two sessions that act at the same time, and one that watches them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

from tests.driving.making import Queue
from tests.waiting import eventually

T = TypeVar("T")


@dataclass(slots=True)
class Ring:
    first: Queue
    second: Queue
    watcher: Queue
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def start(self, act: Callable[[Queue], T]) -> Future[T]:
        """Let the second session act until it has finished or waits for the first one."""
        answer = self.threads.submit(act, self.second)
        eventually(lambda: wait([answer], 0.01).done or self.waits(), what="the second has finished or waits")
        return answer

    def waits(self) -> bool:
        """Whether the second session waits for a lock, or sleeps before it looks at one again."""
        query = """select cardinality(pg_blocking_pids(pid)) > 0 or wait_event = 'PgSleep'
          from pg_stat_activity where pid = %s"""
        return self.watcher.value(query, self.second.info.backend_pid) is True
