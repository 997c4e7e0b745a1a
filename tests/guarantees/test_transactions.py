"""Jobs and effects in transactions of the caller's own, with every library, while clients and workers are killed."""

import functools
import os
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from outlive import Job, State
from outlive.linux import kill
from tests.django.projects import environment
from tests.driving.jobs import attempts, finished
from tests.driving.libraries import LIBRARIES
from tests.driving.making import Queue
from tests.driving.workers import ROOT, Start
from tests.guarantees import paying
from tests.waiting import eventually

Killing = Callable[..., None]


class Kind(NamedTuple):
    """The program that kills clients, and what a worker imports to run their jobs."""

    program: str
    target: str


OURS = Kind("tests.guarantees.paying", "tests.guarantees.paying:app")
TASKS_OF_DJANGO = Kind("tests.django.ordering", "outlive.django.worker:default")


@pytest.fixture(autouse=True)
def tables(apps: None, queue: Queue) -> None:
    queue.execute("create table orders (id uuid); create table effects (id uuid)")


def effects(queue: Queue) -> list[object]:
    return [id for (id,) in queue.execute("select id from effects").fetchall()]


def test_a_job_completes_in_a_transaction_of_any_library_or_leaves_nothing_of_it(
    start: Start, queue: Queue, database_url: str
) -> None:
    start(target="tests.guarantees.paying:app")

    def made(library: str, how: str, **options: int) -> Job[None]:
        id = uuid4()
        return paying.settle.using(id=id, **options).enqueue(library, database_url, str(id), how)  # type: ignore[arg-type]

    paid = [made(library, "commit") for library in LIBRARIES]
    undone = [made(library, "roll back", max_attempts=1) for library in paying.NAMES]
    mistaken = [made(library, "mistake", max_attempts=1) for library in paying.NAMES]
    forgotten = [made(library, "forget") for library in paying.NAMES if LIBRARIES[library][1]]
    for job in paid:
        assert finished(job, State.SUCCEEDED)
    for job in (*undone, *mistaken, *forgotten):
        finished(job, State.FAILED)
    assert sorted(map(str, effects(queue))) == sorted(str(job.id) for job in (*paid, *forgotten))
    assert {attempts(queue, job)[0].error for job in undone} == {
        "ctx.complete was rolled back: the job's effects and its completion did not happen"
    }
    for job in forgotten:
        (only,) = attempts(queue, job)
        assert "acomplete was not awaited" in str(only.error)
    for job in mistaken:
        assert "WrongConnection" in str(attempts(queue, job)[0].error)


def test_an_effect_under_once_is_made_once_in_a_transaction_of_any_library(
    start: Start, queue: Queue, database_url: str
) -> None:
    start(target="tests.guarantees.paying:app")
    orders = {library: str(uuid4()) for library in LIBRARIES}
    jobs = {one: paying.book.enqueue(one, database_url, order) for one, order in orders.items()}
    for library, job in jobs.items():
        assert (library, job.result(timeout=60)) == (library, [True, True, False])
    assert sorted(map(str, effects(queue))) == sorted(orders.values())


@pytest.fixture
def kill_around_commits(start: Start, queue: Queue, database_url: str, tmp_path: Path) -> Killing:
    """Kills clients, children and workers while they commit, and checks at the end what is there."""
    fifo = tmp_path / "committing"
    os.mkfifo(fifo)

    def go(*libraries: str, clients: int, children: int, workers: int, kind: Kind = OURS) -> None:
        worker = start(target=kind.target)
        words = [sys.executable, "-m", kind.program, database_url, str(fifo), *libraries]
        ordering = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # It also writes, so that it never reads an end.
        rounds = children + workers
        try:
            for n in range(rounds):
                with suppress(BlockingIOError):
                    os.read(reader, 65536)  # These commits are over.
                assert ordering.stdin
                ordering.stdin.write(b"x" * (clients * (n + 1) // rounds - clients * n // rounds))
                child = committing(reader)
                paying.soon()
                if (n + 1) * workers // rounds > n * workers // rounds:
                    worker.kill()
                    worker = start(target=kind.target)
                else:
                    kill(child)
            said, _ = ordering.communicate(timeout=300)
            assert ordering.returncode == 0
        finally:
            ordering.kill()
            ordering.communicate()
            os.close(reader)
        everything_happened_once(queue)
        print(f"{said.decode().strip()} commits of clients begun, {seen(queue)}")

    return go


def committing(reader: int) -> int:
    """Wait for a job that is about to commit; returns the pid of its process."""
    ready, _, _ = select.select([reader], [], [], 60)
    assert ready, "no job is about to commit"
    return int.from_bytes(os.read(reader, 65536)[-4:], "big")


def everything_happened_once(queue: Queue) -> None:
    """Each order has its job and each job its order; when all jobs have ended, each has had its effect once."""
    left = "select count(*) from outlive.job_states where status <> 'succeeded'"
    eventually(lambda: queue.execute(left.encode()).fetchone() == (0,), within_s=90, what="all jobs succeed")
    orders, jobs, all_effects = (
        sorted(queue.execute(query).fetchall())
        for query in ("table orders", "select id from outlive.jobs", "table effects")
    )
    assert orders
    assert orders == jobs
    assert orders == all_effects


def seen(queue: Queue) -> str:
    orders, killed = (
        queue.value(query)
        for query in (
            "select count(*) from orders",
            "select count(*) from outlive.attempts where outcome in ('crashed', 'lost')",
        )
    )
    return f"{orders} made; {killed} attempts ended by a kill"


def test_kills_around_commits_lose_no_job_and_repeat_no_effect(kill_around_commits):
    kill_around_commits(*paying.NAMES, clients=6, children=3, workers=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("library", paying.NAMES)
def test_two_hundred_kills_around_commits_lose_no_job_and_repeat_no_effect(kill_around_commits, library):
    kill_around_commits(library, clients=150, children=42, workers=8)


@pytest.fixture
def kill_django(kill_around_commits: Killing, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Killing:
    """The same for jobs that the backend of Django's Tasks API enqueues inside `transaction.atomic()`."""
    for name, given in environment(database_url).items():
        monkeypatch.setenv(name, given)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.django.paying_settings")
    return functools.partial(kill_around_commits, kind=TASKS_OF_DJANGO)


@pytest.mark.long
def test_kills_around_commits_lose_no_task_of_django_and_repeat_no_effect(kill_django):
    kill_django(clients=3, children=2, workers=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_kills_around_commits_lose_no_task_of_django_and_repeat_no_effect(kill_django):
    kill_django(clients=150, children=42, workers=8)
