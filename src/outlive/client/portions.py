"""How many jobs are enqueued by one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from outlive.model import JobRequest

# How much one statement carries at most: enough to be fast, too little to delay other statements.
PORTION_JOBS = 2000
PORTION_BYTES = 8 * 1024 * 1024


def portions(requests: Iterable[JobRequest]) -> Iterator[list[JobRequest]]:
    """The requests in their order, in as few portions as the limits allow."""
    portion: list[JobRequest] = []
    size_bytes = 0
    for request in requests:
        more_bytes = len(request.args) + len(request.links or b"")
        size_bytes += more_bytes
        if portion and (len(portion) >= PORTION_JOBS or size_bytes > PORTION_BYTES):
            yield portion
            portion, size_bytes = [], more_bytes
        portion.append(request)
    if portion:
        yield portion
