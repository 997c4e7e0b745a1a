"""Ids of jobs: version 7 uuids, so that later ones sort later."""

import time
from concurrent.futures import ThreadPoolExecutor

from outlive.model import new_job_id


def test_an_id_is_a_uuid_of_version_7_that_tells_its_millisecond():
    before = time.time_ns() // 1_000_000
    id = new_job_id()
    after = time.time_ns() // 1_000_000
    assert (id.version, id.variant) == (7, "specified in RFC 4122")
    assert before <= id.int >> 80 <= after


def test_ids_are_never_the_same():
    with ThreadPoolExecutor(4) as threads:
        ids = list(threads.map(lambda _: new_job_id(), range(20_000)))
    assert len(set(ids)) == 20_000


def test_every_random_bit_of_an_id_varies():
    ids = [new_job_id().int for _ in range(200)]
    varying = 0
    for id in ids:
        varying |= id ^ ids[0]
    assert varying & ((1 << 64) - 1) == (1 << 62) - 1


def test_ids_made_one_after_the_other_sort_in_that_order():
    """The part that is time; ids of the same quarter of a microsecond differ in the rest."""
    ids = [new_job_id().int >> 64 for _ in range(1000)]
    assert ids == sorted(ids)
