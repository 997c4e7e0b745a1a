"""The configuration: defaults < app < file < environment < flags; what makes no sense is refused with a sentence."""

import os
import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.pretty import pretty_repr

from outlive import config
from outlive.errors import ConfigError

SECRET = "correct-horse"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test stands in an empty directory: ./outlive.toml is read."""
    monkeypatch.chdir(tmp_path)


def load(*, file: str | None = None, flags: Any = None, **environ: str) -> config.Config:
    if file is not None:
        Path("outlive.toml").write_text(file)
    return config.load(environ=environ, flags=flags)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default():
    file = "slots = 2\nmax_attempts = 2\nmax_crashes = 2"
    found = load(file=file, OUTLIVE_MAX_ATTEMPTS="6", OUTLIVE_MAX_CRASHES="6", flags={"max_crashes": 7, "slots": None})
    assert (found.slots, found.max_attempts, found.max_crashes, found.max_losses) == (2, 6, 7, 3)


def test_the_app_beats_the_default_and_nothing_else():
    app = config.in_code({"slots": 1, "max_attempts": 1, "max_crashes": 1, "max_losses": None, "lease_s": "1m"})
    Path("outlive.toml").write_text("slots = 2")
    found = config.load(environ={"OUTLIVE_MAX_ATTEMPTS": "6"}, flags={"max_crashes": 7}, app=app)
    assert (found.slots, found.max_attempts, found.max_crashes, found.max_losses) == (2, 6, 7, None)
    assert (found.lease_s, found.renew_s) == (60.0, 15.0)  # The second follows from the first.


def test_an_app_can_give_every_setting_that_is_not_needed_before_its_import():
    in_code = {"database_url", *config.Settings.__annotations__}
    needed_before = {"jobs_see_database_url", "job_log_level", "metrics_listen", "labels"}
    needed_before |= {key for key in config.KEYS if key.startswith("dashboard_")}
    assert in_code == {*config.KEYS} - needed_before
    with pytest.raises(ConfigError, match="set OUTLIVE_JOBS_SEE_DATABASE_URL"):
        config.in_code({"jobs_see_database_url": True})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_atempts": 3}, "App has the unknown setting max_atempts; did you mean max_attempts?"),
        ({"lease_s": "soon"}, "lease_s is 'soon': it must be a duration"),
        ({"lease_s": 30, "renew_s": 20}, "renew_s (20) is more than a third of lease_s (30)"),
        ({"database_url": 271828}, "database_url is of type int, not text"),
    ],
)
def test_a_setting_in_code_that_makes_no_sense_is_refused_where_it_stands(said, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        config.in_code(said)


def test_settings_in_code_stay_the_same_when_they_travel_to_the_worker():
    given = {"queues": ["a", "b"], "timeout_s": None, "memory_bytes": "1MB", "keep_failed_s": timedelta(days=1)}
    app = config.in_code({**given, "cache_enabled": False, "database_url": None})
    assert "database_url" not in app
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(app))
    assert config.load(environ={}, app=travelled) == config.load(environ={}, app=app)
    assert config.load(environ={}, app=app).queues == ("a", "b")


def test_the_file_may_be_named_and_must_then_exist():
    Path("other.toml").write_text("slots = 3")
    assert config.load("other.toml", environ={}).slots == 3
    assert load(OUTLIVE_CONFIG="other.toml").slots == 3
    with pytest.raises(ConfigError, match=r"missing\.toml can't be read: No such file"):
        config.load("missing.toml", environ={})


def test_the_nearest_file_above_the_current_directory_is_read(tmp_path, monkeypatch):
    deep = tmp_path / "shop" / "src" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "outlive.toml").write_text("slots = 2")
    monkeypatch.chdir(deep)
    assert load().slots == 2
    (tmp_path / "shop" / "outlive.toml").write_text("max_attempts = 3")
    assert (load().slots, load().max_attempts) == (None, 3)
    assert config.file_in_force(environ={}) == tmp_path / "shop" / "outlive.toml"
    assert load(file="slots = 5").slots == 5


def test_no_file_above_the_home_directory_is_read(tmp_path, monkeypatch):
    (tmp_path / "home" / "shop").mkdir(parents=True)
    (tmp_path / "outlive.toml").write_text("slots = 2")
    monkeypatch.chdir(tmp_path / "home" / "shop")
    assert load().slots == 2
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load().slots is None
    assert config.file_in_force(environ={}) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_another_users_file_above_the_current_directory_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "shop").mkdir()
    planted = tmp_path / "outlive.toml"
    planted.write_text('on_worker_dead = "run this"')
    os.chown(planted, 12345, 12345)
    monkeypatch.chdir(tmp_path / "shop")
    assert load() == config.Config()
    monkeypatch.chdir(tmp_path)
    assert load().on_worker_dead == "run this"


def test_in_a_directory_that_was_removed_there_is_no_file(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load() == config.Config()


def test_a_file_that_is_not_toml_is_refused():
    with pytest.raises(ConfigError, match=r"outlive\.toml is not valid TOML"):
        load(file="slots: 3")
    Path("outlive.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"outlive\.toml is not valid TOML"):
        load()


@pytest.mark.parametrize(
    ("variable", "value", "key", "meant"),
    [
        ("WORKER_ID", "w1", "name", "w1"),
        ("JOB_LOCK_TIMEOUT_SECONDS", "60", "lease_s", 60.0),
        ("CACHE_TTL_SECONDS", "5", "cache_ttl_s", 5.0),
        ("CACHE_ENABLED", "false", "cache_enabled", False),
    ],
)
def test_names_that_other_systems_use_are_understood_and_ours_win(variable, value, key, meant):
    assert getattr(load(**{variable: value}), key) == meant
    assert getattr(load(**{variable: ""}), key) == getattr(config.Config(), key)
    ours = {"name": "w2", "lease_s": "99", "cache_ttl_s": "99", "cache_enabled": "true"}[key]
    both = {variable: value, f"OUTLIVE_{key.upper()}": ours}
    assert getattr(load(**both), key) != meant
    assert config.unprefixed(load(**{variable: value}), {variable: value}) == [f"{variable} ({key})"]
    assert config.unprefixed(load(**both), both) == []
    assert config.unprefixed(load(**{variable: value}, flags={key: ours}), {variable: value}) == []


@pytest.mark.parametrize(
    ("key", "written", "meant"),
    [
        ("lease_s", "5m", 300.0),
        ("timeout_s", "none", None),
        ("max_losses", "none", None),
        ("memory_bytes", "512MB", 512_000_000),
        ("queues", "fast, slow", ("fast", "slow")),
        ("cache_enabled", "off", False),
        ("cache_enabled", "Yes", True),
        ("log_format", "json", "json"),
        ("home", "/srv/outlive", "/srv/outlive"),
        ("slots", "4", 4),
        *(("metrics_listen", value, value) for value in ("127.0.0.1:9464", "[::1]:9464", "localhost:0")),
    ],
)
def test_each_setting_is_read_from_its_text(key, written, meant):
    assert getattr(load(**{f"OUTLIVE_{key.upper()}": written}), key) == meant


def test_a_list_and_true_in_the_file_are_what_they_are():
    found = load(file='queues = ["fast", "slow"]\ncache_enabled = false\nstall_s = 1.5')
    assert (found.queues, found.cache_enabled, found.stall_s) == (("fast", "slow"), False, 1.5)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("log_level", "loud", "log_level is 'loud': it must be debug, info, warning or error"),
        ("log_level", "info,shop=error", "and may go on with ,outlive.worker=LEVEL or ,outlive.job=LEVEL"),
        ("log_level", "info,outlive.job", "log_level is 'info,outlive.job': it must be"),
        ("lease_s", "soon", "lease_s is 'soon': it must be a duration"),
        ("slots", 0, "slots is 0: it must be a whole number from 1 to 30000"),
        ("slots", "2.5", "slots is '2.5': it must be a whole number"),
        ("slots", 2.5, "slots is 2.5: it must be a whole number"),
        ("slots", True, "slots is True: it must be a whole number"),
        ("max_attempts", 40000, "max_attempts is 40000: it must be a whole number"),
        ("max_attempts", "9" * 5000, "max_attempts is .*: it must be a whole number"),
        ("memory_bytes", "much", "memory_bytes is 'much': it must be a size"),
        ("memory_bytes", 300, "memory_bytes is 300: it must be at least 1MB"),
        ("database_url", "", "database_url is empty: give it an address"),
        ("max_args_bytes", "2GB", "max_args_bytes .* is more than"),
        ("queues", "a,,b", "queues is 'a,,b': it must be a list of names"),
        ("queues", 5, "queues is 5: it must be a list of names"),
        ("cache_enabled", "perhaps", "cache_enabled is 'perhaps': it must be true or false"),
        ("log_format", "xml", "log_format is 'xml': it must be text or json"),
        ("name", 5, "name is of type int, not text: write it in quotes"),
        ("name", Decimal(5), r"name is of type Decimal, not text: write str\(…\), or what gives its text"),
        ("service", "bill\ting", "service is 'bill.*ting': it must be 1 to 200 bytes of printable"),
        ("service", "b" * 5000, "it must be 1 to 200 bytes of printable characters"),
        *(
            ("metrics_listen", value, "metrics_listen is .*: it must be a host and a port, like")
            for value in ("9464", ":9464", "localhost", "localhost:", "localhost:http", "localhost:65536", "::1")
        ),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(key, value, said):
    with pytest.raises(ConfigError, match=said):
        load(flags={key: value})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"file": "lease = 5"}, "outlive.toml has the unknown setting lease; did you mean lease_s?"),
        ({"flags": {"slotz": 5}}, "a flag has the unknown setting slotz; did you mean slots?"),
        ({"file": "qqqqq = 5"}, "the unknown setting qqqqq; use one of database_url, home"),
        ({"file": "[worker]\nslots = 5"}, "the unknown setting worker"),
    ],
)
def test_an_unknown_setting_is_refused_with_a_suggestion(how, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(**how)


def test_an_empty_variable_counts_as_not_set_but_an_empty_address_is_refused():
    assert load(OUTLIVE_SLOTS="", OUTLIVE_HOME="") == config.Config()
    with pytest.raises(ConfigError, match=r"database_url is empty: .* \(OUTLIVE_DATABASE_URL\)"):
        load(OUTLIVE_DATABASE_URL="")


def test_an_unknown_variable_is_warned_of_once_with_a_suggestion():
    """Apps have variables of their own."""
    said: list[str] = []
    environ = {"OUTLIVE_SLOTZ": "5", "OUTLIVE_SHOP_KEY": "x", "OUTLIVE_SLOTS": "3", "OUTLIVE_CONFIG": ""}
    for _ in range(2):
        assert config.load(environ=environ, warn=said.append).slots == 3
    assert said == [
        "the environment has OUTLIVE_SHOP_KEY, which is not a setting of outlive and has no effect; "
        "see docs/reference/settings.md",
        "the environment has OUTLIVE_SLOTZ, which is not a setting of outlive and has no effect; "
        "did you mean OUTLIVE_SLOTS?",
    ]


@pytest.mark.parametrize(
    ("said", "follows"),
    [
        ({}, {"renew_s": 20, "heartbeat_s": 30, "stale_s": 60, "dead_s": 120}),
        ({"lease_s": 40}, {"renew_s": 10}),
        ({"lease_s": 1000}, {"renew_s": 20}),
        ({"lease_s": 40, "renew_s": 5}, {"renew_s": 5}),
        ({"heartbeat_s": 10}, {"stale_s": 20, "dead_s": 40}),
        ({"heartbeat_s": 100}, {"stale_s": 200, "dead_s": 400}),
        ({"stale_s": 20}, {"heartbeat_s": 10, "dead_s": 40}),
        ({"dead_s": 20}, {"heartbeat_s": 5, "stale_s": 10}),
        ({"dead_s": 4000}, {"heartbeat_s": 30, "stale_s": 60}),
        ({"heartbeat_s": 10, "dead_s": 100}, {"stale_s": 20}),
        ({"heartbeat_s": 1, "stale_s": 50, "dead_s": 51}, {}),
    ],
)
def test_intervals_that_are_not_set_follow_from_those_that_are(said, follows):
    found = load(flags=said)
    assert {key: getattr(found, key) for key in follows} == follows
    assert {key: getattr(found, key) for key in said} == said


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"lease_s": 0}, "must be more than zero"),
        ({"sweep_s": 0}, "must be more than zero"),
        ({"heartbeat_s": 0}, "must be more than zero"),
        ({"renew_s": 0}, "must be more than zero"),
        ({"lease_s": 10, "renew_s": 5}, "renew_s (5) is more than a third of lease_s (10)"),
        ({"heartbeat_s": 60, "stale_s": 60}, "heartbeat_s (60) is not below stale_s (60)"),
        ({"heartbeat_s": 90, "dead_s": 120}, "heartbeat_s (90) is not below stale_s (60)"),
        ({"stale_s": 60, "dead_s": 60}, "stale_s (60) is not below dead_s (60)"),
        ({"grace_s": 5}, "grace_s is 5: it must be more than 5"),
        ({"backoff_base_s": 10, "backoff_cap_s": 5}, "backoff_base_s (10) is more than backoff_cap_s (5)"),
        ({"stall_s": 60, "timeout_s": 60}, "stall_s (60) is not below timeout_s (60)"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_the_reason(said, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        load(flags=said)


def test_a_configuration_never_shows_its_secrets():
    found = load(OUTLIVE_DATABASE_URL=f"postgresql://me:{SECRET}@host/db")
    shown = [repr(found), str(found), f"{found}", pretty_repr(found), repr([found])]
    assert all(SECRET not in text and "max_attempts=5" in text.replace("\n", "") for text in shown)
    assert "database_url=None" in repr(config.Config())


@pytest.mark.parametrize("file", [f'database_url = ["{SECRET}"]', "database_url = 271828", f'database_url = "{SECRET}'])
def test_an_error_about_a_secret_does_not_show_it(file):
    with pytest.raises(ConfigError) as raised:
        load(file=file)
    assert SECRET not in str(raised.value)
    assert "271828" not in str(raised.value)


def test_every_default_is_one_that_load_would_accept():
    said = {key: value for key, value in msgspec.structs.asdict(config.Config()).items() if value is not None}
    assert load(flags=said) == config.Config()
