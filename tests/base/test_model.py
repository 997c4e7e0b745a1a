"""Ids, the public names, and the memory of statements."""

from __future__ import annotations

import ast
import inspect
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import outlive
from outlive.binary import packed
from outlive.model import new_job_id
from outlive.statement import Statement


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


def test_type_checkers_see_the_names_that_are_there():
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(outlive))) if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, one.name) for node in imports for one in node.names if one.asname == one.name}
    assert seen == {(f"outlive.{module}", name) for module, names in outlive._NAMES.items() for name in names.split()}
    assert {name: getattr(outlive, name).__name__ for name in outlive.__all__} == {
        name: name for name in outlive.__all__
    }


PER_LENGTH_BYTES = 1000


def test_columns_of_many_lengths_leave_no_memory_behind():
    """A worker ends a different number of jobs with each statement. `struct` keeps every format that it is given."""
    lengths = range(950, 1000)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for length in lengths:
            values = (list(range(length)), [0.5] * length)
            packed(Statement("", b"", values, lambda rows: None, ("bigint[]", "double precision[]")))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < PER_LENGTH_BYTES * len(lengths)
