"""The example with FastAPI: over real HTTP, with a real worker, and its jobs by themselves."""

import threading
from collections.abc import Iterator

import httpx2
import psycopg
import pytest
import uvicorn
from psycopg import sql

from orders.database import URL, Order, open_session
from orders.fulfilment import fulfil
from orders.tasks import send_invoice
from orders.web import create
from outlive import Outcome, State
from tests.waiting import eventually

TOKEN = "a token for operators"


@pytest.fixture
def orders_url(outlive_db: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(URL, outlive_db)
    monkeypatch.setenv("OUTLIVE_DASHBOARD_TOKEN", TOKEN)
    return outlive_db


@pytest.fixture
def web(orders_url: str) -> Iterator[httpx2.Client]:
    """A client of the example, which uvicorn serves."""
    server = uvicorn.Server(uvicorn.Config(create(), port=0, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), what="the server starts")
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def make_order(cents: int) -> int:
    with open_session() as session:
        order = Order(customer="Ada", cents=cents)
        session.add(order)
        session.commit()
        return order.id


def test_an_order_over_http_is_invoiced_by_a_worker_and_a_refused_one_leaves_nothing(web, outlive_jobs):
    made = web.post("/orders", json={"customer": "Ada", "cents": 1200})
    assert (made.status_code, made.json()) == (201, {"id": 1, "invoiced": False})
    job = outlive_jobs.assert_enqueued(send_invoice, 1)

    refused = web.post("/orders", json={"customer": "", "cents": 1200})
    assert (refused.status_code, refused.json()["detail"]) == (422, "an order has a customer")
    assert (len(outlive_jobs.enqueued()), web.get("/orders/2").status_code) == (1, 404)

    assert [one.state for one in outlive_jobs.run(in_processes=True)] == [State.SUCCEEDED]
    assert web.get("/orders/1").json() == {"id": 1, "invoiced": True}

    assert "Log in" in web.get("/outlive/jobs").text
    assert "Overview" in web.get(f"/outlive/?token={TOKEN}").text
    assert str(job.id) in web.get("/outlive/jobs").text


def rows(url: str, table: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql.SQL("table {}").format(sql.Identifier(table))).fetchall()


@pytest.mark.long
def test_an_order_is_fulfilled_by_a_job_that_dies_sleeps_and_waits_for_a_person(web, orders_url, outlive_jobs):
    order = make_order(1200)
    begun = web.post(f"/orders/{order}/fulfilment")
    job = outlive_jobs.assert_enqueued(fulfil, order)
    assert begun.json() == str(job.id) == web.post(f"/orders/{order}/fulfilment").json()

    [killed] = outlive_jobs.run(kill_after="charge")
    assert (killed.outcome, job.status()) == (Outcome.CRASHED, State.SUSPENDED)
    assert rows(orders_url, "payments") == [(1, order, 1200)]
    outlive_jobs.advance("3d")
    assert outlive_jobs.run(in_processes=True) == []

    assert "It is packed" in web.get(f"/orders/{order}/packing").text
    assert web.post(f"/orders/{order}/packing", data={"parcels": "none"}).status_code == 422
    assert "Its job is" in web.post(f"/orders/{order}/packing", data={"parcels": "2"}).text
    outlive_jobs.run(in_processes=True)
    assert job.result(5) == [f"order {order}, parcel 0", f"order {order}, parcel 1"]
    assert rows(orders_url, "payments") == [(1, order, 1200)]
    assert rows(orders_url, "ledger") == [(1, order, 1200, 2)]
    assert "It is packed" not in web.get(f"/orders/{order}/packing").text


def test_a_page_that_was_open_for_too_long_is_told_that_the_job_has_ended(web, orders_url, outlive_jobs):
    order = make_order(1200)
    web.post(f"/orders/{order}/fulfilment")
    outlive_jobs.assert_enqueued(fulfil, order).cancel()
    late = web.post(f"/orders/{order}/packing", data={"parcels": "2"})
    assert late.status_code == 409
    assert late.json()["detail"].endswith("takes no signal packed: it has ended, and is cancelled")


def test_an_invoice_is_written_with_the_end_of_its_job(orders_url, outlive_jobs):
    paid, free, unknown = (send_invoice.enqueue(id) for id in (make_order(100), make_order(0), 99))
    ran = {one.job_id: one for one in outlive_jobs.run()}
    assert {id: one.state for id, one in ran.items()} == {
        paid.id: State.SUCCEEDED,
        free.id: State.FAILED,
        unknown.id: State.RETRYABLE,
    }
    assert ran[free.id].error == "Fail: order 2 has no price"
    with psycopg.connect(orders_url) as connection:
        assert connection.execute("select id, invoiced from orders order by id").fetchall() == [(1, True), (2, False)]
