"""Idle workers without processes for jobs: `python -m outlive_lab.bench.idle URL COUNT`.

Each is made of the services of a worker that ask the database something while it is idle, and is a watcher if it gets a
seat. So many of them cost the database what as many idle workers do, and fit on a small machine.
"""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import cast

from outlive import db, store
from outlive.config import Config
from outlive.worker.claiming.lane_finder import SLEEP_S
from outlive.worker.fleet.leftovers import TICKING_LOOK_S, Leftovers
from outlive.worker.fleet.liveness import Heartbeat, Liveness
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.fleet.registration import Identity
from outlive.worker.fleet.schedules import Schedules
from outlive.worker.fleet.seat import RunOnce, Seat
from outlive.worker.loops import forever
from outlive.worker.processes.slots import Slots
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup
from outlive_lab.bench import jobs

TASKS = [jobs.warm.name, jobs.fresh.name]
ZYGOTES = SimpleNamespace(reload_error=None)
SLOTS = SimpleNamespace(tasks=dict.fromkeys(TASKS), queues=None, closed=False, trouble=None, zygotes=ZYGOTES)
STARTING = 8
"""How many start at the same time. More of them would take so long that others declare some dead meanwhile."""


async def idle(url: str, number: int, starting: asyncio.Semaphore) -> None:
    me, config, wake = Identity(f"idle-{number}", 1, None), Config(), Wakeup()
    liveness = Liveness(me.id, url, wake.notify)
    live, hot, session = liveness.session, Session(url, db.CLAIMS), Session(url)
    reaper = Reaper(session, config, Alerts(), me.id)
    seat = Seat(me.id, hot, reaper, slots=cast(Slots, SLOTS), wake=wake, on_declared_dead=_ended)
    heartbeat = Heartbeat(
        me.id, live, config.heartbeat_s, cast(Slots, SLOTS), on_declared_dead=_ended, on_drain=_ended,
        on_reload=_ended, on_set=lambda *_: None,
    )  # fmt: skip
    async with starting:
        await session.run(me.registering(config))
        await session.run(store.tell_tasks(me.id, TASKS, app="outlive_lab.bench.jobs:app"))
        await liveness.show()
        await hot.run(store.sleep(me.id))
        await session.close()  # A watcher opens it again.

    async def search() -> None:
        wake.clear()
        wake.asleep = True
        await hot.run(store.unsourced_lanes(TASKS))
        await wake.wait(SLEEP_S)

    async def beat() -> None:
        await heartbeat.beat()
        await asyncio.sleep(config.heartbeat_s)

    watching = seat.only_watching
    loops: dict[str, RunOnce] = {
        "claim": search,
        "heartbeat": beat,
        "liveness": liveness.run_once,
        "tick": seat.run_once,
    }
    loops |= {"reap": watching(reaper.check_once), "sweep": watching(reaper.sweep_once)}
    loops |= {"follow": watching(Leftovers(session, wake, TICKING_LOOK_S).run_once)}
    loops |= {"schedules": watching(Schedules(session, Session(url, db.FIRINGS)).run_once)}
    await asyncio.gather(*(forever(name, run_once) for name, run_once in loops.items()))


def _ended() -> None:
    sys.exit("others have declared an idle worker dead, or want something of it")


async def _all(url: str, count: int) -> None:
    starting = asyncio.Semaphore(STARTING)
    await asyncio.gather(*(idle(url, number, starting) for number in range(count)))


if __name__ == "__main__":
    asyncio.run(_all(sys.argv[1], int(sys.argv[2])))
