"""Ticks: when a schedule fires, by its cron expression or interval, also where daylight saving shifts the clocks."""

from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive import timetable
from outlive.errors import ConfigError
from outlive.model import Schedule

BERLIN = "Europe/Berlin"
SPRING = "2026-03-29"
"""At 02:00 in Berlin the clocks are set to 03:00."""
AUTUMN = "2026-10-25"
"""At 03:00 in Berlin the clocks are set back to 02:00."""


def planned(cron: str | None = None, **more: Any) -> timetable.Timetable:
    return timetable.Timetable(Schedule(name="report", task="work", args=b"{}", cron=cron, **more))


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def local(cron: str, after: str, number: int = 3, timezone: str = BERLIN) -> list[str]:
    """The next ticks, in local time."""
    found = islice(planned(cron, timezone=timezone).after(moment(after)), number)
    return [tick.astimezone(ZoneInfo(timezone)).isoformat(timespec="minutes") for tick in found]


def test_ticks_come_after_the_moment_and_never_at_it():
    every_five = planned("*/5 * * * *")
    assert next(every_five.after(moment("2026-01-01T12:00:00Z"))) == moment("2026-01-01T12:05:00Z")
    assert next(every_five.after(moment("2026-01-01T12:04:59.9Z"))) == moment("2026-01-01T12:05:00Z")


def test_a_cron_expression_is_read_in_its_time_zone():
    assert local("0 9 * * MON-FRI", "2026-01-09T12:00Z", 1) == ["2026-01-12T09:00+01:00"]
    assert local("0 9 * * *", "2026-07-09T12:00Z", 1) == ["2026-07-10T09:00+02:00"]
    assert local("0 9 * * *", "2026-07-09T12:00Z", 1, "Asia/Kolkata") == ["2026-07-10T09:00+05:30"]


def test_a_time_that_daylight_saving_skips_fires_once_when_the_clocks_have_jumped():
    assert local("30 2 * * *", "2026-03-28T12:00Z") == [
        f"{SPRING}T03:00+02:00",
        "2026-03-30T02:30+02:00",
        "2026-03-31T02:30+02:00",
    ]
    assert local("0,30 2 * * *", "2026-03-28T12:00Z", 2) == [f"{SPRING}T03:00+02:00", "2026-03-30T02:00+02:00"]
    assert local("0 0 * * *", "2026-09-05T12:00Z", 2, "America/Santiago") == [
        "2026-09-06T01:00-03:00",  # There the clocks jump at midnight.
        "2026-09-07T00:00-03:00",
    ]


def test_a_time_that_daylight_saving_repeats_fires_the_first_time_only():
    assert local("30 2 * * *", "2026-10-24T12:00Z", 2) == [f"{AUTUMN}T02:30+02:00", "2026-10-26T02:30+01:00"]
    # Between the two, and after the second one.
    assert local("30 2 * * *", f"{AUTUMN}T00:45Z", 1) == ["2026-10-26T02:30+01:00"]
    assert local("30 2 * * *", f"{AUTUMN}T01:15Z", 1) == ["2026-10-26T02:30+01:00"]
    assert local("30 2 * * *", f"{AUTUMN}T01:45Z", 1) == ["2026-10-26T02:30+01:00"]


def test_with_a_field_for_seconds_the_same_rules_hold():
    assert local("0 30 2 * * *", "2026-03-28T12:00Z", 2) == [f"{SPRING}T03:00+02:00", "2026-03-30T02:30+02:00"]
    assert local("0 30 2 * * *", "2026-10-24T12:00Z", 2) == [f"{AUTUMN}T02:30+02:00", "2026-10-26T02:30+01:00"]
    assert local("0 30 2 * * *", f"{AUTUMN}T01:15Z", 1) == ["2026-10-26T02:30+01:00"]
    assert local("0 */30 * * * *", f"{AUTUMN}T00:00Z", 3) == [
        f"{AUTUMN}T02:30+02:00",
        f"{AUTUMN}T02:00+01:00",
        f"{AUTUMN}T02:30+01:00",
    ]


def test_a_schedule_within_the_hour_fires_by_the_time_that_passes():
    assert local("*/30 * * * *", f"{SPRING}T00:00Z") == [
        f"{SPRING}T01:30+01:00",
        f"{SPRING}T03:00+02:00",
        f"{SPRING}T03:30+02:00",
    ]
    assert local("*/30 * * * *", f"{AUTUMN}T00:00Z", 4) == [
        f"{AUTUMN}T02:30+02:00",
        f"{AUTUMN}T02:00+01:00",
        f"{AUTUMN}T02:30+01:00",
        f"{AUTUMN}T03:00+01:00",
    ]


@pytest.mark.parametrize("day", ["2026-10-04", "2026-04-05"], ids=["forward", "back"])
@pytest.mark.parametrize("hour", ["0", "3", "23"])
def test_where_the_clocks_shift_by_half_an_hour_no_firing_of_an_hour_is_lost(day, hour):
    before = f"{date.fromisoformat(day) - timedelta(days=1)}T14:29Z"  # Already that day on Lord Howe: the last at 0.
    assert [tick[-11:-6] for tick in local(f"*/15 {hour} * * *", before, 5, "Australia/Lord_Howe")] == [
        *(f"{int(hour):02}:{minute}" for minute in ("00", "15", "30", "45")),
        f"{int(hour):02}:00",
    ]


@pytest.mark.parametrize("when", [{"cron": "*/10 * * * *"}, {"every_s": 600.0}], ids=str)
def test_moments_in_a_local_zone_are_compared_by_the_time_that_passes(when):
    berlin = ZoneInfo(BERLIN)
    first, now = (moment(f"{AUTUMN}T{at}Z") for at in ("00:50", "01:10"))  # 02:50 and, twenty minutes later, 02:10.
    begin, end = first.astimezone(berlin), now.astimezone(berlin)
    expected = [moment(f"{AUTUMN}T{at}Z") for at in ("00:50", "01:00", "01:10")]
    bounded = planned(**when, starts_at=begin, ends_at=end)
    assert list(bounded.after(moment(f"{AUTUMN}T00:30Z").astimezone(berlin))) == expected
    assert planned(**when).newest(begin, end, most=9) == expected


def test_an_interval_counts_from_its_start_or_from_the_epoch():
    noon = moment("2026-01-01T12:00:00Z")
    assert list(islice(planned(every_s=45.0).after(noon), 2)) == [
        noon + timedelta(seconds=45),  # Noon is a multiple of 45 s.
        noon + timedelta(seconds=90),
    ]
    from_start = planned(every_s=45.0, starts_at=noon + timedelta(seconds=7))
    assert list(islice(from_start.after(noon), 2)) == [noon + timedelta(seconds=7), noon + timedelta(seconds=52)]
    assert next(from_start.after(noon + timedelta(seconds=7))) == noon + timedelta(seconds=52)


@pytest.mark.parametrize("when", [{"cron": "0 * * * *"}, {"every_s": 3600.0}])
def test_start_and_end_can_be_ticks_themselves(when):
    bounded = planned(**when, starts_at=moment("2026-01-01T12:00Z"), ends_at=moment("2026-01-01T14:00Z"))
    hours = [tick.hour for tick in bounded.after(moment("2020-01-01T00:00Z"))]
    assert hours == [12, 13, 14]
    assert list(bounded.after(moment("2026-01-01T14:00Z"))) == []


CRONS = (
    *("* * * * *", "*/7 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 */2 * * *", "0 0 1 * *", "*/20 * * * * *"),
    "*/20 30 2 * * *",
)


@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(("UTC", BERLIN, "America/Santiago", "Australia/Lord_Howe")),
    day=st.sampled_from((SPRING, AUTUMN, "2026-09-06", "2026-04-05", "2026-10-04")),
    offset_m=st.integers(-1500, 1500),
    length_m=st.integers(1, 1500),
    most=st.integers(1, 50),
)
def test_the_newest_ticks_are_those_that_a_walk_through_all_of_them_finds(cron, zone, day, offset_m, length_m, most):
    times = planned(cron, timezone=zone)
    first = moment(f"{day}T00:00Z") + timedelta(minutes=offset_m)
    now = first + timedelta(minutes=length_m)
    walked = list(takewhile(lambda tick: tick <= now, times.after(first - timetable.RESOLUTION)))
    assert walked == sorted(set(walked))
    assert times.newest(first, now, most=most) == walked[-most:]


def test_the_newest_of_very_many_ticks_are_found_at_once():
    every_second = planned("* * * * * *")
    now = moment("2026-01-01T12:00:00Z")
    found = every_second.newest(moment("2020-01-01T00:00Z"), now, most=1000)
    assert (len(found), found[0], found[-1]) == (1000, now - timedelta(seconds=999), now)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cron": "61 * * * *"}, r"the schedule report has the cron expression '61 \* \* \* \*', .*Bad minute"),
        ({"cron": "* * * *"}, "Wrong number of fields"),
        ({"cron": "0 0 31 2 *"}, "Bad day-of-month"),
        ({"cron": "0 0 * * *", "timezone": "Europe/Berln"}, "the schedule report has the time zone 'Europe/Berln'"),
        ({"cron": "0 0 * * *", "timezone": "Europe"}, "write it like 'Europe/Berlin'"),
        ({"cron": "0 0 * * *", "timezone": "../../etc/passwd"}, "is not known here"),
        ({"cron": "0 0 * * *", "every_s": 5.0}, "either a cron expression or an interval"),
        ({}, "either a cron expression or an interval"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_named_with_the_reason(wrong, reason):
    with pytest.raises(ConfigError, match=reason):
        planned(**wrong)
