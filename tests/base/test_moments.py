"""The times that people write into a filter."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from outlive.errors import ConfigError
from outlive.validation import moment

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 19, 14, 5, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("90s", 90.0),
        ("600", 600.0),
        ("14:05", NOW),
        ("14:04:30", NOW - timedelta(seconds=30)),
        ("14:06", NOW - timedelta(hours=23, minutes=59)),
        ("2026-11-19T14:05", NOW),
        ("2026-11-19 14:05", NOW),
        ("2026-07-01T12:00", datetime(2026, 7, 1, 10, tzinfo=UTC)),
        ("2026-11-19T13:05Z", NOW),
        (" 2026-11-19T08:05:00-05:00 ", NOW),
        ("2026-11-19", datetime(2026, 11, 18, 23, tzinfo=UTC)),
        (NOW, NOW),
        (timedelta(minutes=1), 60.0),
    ],
    ids=str,
)
def test_a_filter_takes_a_duration_a_moment_and_a_time_of_the_last_day(written, meant):
    assert moment("--since", written, zone=BERLIN, now=NOW) == meant


@pytest.mark.parametrize("written", ["", "yesterday", "-5", "25:05", "14:05Z", "2026-13-01", "0001-01-01", True, None])
def test_what_is_no_time_is_refused_with_an_example(written):
    with pytest.raises(ConfigError, match=r"a duration like 90s, .* or a moment like 14:05 or 2026-11-19T14:05"):
        moment("--since", written, zone=BERLIN, now=NOW)


@pytest.mark.parametrize("written", ["14:05", "2026-11-19T14:05", datetime(2026, 11, 19)])
def test_a_program_says_the_zone(written):
    with pytest.raises(ConfigError, match="with a time zone"):
        moment("since", written)
    assert moment("since", "2026-11-19T13:05Z") == NOW
