"""The checks of options: durations and sizes as people write them."""

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive import validation
from outlive.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (600, 600.0),
        (0, 0.0),
        (1.5, 1.5),
        ("600", 600.0),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        (" 7d ", 604800.0),
        ("2w", 1209600.0),
        ("1.5h", 5400.0),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration_is_read_as_seconds(written, meant):
    assert validation.seconds("delay", written) == meant


WORDS = ["", " ", "m", "10 minutes", "ten", "-5s", "5s10", "1,5h", "1e3", "10M", "inf", "nan"]
THINGS: list[Any] = [-1, float("inf"), float("nan"), 1.1e10, True, None, [], b"5s", timedelta(seconds=-1)]


@pytest.mark.parametrize("written", [*WORDS, *THINGS])
def test_a_value_that_is_no_duration_is_refused(written):
    with pytest.raises(ConfigError, match=r"^delay is .*: it must be a duration"):
        validation.seconds("delay", written)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (1, 1),
        (536870912, 536870912),
        ("512", 512),
        ("512B", 512),
        ("512MB", 512_000_000),
        ("512 MB", 512_000_000),
        ("512mb", 512_000_000),
        ("512MiB", 512 * 1024**2),
        ("1.5GB", 1_500_000_000),
        ("2TiB", 2 * 1024**4),
        (" 1kB ", 1000),
    ],
)
def test_a_size_is_read_as_bytes(written, meant):
    assert validation.size_bytes("memory", written) == meant


@pytest.mark.parametrize(
    "written", ["", "MB", "0", 0, -1, "-1MB", "0.1B", "1XB", "1MIB5", "12I", True, None, 1.5, "512M", []]
)
def test_a_value_that_is_no_size_is_refused(written):
    with pytest.raises(ConfigError, match=r"^memory is .*: it must be a size"):
        validation.size_bytes("memory", written)


@given(st.text("019. -kmMBishdw٣²", max_size=8))
def test_any_text_is_a_duration_and_a_size_or_refused(text):
    for read in (validation.seconds, validation.size_bytes):
        with contextlib.suppress(ConfigError):
            assert read("it", text) >= 0
