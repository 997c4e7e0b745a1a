"""Watchers of a fleet whose server crashes or is replaced, and whose workers are on several hosts."""

import os
import shutil
import signal
from uuid import UUID

import pytest

from tests.driving.workers import Worker
from tests.matrix.servers import Server
from tests.matrix.test_standby import address_of_primary, standby, use
from tests.waiting import eventually

__all__ = ["standby"]


def seats(server: Server) -> list[str]:
    """The watchers whose lock the server has, and whose terms last."""
    held = "select w.worker from outlive.watchers w join outlive.liveness l using (worker, key) where w.until > now()"
    return [str(worker) for (worker,) in server.ask(held)]


def three_watch(server: Server, workers: list[Worker]) -> list[Worker]:
    eventually(lambda: len(seats(server)) == 3, within_s=40, what="three workers watch")
    found = seats(server)
    return [worker for worker in workers if worker.id in found]


def last_one_notices(server: Server, workers: list[Worker]) -> None:
    """Kill all watchers at once: the last worker declares them dead."""
    watchers = three_watch(server, workers)
    for worker in watchers:
        os.kill(worker.pid, signal.SIGKILL)
    ids = {UUID(worker.id) for worker in watchers}
    dead = "select id from outlive.workers where state = 'dead'"
    eventually(lambda: {row[0] for row in server.ask(dead)} == ids, within_s=15, what="exactly they are declared dead")


def test_after_a_crash_of_the_server_three_watch_again_and_none_is_declared_dead(server, start):
    use(server.url)
    workers = [start(url=server.url, slots=1) for _ in range(4)]
    three_watch(server, workers)
    server.stop(signal.SIGKILL)
    server.start()
    last_one_notices(server, workers)


@pytest.mark.long
def test_after_a_failover_three_watch_again_on_the_new_server(server, standby, start):
    use(server.url)
    url = address_of_primary(server, standby)
    workers = [start(url=url, slots=1) for _ in range(4)]
    three_watch(server, workers)
    server.stop(signal.SIGKILL)
    standby.ask("select pg_promote()")
    last_one_notices(standby, workers)


@pytest.mark.long
def test_watchers_spread_over_hosts(server, start):
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a process gets another host name by root, with unshare")
    use(server.url)
    crowd = [start(url=server.url, slots=1) for _ in range(3)]
    three_watch(server, crowd)
    within = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh"]
    apart = start(url=server.url, slots=1, within=within)
    eventually(lambda: apart.id in seats(server), within_s=40, what="a watcher has left it its seat")
    assert any(worker.id in seats(server) for worker in crowd)
