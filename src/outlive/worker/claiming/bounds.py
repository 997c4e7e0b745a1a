"""When a worker stops by itself: after a number of jobs, or when no job is left that it could run now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outlive.worker.claiming.room import NOTHING, Offer


@dataclass(slots=True)
class Bounds:
    left: int | None = None
    """How many more jobs the worker begins; None: any number."""
    until_empty: bool = False
    """It stops when no job is left that it could run."""
    reached: str = ""
    """Why it stops, in words."""
    on_reached: Callable[[], None] = lambda: None

    def limit(self, offer: Offer) -> Offer:
        if self.left is None:
            return offer
        return offer._replace(limit=min(offer.limit, self.left)) if self.left else NOTHING

    def count(self, begun: int) -> None:
        if self.left is not None:
            self.left = max(0, self.left - begun)

    def idle(self) -> None:
        """No job runs in this worker, and it has found none to run."""
        if self.left == 0:
            self.reached = "it has begun as many jobs as it may"
        elif self.until_empty:
            self.reached = "no job is left to run"
        if self.reached:
            self.on_reached()
