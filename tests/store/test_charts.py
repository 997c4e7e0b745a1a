"""What the charts of the dashboard count, by minute."""

from datetime import timedelta

import pytest

from outlive import store
from tests.driving.making import NOON

MINUTE = NOON - timedelta(minutes=1)
ENDED = b"""
insert into outlive.attempts (job_id, attempt, token, outcome, state, ended_at, failures, crashes, losses)
select gen_random_uuid(), 1, n * %(apart)s, 'succeeded', 'succeeded',
  %(minute)s::timestamptz + %(within_s)s * interval '1 second' * n / %(ends)s, 0, 0, 0
from generate_series(1, %(ends)s) n
"""


@pytest.mark.parametrize("apart", [1, 2])
@pytest.mark.parametrize("within_s", [0, 18, 59])
@pytest.mark.parametrize("ends", [1, 499, 533, 20_000])
def test_the_ends_of_a_minute_are_counted_or_estimated_however_they_are_spread(queue, ends, within_s, apart):
    """Every token is that of such an end, or every second one: the attempts between them end otherwise."""
    queue.execute(ENDED, {"minute": MINUTE, "ends": ends, "within_s": within_s, "apart": apart})
    queue.set_now()
    found = queue.run(store.ends_by_minute(minutes=2))
    assert found[MINUTE]["succeeded"] == (ends if ends < 500 else pytest.approx(ends, rel=0.01))
    assert [counts for minute, counts in found.items() if minute != MINUTE] == [{}, {}]
