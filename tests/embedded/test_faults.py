"""Keepers, postmasters and starters that are killed, and their leftovers."""

import contextlib
import os
import shutil
import signal
import threading
from pathlib import Path

import psycopg
import pytest

from outlive import embedded
from outlive.embedded import binaries
from outlive.errors import EmbeddedError
from tests.driving.workers import cmdline
from tests.embedded.actors import (
    NewUser,
    end_everything_at,
    is_alive,
    keeper_of,
    kill,
    postmaster_of,
    processes_at,
    query,
    run_as_owner_of,
)
from tests.waiting import eventually

NEVER_NOTICES = "do $$ begin loop end loop; end $$"
"""A backend that computes and never waits: it learns nothing of its postmaster's death."""

COMPUTING = "select count(*) from pg_stat_activity where query like 'do $$%' and state = 'active'"


@pytest.mark.long
def test_killing_the_keeper_stops_the_server_and_the_next_use_restarts_both(directory, new_user):
    user = new_user(directory)
    url = user.ensure().url
    keeper, postmaster = keeper_of(directory), postmaster_of(directory)
    kill(keeper)
    eventually(lambda: not is_alive(postmaster), within_s=2, what="the server stopped")
    answer = user.ensure()
    assert answer.took_s < user.soon_s
    assert answer.url == url
    assert query(url, "select 1") == "1"
    assert keeper_of(directory) != keeper
    assert postmaster_of(directory) != postmaster
    for _ in range(3):
        kill(keeper_of(directory))  # Its server still stops when it is used.
        answer = user.ensure()
        assert answer.took_s < user.soon_s
        assert query(answer.url, "select 1") == "1"


def test_killing_the_postmaster_loses_nothing_acknowledged_and_the_next_use_restarts_it(directory, new_user):
    user = new_user(directory)
    url = user.ensure().url
    acknowledged = 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kept(id int primary key)")
        postmaster = postmaster_of(directory)
        killer = threading.Timer(0.2, os.kill, (postmaster, signal.SIGKILL))
        killer.start()
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                connection.execute("insert into kept values (%s)", (acknowledged + 1,))
                acknowledged += 1
        killer.join()
    eventually(lambda: not is_alive(postmaster), what="the postmaster dead")
    answer = user.ensure()
    assert answer.took_s < user.soon_s
    assert answer.url == url
    assert acknowledged > 0
    assert int(query(url, "select count(*) from kept")) >= acknowledged
    assert int(query(url, "select max(id) - count(*) from kept")) == 0


@pytest.mark.long
@pytest.mark.parametrize("also_the_keeper", [False, True])
def test_a_backend_that_never_notices_does_not_hold_up_the_restart(directory, new_user, also_the_keeper):
    user = new_user(directory)
    url = user.ensure().url
    victims = [postmaster_of(directory)] + [keeper_of(directory)] * also_the_keeper
    with psycopg.connect(url, autocommit=True) as busy:
        thread = threading.Thread(target=_compute, args=(busy,))
        thread.start()
        eventually(lambda: query(url, COMPUTING) == "1", what="the backend computes")
        kill(*victims)  # The postmaster first: it must not come to tell its backends.
        answer = user.ensure()
        assert answer.error == ""
        assert answer.took_s < user.soon_s
        assert query(answer.url, "select 1") == "1"
        thread.join()


@pytest.mark.long
def test_a_backend_that_never_notices_is_ended_even_if_no_client_comes_back(directory, new_user):
    user = new_user(directory)
    url = user.ensure().url
    with psycopg.connect(url, autocommit=True) as busy:
        backend = busy.info.backend_pid
        thread = threading.Thread(target=_compute, args=(busy,))
        thread.start()
        eventually(lambda: query(url, COMPUTING) == "1", what="the backend computes")
        kill(postmaster_of(directory))
        user.kill()
        eventually(lambda: not is_alive(backend), within_s=5, what="the backend ended")
        thread.join()


def _compute(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    with pytest.raises(psycopg.OperationalError):
        connection.execute(NEVER_NOTICES)


@pytest.mark.long
def test_a_stale_pid_file_that_names_a_living_process_is_no_hindrance(directory, new_user):
    user = new_user(directory)
    user.ensure()
    socket = directory / "socket" / ".s.PGSQL.5432.lock"
    pid_file = directory / "data" / "postmaster.pid"
    old, owner = pid_file.read_text().splitlines(), pid_file.stat()
    user.kill()
    end_everything_at(directory)
    # After a reboot the old number belongs to anyone: here to a process of the very account that runs the server.
    stranger = run_as_owner_of(directory / "data", ["sleep", "600"])
    try:
        socket.parent.mkdir()
        for path in (pid_file, socket):
            path.write_text("\n".join([str(stranger.pid), *old[1:]]) + "\n")
            os.chown(path, owner.st_uid, owner.st_gid)
        assert query(new_user(directory).ensure().url, "select 1") == "1"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.long
def test_a_second_server_on_the_same_data_is_refused_and_the_first_is_left_alone(directory):
    embedded.ensure(directory)
    assert embedded.release(directory, wait_s=5)
    data, program = str(directory / "data"), str(binaries.find() / "postgres")
    by_hand = run_as_owner_of(directory / "data", [program, "-D", data, "-c", "listen_addresses=", "-k", data])
    try:
        pid_file = directory / "data" / "postmaster.pid"
        eventually(lambda: pid_file.exists() and "ready" in pid_file.read_text(), what="the server by hand is ready")
        with pytest.raises(EmbeddedError, match=f"process {by_hand.pid} is a postmaster .* stop it and try again"):
            embedded.ensure(directory)
        assert by_hand.poll() is None
    finally:
        by_hand.send_signal(signal.SIGINT)
        by_hand.wait()
    assert query(embedded.ensure(directory), "select 1") == "1"


@pytest.mark.long
def test_a_starter_killed_at_any_moment_leaves_nothing_in_the_way(directory: Path, new_user: NewUser) -> None:
    for patience in ("locks", "keeper.log", "data.new-", "data", "socket"):
        starter = new_user(directory)
        starter.ask()
        eventually(lambda name=patience: _has(directory, name), what=f"{patience} is there")  # type: ignore[misc]
        starter.kill()
    user = new_user(directory)
    assert query(user.ensure().url, "select 1") == "1"
    assert not [path for path in directory.iterdir() if path.name.startswith("data.new-")]


def _has(directory: Path, start: str) -> bool:
    later = ("data", "socket") if start == "data.new-" else ()
    try:
        return any(path.name.startswith(start) or path.name in later for path in directory.iterdir())
    except FileNotFoundError:
        return False


@pytest.mark.long
def test_a_keeper_killed_while_it_makes_the_cluster_leaves_nothing_in_the_way(directory, new_user):
    starter = new_user(directory)
    starter.ask()
    eventually(lambda: _has(directory, "data.new-"), what="initdb runs")

    def keepers() -> list[int]:
        return [pid for pid in processes_at(directory) if b"keeper.py" in cmdline(pid)]

    eventually(lambda: len(keepers()) == 1, what="the process that has started it is gone")
    os.kill(keepers()[0], signal.SIGKILL)
    assert "died while starting" in starter.answer().error
    assert query(starter.ensure().url, "select 1") == "1"
    assert not [path for path in directory.iterdir() if path.name.startswith("data.new-")]


@pytest.mark.long
def test_a_socket_that_was_deleted_is_brought_back(directory, new_user):
    user = new_user(directory)
    url = user.ensure().url
    shutil.rmtree(directory / "socket")
    answer = user.ensure()
    assert answer.took_s < user.soon_s
    assert query(url, "select 1") == "1"


@pytest.mark.long
def test_a_directory_deleted_under_its_users_becomes_a_new_server(directory, new_user):
    user = new_user(directory)
    user.ensure()
    old = [keeper_of(directory), postmaster_of(directory)]
    eventually(lambda: _is_deleted(directory), what="all of it is deleted")
    answer = user.ensure()
    assert answer.error == ""
    eventually(lambda: not any(map(is_alive, old)), what="the old server gone")
    assert query(user.ensure().url, "select 1") == "1"


def _is_deleted(directory: Path) -> bool:
    """Delete a directory like `rm -rf`, although its server may remove or write some files at the same time."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def test_the_log_is_bounded(directory):
    url = embedded.ensure(directory, settings={"fsync": "off"})
    noise = "do $$ begin for i in 1..100 loop raise log '%', repeat('x', 200000); end loop; end $$"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(noise.encode())
    assert embedded.release(directory, wait_s=10)
    sizes = [path.stat().st_size for path in directory.glob("postgres.log*")]
    assert len(sizes) == 2
    assert 0 < sum(sizes) < 17_000_000
