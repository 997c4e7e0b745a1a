"""The slots of a worker without a database, for tests that decide when the slots read from their children."""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import cast
from uuid import uuid4

import msgspec

from outlive.config import Config
from outlive.model import Claimed, Ended
from outlive.protocol import Call, Progress, Ready
from outlive.states import Outcome
from outlive.worker.attempts.leases import Leases
from outlive.worker.limits.watch import Watch
from outlive.worker.processes.children import Child
from outlive.worker.processes.slots import Slots
from outlive.worker.processes.zygotes import Zygotes
from outlive.worker.services import Services
from tests.waiting import aeventually

WARM = "tests.faults.warm_until"
SAYING = "tests.faults.say_warmly"


class Heard:
    """Keeps the ends that the slots report."""

    def __init__(self) -> None:
        self.ends: dict[int, Ended] = {}

    def ended(self, job: Claimed, end: Ended, *, completing: bool = False) -> None:
        self.ends[job.token] = end

    def outcomes(self) -> dict[int, Outcome]:
        return {token: end.outcome for token, end in self.ends.items()}

    def called(self, child: Child, call: Call) -> None: ...
    def secret_of(self, token: int) -> str:
        return ""

    def progressed(self, progress: Progress) -> None: ...
    def traced(self, spans: bytes, *, to_sentry: bool) -> None: ...
    def pending_bytes(self) -> int:
        return 0

    def starting(self, job: Claimed) -> None: ...
    def slot_freed(self) -> None: ...
    def trouble_changed(self) -> None: ...
    def app_imported(self, served: Collection[str], ready: Ready) -> None: ...


@asynccontextmanager
async def some_slots(number: int, **facts: int) -> AsyncIterator[tuple[Slots, Watch, Heard]]:
    """Slots whose children are ready. `facts` change the warm task."""
    heard, config = Heard(), Config()
    zygotes = Zygotes("tests.faults:app", uuid4())
    slots = Slots(config, number, zygotes, Leases(lease_s=300, renew_s=20), cast("Services", heard))
    zygotes.start()
    try:
        zygotes.open(await zygotes.current.ready(), slots)
        await aeventually(lambda: len(slots.zygotes.ready) == number)
        slots.tasks[WARM] = msgspec.structs.replace(slots.tasks[WARM], **facts)
        for task in (WARM, SAYING):
            slots.pace.note(task, 0.001, 0.001)  # Jobs of these tasks are given ahead.
        yield slots, Watch(slots), heard
    finally:
        slots.end()
        zygotes.end()
        await zygotes.gone()


def one_slot() -> AbstractAsyncContextManager[tuple[Slots, Watch, Heard]]:
    return some_slots(1)


def claimed(*paths: str, task: str = WARM) -> list[Claimed]:
    """Jobs that go on until their path is there."""
    now, tokens = datetime.now(UTC), count(1)
    return [
        Claimed(next(tokens), uuid4(), 1, "default", "", task, 5, now, 0, 0, 0, msgspec.json.encode([path]), None)
        for path in paths
    ]
