"""The page on which a person says that an order is packed. The job of the order waits for that."""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy.orm import Session

from orders.database import Order, session_of_request
from orders.fulfilment import Packed, fulfil
from orders.tasks import jobs
from outlive import Job, JobEnded, State

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Order {id}</title>
<h1>Order {id}</h1><p>Its job is {state}.</p>{form}</html>"""
FORM = """<form method="post"><label>Parcels <input name="parcels" type="number" min="1" value="1"></label>
<button>It is packed</button></form>"""

router = APIRouter(prefix="/orders/{id}")
InSession = Annotated[Session, Depends(session_of_request)]


async def parcels_of_form(request: Request) -> int:
    [typed] = parse_qs((await request.body()).decode()).get("parcels", [""])
    if not typed.isdecimal() or not 1 <= int(typed) <= 100:
        raise HTTPException(422, "an order has 1 to 100 parcels")
    return int(typed)


@router.post("/fulfilment", status_code=201)
def begin(id: int, session: InSession) -> str:
    """The order knows its job as soon as the job exists: both are in one transaction."""
    order = _found(id, session)
    if order.job is None:
        order.job = fulfil.using(connection=session).enqueue(id).id
        session.commit()
    return str(order.job)


@router.get("/packing")
def show(id: int, session: InSession) -> HTMLResponse:
    state = _job(id, session).status()
    form = FORM if state is State.SUSPENDED else ""
    return HTMLResponse(PAGE.format(id=id, state=state, form=form))


@router.post("/packing")
def send(id: int, session: InSession, parcels: Annotated[int, Depends(parcels_of_form)]) -> RedirectResponse:
    try:
        _job(id, session).send("packed", Packed(parcels), connection=session)
    except JobEnded as error:  # This page was open for too long, or the button was pressed twice.
        raise HTTPException(409, str(error)) from None
    session.commit()
    return RedirectResponse("packing", 303)


def _job(id: int, session: Session) -> Job[list[str]]:
    order = _found(id, session)
    if order.job is None:
        raise HTTPException(404, f"order {id} is not being fulfilled")
    return jobs.get_job(order.job)


def _found(id: int, session: Session) -> Order:
    order = session.get(Order, id)
    if order is None:
        raise HTTPException(404, f"there is no order {id}")
    return order
