"""Which lanes a worker offers, and when it looks again."""

from datetime import UTC, datetime

from outlive.model import LaneState
from outlive.worker.lanes import Lanes


def test_a_source_is_waited_for_only_until_it_may_be_asked() -> None:
    lanes = Lanes()
    lanes.found([LaneState("default", "shop", "visit", 5, datetime.now(UTC), ready=True)])
    lanes.wait({"shop": 2.0, "elsewhere": 1.0}, now=100.0)
    assert lanes.opens_in_s(100.5) == 1.5
    assert lanes.opens_in_s(102.5) is None, "it may be asked now: whoever does not is not to be hurried"
