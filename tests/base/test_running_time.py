"""Running time: what counts as time in which this process ran."""

import time

from outlive.worker.limits.running_time import GAP_S, RunningTime


def test_a_moment_after_a_busy_stretch_does_not_lie_before_it():
    """A job that begins then is not charged for the stretch."""
    clock = RunningTime()
    busy_from = clock.tick()
    used_s = time.thread_time()
    while time.thread_time() - used_s < 4 * GAP_S:
        pass
    assert clock.now() - busy_from > 4 * GAP_S
    assert clock.now() <= clock.tick()
