"""Options and limits of a task, and the durations and sizes that they are written as."""

import contextlib
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlive
from outlive import policy, validation
from outlive.child.zygote import _facts_of
from outlive.config import Config
from outlive.errors import ConfigError
from outlive.policy import Policy


def function() -> None: ...


def policy_of(**options: Any) -> Policy:
    """The policy of a task that is declared so."""

    return outlive.App().task(**options)(function).policy


@pytest.mark.parametrize(
    ("written", "steps"),
    [
        ([1, "2m", timedelta(hours=1)], (1.0, 120.0, 3600.0)),
        ((5,), (5.0,)),
        (0, (0.0,)),
        ("6h", (21600.0, 43200.0, 86400.0)),
        (20000, (20000.0, 40000.0, 80000.0, 86400.0)),
        (100000, (86400.0,)),
    ],
)
def test_a_backoff_is_a_list_of_delays(written, steps):
    assert policy.task_row("t", policy_of(backoff=written), Config()).backoff_s == steps


@pytest.mark.parametrize(("cap_s", "steps"), [(3600, (1800, 3600)), (200_000, (1800, 3600, 7200, 14400))])
def test_a_base_doubles_up_to_the_cap_of_the_settings(cap_s, steps):
    delays = policy.task_row("t", policy_of(backoff="30m"), Config(backoff_cap_s=cap_s)).backoff_s
    assert (delays[:4], delays[-1]) == (steps, cap_s)


def test_a_list_of_delays_has_no_cap():
    assert policy.task_row("t", policy_of(backoff=[7200]), Config(backoff_cap_s=3600)).backoff_s == (7200,)


def test_none_lifts_the_limits_of_the_settings():
    app = outlive.App(stall_s=60, memory_bytes="1GB")
    app.task(stall=None, memory=None, timeout=None)(test_none_lifts_the_limits_of_the_settings)
    app.task(test_a_list_of_delays_has_no_cap)
    unlimited, limited = _facts_of(app)
    assert (unlimited.stall_s, unlimited.memory_bytes, unlimited.timeout_s) == (None, None, None)
    assert (limited.stall_s, limited.memory_bytes, limited.timeout_s) == (60, 10**9, 3600)


def test_a_function_as_backoff_is_asked_at_once_for_every_step():
    assert policy.parse_backoff(lambda n: f"{n}m") == tuple(60.0 * n for n in range(32))


def test_a_function_that_grows_beyond_all_bounds_is_held_at_a_year():
    delays = policy.task_row("t", policy_of(backoff=lambda n: 60 * 4**n), Config()).backoff_s
    assert delays[0::31] == (60.0, policy.MAX_BACKOFF_S)


@pytest.mark.parametrize("written", [[], [1] * 1001, [-1], "soon", ["soon"], lambda n: -n, lambda n: None])
def test_a_malformed_backoff_is_refused(written):
    with pytest.raises(ConfigError):
        policy.parse_backoff(written)


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_exponential_backoff_doubles_up_to_its_cap(base_s, cap_s):
    steps = policy.exponential(base_s, cap_s)
    assert steps[0] == min(base_s, cap_s)
    assert all(after == min(before * 2, cap_s) > before for before, after in pairwise(steps))
    assert steps[-1] == cap_s or len(steps) == policy.MAX_BACKOFF_STEPS


def test_a_limit_that_a_task_does_not_set_follows_the_configuration():
    config = Config(max_attempts=7, max_crashes=8, max_losses=9, backoff_base_s=1, backoff_cap_s=4)
    assert policy.task_row("t", policy_of(), config) == policy.TaskRow(
        name="t",
        queue="default",
        source="",
        max_attempts=7,
        max_crashes=8,
        max_losses=9,
        on_worker_death="retry",
        quarantine_by="job",
        backoff_s=(1.0, 2.0, 4.0),
        app_keep_finished_s=config.keep_finished_s,
        app_keep_failed_s=config.keep_failed_s,
        timeout_s=config.timeout_s,
    )


def test_the_limits_of_a_task_win_over_the_configuration():
    said = policy_of(
        queue="q",
        source=outlive.App().source("s"),
        max_attempts=1,
        max_crashes=2,
        max_losses=None,
        on_worker_death="fail",
        quarantine_by="fingerprint",
        backoff=[3],
        keep_finished="1h",
        expires="5m",
        deadline="2d",
    )
    config = Config()
    assert msgspec.structs.astuple(policy.task_row("t", said, config)) == (
        *("t", "q", "s", 1, 2, None),
        *("fail", "fingerprint", (3.0,), 3600.0),
        *(config.keep_finished_s, config.keep_failed_s, 300.0, 172800.0),
        *(None, None, 5, None, 1, ()),
        *(config.timeout_s, None, None, 1, True, True),
    )


def test_every_option_of_a_task_arrives_in_its_policy():
    said = policy_of(
        timeout=None,
        stall="5m",
        memory="512MB",
        recycle_after=100,
        preload=False,
        source="example.org",
        retry_on=OSError,
        fail_on=(KeyError, ValueError),
    )
    assert said == Policy(
        timeout_s=None,
        stall_s=300.0,
        memory_bytes=512_000_000,
        recycle_after=100,
        preload=False,
        source="example.org",
        retry_on=(OSError,),
        fail_on=(KeyError, ValueError),
    )
    assert policy_of(timeout="10m").timeout_s == 600.0
    assert policy_of().timeout_s is msgspec.UNSET


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\0", "x" * 201, None, 5, "\ud800"])
def test_a_name_is_short_printable_text(name):
    with pytest.raises(ConfigError, match=r"^queue is .*: it must be 1 to 200 bytes"):
        validation.identifier("queue", name)
    assert validation.identifier("queue", "größe 1") == "größe 1"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((600, 600.0), (0, 0.0), (1.5, 1.5), ("600", 600.0), ("0.5", 0.5), ("250ms", 0.25), ("90s", 90.0)),
        *(("10m", 600.0), ("1h30m", 5400.0), ("1h 30m", 5400.0), (" 7d ", 604800.0), ("2w", 1209600.0)),
        *(("1.5h", 5400.0), (timedelta(minutes=2), 120.0)),
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
        *((1, 1), (536870912, 536870912), ("512", 512), ("512B", 512), ("512MB", 512_000_000)),
        *(("512 MB", 512_000_000), ("512mb", 512_000_000), ("512MiB", 512 * 1024**2), ("1.5GB", 1_500_000_000)),
        *(("2TiB", 2 * 1024**4), (" 1kB ", 1000)),
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
