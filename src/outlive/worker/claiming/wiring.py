"""The parts of the claim loop, put together."""

from __future__ import annotations

from uuid import UUID

from outlive.config import Config
from outlive.metrics.tallies import Tallies
from outlive.worker.attempts.reconciliation import Reconciliation
from outlive.worker.claiming.bounds import Bounds
from outlive.worker.claiming.choice import Choice
from outlive.worker.claiming.claim_loop import ClaimLoop
from outlive.worker.claiming.end_and_claim import EndAndClaim
from outlive.worker.claiming.handover import Handover
from outlive.worker.claiming.lane_finder import LaneFinder, Sleep
from outlive.worker.claiming.parked import ParkedClaim
from outlive.worker.claiming.sources import SourceOutcomes
from outlive.worker.claiming.suspects import SuspectClaim
from outlive.worker.ending.outbox import Outbox
from outlive.worker.processes.slots import Slots
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup


def claim_loop(
    worker: UUID,
    config: Config,
    session: Session,
    *,
    slots: Slots,
    outbox: Outbox,
    sources: SourceOutcomes,
    wake: Wakeup,
    tallies: Tallies | None,
    bounds: Bounds,
) -> ClaimLoop:
    finder = LaneFinder(session, wake, slots)
    ends = EndAndClaim(worker, session, outbox, finder.lanes)
    sleep = Sleep(worker, session, slots=slots, finder=finder, wake=wake, bounds=bounds)
    reconciliation = Reconciliation(worker, config, session, slots=slots, outbox=outbox)
    choice = Choice(
        slots=slots,
        outbox=outbox,
        lanes=finder.lanes,
        bounds=bounds,
        reconciliation=reconciliation,
        parked=ParkedClaim(worker, session, slots=slots, wake=wake),
        suspect=SuspectClaim(worker, config, session, slots, finder, bounds),
        end_and_claim=ends,
    )
    handover = Handover(worker=worker, session=session, slots=slots, bounds=bounds, sleep=sleep, tallies=tallies)
    return ClaimLoop(
        wake=wake,
        reconciliation=reconciliation,
        outcomes=sources,
        finder=finder,
        choice=choice,
        handover=handover,
        sleep=sleep,
    )
