"""The life of an order as one job, which takes days. Whatever dies meanwhile, the customer is charged once, each parcel
gets one label, and the ledger one line.
"""

from __future__ import annotations

from dataclasses import dataclass

import outlive
from orders.database import LedgerLine, Order, Payment, open_session
from orders.tasks import jobs


@dataclass
class Packed:
    parcels: int


@outlive.step(attempts=4, backoff="2s")
def charge(order: int) -> int:
    """A row stands for the call of a bank, which outlive can't take back."""
    with open_session() as session:
        cents = session.get_one(Order, order).cents
        session.add(Payment(order=order, cents=cents))
        session.commit()
    return cents


@jobs.task
def label(order: int, parcel: int) -> str:
    return f"order {order}, parcel {parcel}"


@jobs.task(backoff="1m")
def fulfil(order: int) -> list[str]:
    job = outlive.current()
    cents = charge(order)
    job.sleep("3d")  # The customer may change their mind.
    packed = job.receive("packed", Packed, timeout="7d")  # A person sends it, see packing.py.
    labels = job.gather([label.job(order, parcel) for parcel in range(packed.parcels)])
    with open_session() as session:
        if job.once(session, "ledger"):
            session.add(LedgerLine(order=order, cents=cents, parcels=len(labels)))
        session.commit()
    return labels
