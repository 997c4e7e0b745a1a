"""Django's priorities, from -100 to 100, the highest first, as outlive's, from 0, the most urgent, to 9."""

from __future__ import annotations

DEFAULT = 5
LEAST, MOST = -100, 100


def outlive_priority(priority: int) -> int:
    """0 is 5. Five ranks are above it, of 20 priorities each, and four below it, of 25 each."""
    return DEFAULT - -(-priority // 20) if priority >= 0 else DEFAULT - priority // 25


def django_priority(rank: int) -> int:
    """Of the priorities with this rank, the one that is nearest to 0."""
    return min((one for one in range(LEAST, MOST + 1) if outlive_priority(one) == rank), key=abs)
