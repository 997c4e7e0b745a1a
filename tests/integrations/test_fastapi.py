"""FastAPI and Starlette: the lifespan, and jobs that are enqueued in the transaction of a request."""

import asyncio
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import uuid4

import httpx2
import psycopg
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.routing import Mount

import outlive
from outlive.dashboard import asgi
from outlive.errors import AppNotFound
from outlive.fastapi import AsyncEnqueue, Enqueue, in_async_session, in_session, lifespan
from outlive.worker.processes.zygote_handle import ZygoteHandle
from tests.driving import pages
from tests.waiting import eventually

jobs = outlive.App()


@jobs.task(queue="mail")
def send_invoice(order: int) -> int:
    return order


@pytest.fixture(scope="session")
def outlive_apps() -> Sequence[outlive.App]:
    return [jobs]


def orders(url: str) -> FastAPI:
    """An app whose requests have async sessions. A number below zero is refused after its job was enqueued."""
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))

    async def session_of_request() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session:
            yield session

    @asynccontextmanager
    async def inner(_: Any) -> AsyncIterator[dict[str, str]]:
        yield {"currency": "EUR"}
        await engine.dispose()

    in_request = Annotated[AsyncSession, Depends(session_of_request)]
    web = FastAPI(lifespan=lifespan(jobs, inner=inner))

    @web.post("/orders/{id}")
    async def create(
        id: int, session: in_request, enqueue: Annotated[AsyncEnqueue, Depends(in_async_session(in_request))]
    ) -> str:
        job = await enqueue(send_invoice.using(delay="1h"), id)
        if id < 0:
            raise HTTPException(422)
        await session.commit()
        return str(job.id)

    return web


def sessions_of(url: str) -> int:
    with psycopg.connect(url) as connection:
        query = (
            "select count(*) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        found = connection.execute(query).fetchone()
    assert found
    return int(found[0])


def test_a_request_with_an_async_session_enqueues_with_its_commit_and_leaves_nothing_open(outlive_jobs):
    before = sessions_of(outlive_jobs.url)
    web = orders(outlive_jobs.url)

    async def ask() -> list[int]:
        async with web.router.lifespan_context(web) as state:
            assert state == {"currency": "EUR"}
            assert sessions_of(outlive_jobs.url) == before + 1
            transport = httpx2.ASGITransport(app=web)
            async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
                answers = [(await client.post(f"/orders/{id}")).status_code for id in (7, -1)]
        eventually(lambda: sessions_of(outlive_jobs.url) == before, what="the lifespan has closed its connections")
        return answers

    assert asyncio.run(ask()) == [200, 422]
    outlive_jobs.assert_enqueued(send_invoice.using(queue="mail", delay="1h"), 7)
    assert len(outlive_jobs.enqueued()) == 1


def test_a_database_without_the_schema_stops_the_start(empty_database_url):
    bare = outlive.App(empty_database_url)
    web = Starlette(lifespan=lifespan(bare))

    async def start() -> None:
        async with web.router.lifespan_context(web):
            pass

    with pytest.raises(outlive.SchemaMismatch, match="run `outlive migrate --database-url ") as error:
        asyncio.run(start())
    command = shlex.split(str(error.value).partition("`")[2].rstrip("`"))
    assert command[-1] == empty_database_url


@pytest.mark.parametrize("wrong", [orders, AsyncSession, Depends(orders)])
def test_a_session_that_is_not_annotated_is_refused(wrong):
    with pytest.raises(outlive.ConfigError, match=r"in_session takes Annotated\[…, Depends\(…\)\]"):
        in_session(wrong)


def test_an_async_session_is_referred_to_the_other_function():
    with pytest.raises(outlive.ConfigError, match="takes no AsyncSession, which is async: use in_async_session"):
        in_session(Annotated[AsyncSession, Depends(orders)])


def test_a_function_that_is_no_task_is_not_enqueued() -> None:
    with (
        Session() as session,
        pytest.raises(outlive.ConfigError, match=r"enqueue takes a task, .* not <function orders"),
    ):
        Enqueue(session)(orders, "")  # type: ignore[arg-type]


def test_the_integration_imports_neither_fastapi_nor_a_driver():
    code = "import sys, outlive.fastapi; print({'fastapi', 'starlette', 'sqlalchemy', 'psycopg'} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_page_of_fastapi_does_what_it_says(outlive_db, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pages.shell(tmp_path, None, SHOP_DATABASE_URL=outlive_db) as shell:
        pages.run("how-to/fastapi.md", shell, tmp_path, None, port=port)
        with (
            httpx2.Client(base_url=f"http://127.0.0.1:{port}/outlive", follow_redirects=True) as browser,
            logged_in(browser).stream("GET", "/live/jobs") as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines).startswith("retry")
            shell.run("kill $!; timeout 10 tail --pid=$! --follow /dev/null")  # An open page must not keep uvicorn.
            assert list(lines)[-1] == ""  # The stream was not cut.
    with psycopg.connect(outlive_db) as connection:
        made = [order for (order,) in connection.execute("select args ->> 'order' from outlive.jobs")]
        assert made == ["7", "8", "9", "7"]
        assert connection.execute("select id from orders order by id").fetchall() == [(7,), (8,), (9,)]


def logged_in(browser: httpx2.Client) -> httpx2.Client:
    assert "Overview" in browser.get("/", params={"token": "at-least-16-characters"}).text
    return browser


def imported(module: str) -> Sequence[str]:
    """The tasks of a module, as a worker finds them."""

    async def start() -> Sequence[str]:
        zygote = ZygoteHandle(f"{module}:jobs", uuid4(), hidden=["OUTLIVE_DATABASE_URL"])
        try:
            return [facts.name for facts in (await zygote.ready()).tasks]
        finally:
            zygote.hang_up()
            zygote.process.wait(20)

    return asyncio.run(start())


def test_a_worker_imports_a_module_that_also_mounts_the_dashboard_and_never_sees_its_token(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTLIVE_DASHBOARD_TOKEN", "a token of operators")
    (tmp_path / "whole.py").write_text(
        "import os, outlive, outlive.dashboard\njobs = outlive.App()\n"
        "site = outlive.dashboard.asgi(jobs)\nassert not site.access.role_of('a token of operators')\n"
        "@jobs.task\ndef send() -> None: ...\n"
    )
    assert imported("whole") == ["whole.send"]


def test_a_module_that_reads_a_variable_hidden_from_jobs_is_told_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTLIVE_DATABASE_URL", "postgresql://nowhere/none")
    (tmp_path / "reading.py").write_text("import os\nurl = os.environ['OUTLIVE_DATABASE_URL']\n")
    with pytest.raises(AppNotFound, match=r"line 2: KeyError.* workers hide OUTLIVE_DATABASE_URL from jobs"):
        imported("reading")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql+asyncpg://shop:secret@host/shop", r"for SQLAlchemy: leave out \+asyncpg"),
        ("postgresql://shop:secret@host/shop?ssl=disable", r'"ssl"\): write sslmode'),
        ("postgresql://shop:secret@host/shop?prepared_statement_cache_size=0", "leave it out"),
        ("postgresql://shop:one/two?secret=1@host/shop", "escape special characters"),
    ],
)
def test_an_address_of_another_library_is_refused_in_its_own_words_without_its_password(url, why):
    with pytest.raises(outlive.ConfigError, match=why) as error:
        outlive.App(url).get_job(uuid4()).status()
    assert "secret" not in str(error.value)


elsewhere = outlive.App("postgresql://elsewhere.invalid/x")
site = asgi(elsewhere, token="a token of operators")


def test_a_mounted_dashboard_shows_the_database_of_the_test(outlive_jobs):
    web = Starlette(lifespan=lifespan(elsewhere, dashboard=site), routes=[Mount("/ops", site)])
    job = send_invoice.enqueue(7)

    async def look() -> str:
        transport = httpx2.ASGITransport(app=web)
        async with (
            web.router.lifespan_context(web),
            httpx2.AsyncClient(transport=transport, base_url="http://shop.example", follow_redirects=True) as client,
        ):
            return (await client.get("/ops/jobs", params={"token": "a token of operators"})).text

    assert str(job.id) in asyncio.run(look())


def test_what_a_caller_gets_is_an_answer_of_fastapi_with_a_schema(outlive_jobs):
    web = FastAPI()

    @web.get("/progress")
    def progress() -> outlive.JobProgress:
        return send_invoice.enqueue(7).progress()

    @web.get("/counts")
    def counts() -> outlive.BatchCounts:
        with jobs.batch("orders") as batch:
            send_invoice.using(batch=batch).enqueue(8)
        return batch.counts()

    @web.get("/records")
    def records() -> list[outlive.Record]:
        return jobs.records("orders")

    client = TestClient(web)
    assert client.get("/progress").json() == {
        "state": "pending",
        "attempt": None,
        "current": None,
        "total": None,
        "message": None,
    }
    assert client.get("/counts").json()["jobs"] == 1
    assert client.get("/records").json() == []
    assert {"JobProgress", "BatchCounts", "Record"} <= set(web.openapi()["components"]["schemas"])
