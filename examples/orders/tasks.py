"""The job of an order: its invoice is written in the transaction that ends the job, so it is written once."""

from __future__ import annotations

import os

import outlive
from orders.database import URL, Order, open_session

jobs = outlive.App(os.environ.get(URL))


@jobs.task(max_attempts=3, backoff="1m")
def send_invoice(order: int) -> None:
    with open_session() as session:
        found = session.get_one(Order, order)
        if found.cents <= 0:
            raise outlive.Fail(f"order {order} has no price")
        found.invoiced = True
        session.flush()
        outlive.current().complete(session)
        session.commit()
