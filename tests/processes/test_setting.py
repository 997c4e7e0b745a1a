"""An operator gives a worker that runs other slots, or other queues."""

import pytest

from outlive import store
from outlive.states import State
from tests import faults
from tests.driving.commands import Cli
from tests.waiting import eventually


@pytest.mark.parametrize("task", [faults.fresh_until, faults.warm_until])
def test_a_worker_gets_more_slots_and_fewer_while_it_runs(start, queue, database_url, tmp_path, task):
    worker, cli = start(slots=1, name="web-7", heartbeat_s="600"), Cli(database_url)
    paths = [tmp_path / name for name in "abc"]
    first, second, third = (task.enqueue(str(path)) for path in paths)
    eventually(lambda: first.status() is State.RUNNING, within_s=20)
    assert cli("workers", "set", "web-7", "--slots", "2").out == "worker web-7 is set: slots 2\n"
    eventually(lambda: second.status() is State.RUNNING, within_s=20, what="its heartbeat is due in ten minutes")
    assert cli("workers", "--json").json[0]["slots"] == 2
    cli("workers", "set", "web-7", "--slots", "1")
    eventually(lambda: "has 1 slot and serves all queues now, because an operator asked for it" in worker.log())
    paths[0].touch()
    eventually(lambda: first.status() is State.SUCCEEDED, within_s=20)
    quick = faults.add.enqueue(1, 2)
    assert (second.status(), third.status()) == (State.RUNNING, State.PENDING)
    paths[1].touch()
    eventually(lambda: third.status() is State.RUNNING, within_s=20)
    assert quick.status() is State.PENDING, "it has one slot"
    paths[2].touch()
    assert quick.result(20) == 3
    what = [{"slots": 2, "worker": "web-7"}, {"slots": 1, "worker": "web-7"}]
    assert queue.values("select what from outlive.audit where action = 'set worker' order by at") == what


def test_a_worker_with_fewer_slots_keeps_fewer_children_busy_however_many_jobs_wait(start, queue):
    worker = start(slots=2, name="web-7", heartbeat_s="600")
    faults.app.enqueue_many(faults.warm_for.job(0.002) for _ in range(3000))
    eventually(lambda: queue.value("select count(distinct result::text) from outlive.attempts") == 2, within_s=20)
    queue.run(store.set_worker("web-7", {"slots": 1}))
    eventually(lambda: queue.value("select count(*) from outlive.attempts") == 3000, within_s=60)
    assert "has 1 slot" in worker.log()
    last = "select distinct t.result::text from (select * from outlive.attempts order by token desc limit 500) t"
    assert len(queue.values(last)) == 1


@pytest.mark.parametrize("options", [{}, {"source": "shop"}])
def test_a_worker_serves_other_queues_while_it_runs(start, queue, database_url, options):
    worker, cli, add = start(slots=2, name="web-7", heartbeat_s="600"), Cli(database_url), faults.add.using(**options)
    urgent = add.using(priority=0)  # A worker looks into a lane that was empty before it claims what is less urgent.
    assert urgent.enqueue(1, 1).result(20) == 2
    ran = cli("workers", "set", "web-7", "--queues", "mail, news", "--slots", 2)
    assert ran.out.splitlines()[-2:] == [
        "no job is in a queue news yet, and no worker names it: check the name; there are default",
        "worker web-7 is set: slots 2; queues mail, news",
    ]
    assert "slots 2; queues mail, news; worker web-7" in cli("audit").out
    eventually(lambda: "has 2 slots and serves the queues mail, news now" in worker.log(), within_s=20)
    assert queue.value("select queues from outlive.workers") == ["mail", "news"]
    assert add.using(queue="mail").enqueue(1, 2).result(20) == 3
    other = urgent.enqueue(1, 3)
    assert add.using(queue="news").enqueue(1, 4).result(20) == 5
    assert other.status() is State.PENDING
    assert cli("workers", "set", "web-7", "--queues", "").out == "worker web-7 is set: queues all\n"
    assert other.result(20) == 4


def test_the_queues_that_a_worker_was_started_with_are_not_called_the_wish_of_an_operator(start, database_url):
    worker = start(slots=1, name="web-7", queues="mail,news")
    assert faults.add.using(queue="mail").enqueue(1, 2).result(20) == 3
    Cli(database_url)("workers", "set", "web-7", "--slots", "2")
    said = "has 2 slots and serves the queues mail, news now, because an operator asked for it"
    eventually(lambda: said in worker.log(), within_s=20)
    assert worker.log().count("because an operator asked for it") == 1


def test_what_no_worker_can_have_is_refused(queue, database_url):
    cli = Cli(database_url)
    queue.register_worker(name="web-7")
    for words, said in (
        ((), "needs --slots or --queues"),
        (("--slots", "0"), "slots is 0: it must be a whole number from 1"),
        (("--slots", "many"), "slots is 'many': it must be a whole number from 1"),
        (("--queues", "a,,b"), "it must be a list of names"),
    ):
        ran = cli("workers", "set", "web-7", *words)
        assert (ran.code, said in ran.err) == (2, True), ran.err
    ran = cli("workers", "set", "web-8", "--slots", "2")
    assert (ran.code, "no worker web-8 is alive; these are: web-7" in ran.err) == (1, True)
    assert queue.count("audit") == 0
