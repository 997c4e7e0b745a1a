"""Workers in other languages beside thousands of sources, of which most are closed."""

from collections.abc import Iterator

import pytest

from tests.driving.databases import session
from tests.driving.making import Queue, request
from tests.store.acting import clear
from tests.store.noon import database_url
from tests.store.test_protocol import Foreign

__all__ = ["database_url"]


@pytest.fixture
def foreign(queue: Queue, database_url: str) -> Iterator[Foreign]:
    """A worker, and a thousand sources with a job each. Only the last source is open."""
    clear(queue)
    queue.enqueue([request(source=f"site-{n:03}", priority=0) for n in range(1000)])
    queue.execute("update outlive.sources set enabled = name = 'site-999'")
    with session(queue, database_url, "outlive_protocol") as theirs:
        yield Foreign(theirs, slots=100)


def test_a_claim_looks_through_some_sources_and_not_through_all(queue, foreign):
    queue.make()
    with foreign.connection.transaction():
        assert len(foreign.claim()) == 1
        steps = foreign.connection.value(
            "select idx_scan from pg_stat_xact_user_tables where relid = 'outlive.sources'::regclass"
        )
    assert steps < 300


@pytest.mark.parametrize("busy", [True, False])
def test_the_next_claim_goes_on_with_the_sources_that_follow(queue, foreign, busy):
    sources = set[str]()
    for _ in range(4):
        if busy:
            queue.make()
        for _, id, *_ in foreign.claim():
            sources.add(queue.value("select source from outlive.jobs where id = %s", id))
    assert "site-999" in sources
