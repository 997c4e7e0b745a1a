"""Many users, one server, which lives exactly as long as they do."""

import os
import subprocess
import sys
import threading

import pytest

from outlive import embedded
from tests.embedded.actors import is_alive, keeper_of, kill, postmaster_of, processes_at, query
from tests.waiting import eventually


@pytest.mark.long
def test_eight_processes_starting_at_once_share_one_server(directory, new_user):
    users = [new_user(directory) for _ in range(8)]
    for user in users:
        user.ask()
    answers = [user.answer() for user in users]
    assert {answer.error for answer in answers} == {""}
    started = {query(answer.url, "select pg_postmaster_start_time()") for answer in answers}
    assert len(started) == 1
    assert sorted(processes_at(directory)) == sorted([keeper_of(directory), postmaster_of(directory)])
    assert (directory / "postgres.log").read_text().count("starting PostgreSQL") == 1


@pytest.mark.long
def test_eight_threads_starting_at_once_share_one_server(directory):
    urls: list[str] = []
    together = threading.Barrier(8)

    def use() -> None:
        together.wait()
        urls.append(embedded.ensure(directory))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(urls) == 8
    assert len(set(urls)) == 1
    assert embedded.release(directory, wait_s=2), "one of the threads took a lease and did not give it back"
    assert (directory / "postgres.log").read_text().count("starting PostgreSQL") == 1


def test_the_server_goes_within_two_seconds_of_its_last_user_being_killed(directory, new_user):
    first, last = new_user(directory), new_user(directory)
    url = first.ensure().url
    assert last.ensure().url == url
    keeper, postmaster = keeper_of(directory), postmaster_of(directory)
    first.kill()
    # A query takes longer than a keeper that errs: it would have stopped the server by now.
    assert query(url, "select pg_sleep(0.5)::text || 'still here'") == "still here"
    last.kill()
    eventually(lambda: not is_alive(keeper) and not is_alive(postmaster), within_s=2, what="keeper and server gone")
    assert not (directory / "data" / "postmaster.pid").exists()
    assert sorted(path.name for path in directory.iterdir()) == ["data", "keeper.log", "locks", "postgres.log"]
    assert "database system is shut down" in (directory / "postgres.log").read_text()


@pytest.mark.long
def test_a_server_that_was_just_left_starts_again_for_the_next_user(directory, new_user):
    for _ in range(5):
        user = new_user(directory)
        assert query(user.ensure().url, "select 1") == "1"
        user.kill()


@pytest.mark.long
def test_releasing_does_not_stop_the_server_of_others(directory, new_user):
    other = new_user(directory)
    url = other.ensure().url
    embedded.ensure(directory)
    assert not embedded.release(directory, wait_s=0.5)
    assert query(url, "select 1") == "1"


@pytest.mark.long
def test_a_forked_child_keeps_the_server_and_repairs_it(directory):
    script = f"""if True:
        import os, sys
        from outlive import embedded
        embedded.ensure({str(directory)!r})
        if os.fork():
            embedded.release({str(directory)!r})
            os._exit(0)
        for line in sys.stdin:
            print(embedded.ensure({str(directory)!r}), flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    child.wait()
    keeper, postmaster = keeper_of(directory), postmaster_of(directory)
    child.stdin.write("\n")
    child.stdin.flush()
    assert query(child.stdout.readline().strip(), "select pg_sleep(0.5)::text || 'here'") == "here"
    assert (keeper_of(directory), postmaster_of(directory)) == (keeper, postmaster)
    kill(postmaster)
    child.stdin.write("\n")
    child.stdin.flush()
    assert query(child.stdout.readline().strip(), "select 1") == "1"
    child.stdin.close()
    child.stdout.close()
    eventually(lambda: not processes_at(directory), within_s=2, what="the server gone with the forked child")


@pytest.mark.long
def test_a_program_that_a_user_executes_does_not_keep_the_server(directory):
    script = f"""if True:
        import subprocess
        from outlive import embedded
        embedded.ensure({str(directory)!r})
        print(subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL).pid)
    """
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    survivor = int(ended.stdout)
    try:
        eventually(lambda: not processes_at(directory), within_s=2, what="the server gone")
        assert is_alive(survivor)
    finally:
        os.kill(survivor, 9)
