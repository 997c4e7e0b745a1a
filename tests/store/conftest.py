"""Fixtures of the tests of the store: two sessions that meet, and a look at all jobs after a test."""

from collections.abc import Iterator

import pytest

from tests.driving.making import Connect, Queue
from tests.store.acting import assert_sound
from tests.store.ring import Ring


@pytest.fixture
def ring(connect: Connect) -> Iterator[Ring]:
    ring = Ring(connect(), connect(), connect())
    yield ring
    ring.threads.shutdown()
    assert_sound(ring.watcher)


@pytest.fixture
def sound(queue: Queue) -> Iterator[None]:
    yield
    assert_sound(queue)
