"""Statements as values: how their parameters are encoded."""

from __future__ import annotations

import tracemalloc

from outlive.binary import packed
from outlive.statement import Statement

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
