"""The lines of ends without the worker: what the database has made of an attempt."""

import asyncio

import msgspec
import pytest

from outlive import store
from outlive.model import Claimed, Ended
from outlive.states import Outcome
from outlive.worker.reporting.end_lines import EndLines
from outlive.worker.session import Session
from tests.driving.making import WORKER, Queue

pytestmark = pytest.mark.usefixtures("log_as_text")
STACK = "Traceback (most recent call last):\nValueError: no\n"


def failed(queue: Queue, *, final: bool) -> tuple[Claimed, Ended]:
    """A job whose attempt has just failed, and that end."""
    job = queue.claim_job(queue.make())
    end = Ended(job.token, Outcome.FAILED, error="ValueError: no", exit_code=1, final=final, stack=STACK)
    queue.end(end)
    return job, end


def log_lines_of(url: str, *ends: tuple[Claimed, Ended]) -> None:
    async def ask() -> None:
        session = Session(url)
        lines = EndLines(WORKER, session)
        for job, end in ends:
            lines.add(job, end)
        await lines.run_once()
        await session.close()

    asyncio.run(ask())


def test_no_line_shows_the_password_of_an_address_that_it_cuts(queue, database_url, capsys):
    job, end = failed(queue, final=True)
    said = f"{'x' * 40} postgresql://me:secret-of-many-words-and-signs@host/db"
    log_lines_of(database_url, (job, msgspec.structs.replace(end, error=said)))
    assert "secret" not in capsys.readouterr().err


@pytest.mark.parametrize(("final", "level"), [(True, "ERROR"), (False, "WARNING")])
def test_a_line_waits_until_the_database_says_whether_the_job_has_failed_for_good(
    queue, database_url, capsys, final, level
):
    log_lines_of(database_url, failed(queue, final=final))
    first, *below = capsys.readouterr().err.splitlines()
    assert first.split()[1] == level
    assert bool(below) == final
    assert (", retry at " in first) != final


def test_a_failure_for_good_stays_an_error_with_its_traceback_when_the_job_is_retried_at_once(
    queue, database_url, capsys
):
    job, end = failed(queue, final=True)
    queue.run(store.retry([job.id]))
    log_lines_of(database_url, (job, end))
    first, *below = capsys.readouterr().err.splitlines()
    assert first.split()[1] == "ERROR"
    assert "retry at" not in first
    assert below == [f"    {line}" for line in STACK.splitlines()]
