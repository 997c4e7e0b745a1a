"""The rate of a source, checked for every span of time between two requests."""

from collections.abc import Iterable


def within_bounds(taken: Iterable[tuple[float, int]], *, rate_per_s: float, burst: int) -> None:
    """Check requests, each given as its moment in seconds and its number of tokens, against the rate and the burst.

    Moments are stored in microseconds, so each may be off by one.
    """
    moments = sorted(taken)
    for first, (begin_s, _) in enumerate(moments):
        total = 0
        for end_s, tokens in moments[first:]:
            total += tokens
            most = burst + rate_per_s * (end_s - begin_s + 2e-6 * total) + 1e-6
            assert total <= most, f"{total} within {end_s - begin_s:.6f} s, and {most:.3f} are allowed"
