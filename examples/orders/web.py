"""The web app: `uvicorn --factory orders.web:create`. Its dashboard is below /outlive."""

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.orm import Session

from orders import packing
from orders.database import Order, session_of_request
from orders.tasks import jobs, send_invoice
from outlive.dashboard import asgi
from outlive.fastapi import Enqueue, in_session, lifespan

InSession = Annotated[Session, Depends(session_of_request)]
Enqueuing = Annotated[Enqueue, Depends(in_session(InSession))]


class NewOrder(BaseModel):
    customer: str
    cents: int


class OrderState(BaseModel):
    id: int
    invoiced: bool


def create() -> FastAPI:
    dashboard = asgi(jobs)
    web = FastAPI(lifespan=lifespan(jobs, dashboard=dashboard))
    web.mount("/outlive", dashboard)
    web.post("/orders", status_code=201)(create_order)
    web.get("/orders/{id}")(read_order)
    web.include_router(packing.router)
    return web


def create_order(new: NewOrder, session: InSession, enqueue: Enqueuing) -> OrderState:
    """The order and its job are committed together. Whatever is raised before that leaves neither."""
    order = Order(customer=new.customer, cents=new.cents)
    session.add(order)
    session.flush()
    enqueue(send_invoice, order.id)
    if not new.customer:
        raise HTTPException(422, "an order has a customer")
    session.commit()
    return OrderState(id=order.id, invoiced=order.invoiced)


def read_order(id: int, session: InSession) -> OrderState:
    order = session.get(Order, id)
    if order is None:
        raise HTTPException(404, f"there is no order {id}")
    return OrderState(id=order.id, invoiced=order.invoiced)
