"""The policy of a task: parsed once, and completed by the configuration."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlive
from outlive import policy, validation
from outlive.config import Config
from outlive.errors import ConfigError
from outlive.policy import Policy


def policy_of(**options: Any) -> Policy:
    """The policy of a task that is declared so."""

    def function() -> None: ...

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
    assert policy.parse_backoff(written) == steps


def test_a_function_as_backoff_is_asked_at_once_for_every_step():
    assert policy.parse_backoff(lambda n: f"{n}m") == tuple(60.0 * n for n in range(32))


def test_a_function_that_grows_beyond_all_bounds_is_held_at_a_year():
    assert policy.parse_backoff(lambda n: 60 * 4**n)[0::31] == (60.0, policy.MAX_BACKOFF_S)


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
    )
    config = Config()
    assert msgspec.structs.astuple(policy.task_row("t", said, config)) == (
        *("t", "q", "s", 1, 2, None),
        *("fail", "fingerprint", (3.0,), 3600.0),
        *(config.keep_finished_s, config.keep_failed_s),
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
