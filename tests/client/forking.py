"""A program that forks after it has used its app: run by a test with the way to fork and the database's address.

It ends with 0 if everything it was promised held; its children end as programs do, with everything Python does then.
"""

import asyncio
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable

import outlive
from outlive import db
from tests.waiting import eventually

app = outlive.App(sys.argv[2])


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


def backend() -> int:
    return app.connections.within(lambda connection: connection.info.backend_pid)


def fork(children: int, exit: Callable[[int], object] = sys.exit) -> None:
    """Fork children that enqueue and exit while the parent waits."""
    parents = backend()
    for n in range(children):
        if (child := os.fork()) == 0:
            assert backend() != parents, "the child has a connection of its own"
            add.enqueue(n)
            asyncio.run(add.aenqueue(n))
            exit(0)
        assert os.waitpid(child, 0) == (child, 0), "the child ends normally"


def plainly() -> None:
    before = backend()
    fork(2)
    add.enqueue(100)
    assert backend() == before, "the parent goes on with its connection"


def with_the_lock_taken() -> None:
    """Fork while the lock is held, as if by another thread: in the child, no thread is left to release it."""
    add.enqueue(100)
    before = backend()
    with app.connections._lock:
        if (child := os.fork()) == 0:
            app.connections.close()
            add.enqueue(0)
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
    assert backend() == before


def within_a_loop() -> None:
    async def use() -> int:
        return await app.connections.awithin(_abackend)

    with asyncio.Runner() as runner:
        before = runner.run(use())
        fork(2, os._exit)  # At once: a child that closed the loop would close its parent's.
        runner.run(add.aenqueue(100))
        assert runner.run(use()) == before
        runner.run(app.connections.aclose())


async def _abackend(connection: db.AsyncConnection) -> int:
    return connection.info.backend_pid


def amid_threads() -> None:
    """Fork while other threads enqueue, with the lock held or a statement under way."""
    enough = threading.Event()

    def work() -> None:
        while not enough.is_set():
            add.enqueue(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    fork(6)
    enough.set()
    for thread in threads:
        thread.join()
    add.enqueue(100)


def while_it_waits() -> None:
    """Fork while a thread waits for a job: the child waits by itself, for the same job and for its own."""
    ours, theirs = add.enqueue(1), add.enqueue(2)
    waits = threading.Thread(target=refused, args=[ours])
    waits.start()
    eventually(lambda: ours.id in app.connections.waiting._by_job, what="the thread waits")
    if (child := os.fork()) == 0:
        canceller = threading.Timer(0.2, theirs.cancel)
        canceller.start()
        refused(theirs)
        canceller.join()
        sys.exit(0)
    assert os.waitpid(child, 0) == (child, 0), "the child ends normally"
    assert waits.is_alive()
    ours.cancel()
    waits.join(20)
    assert not waits.is_alive()


def refused(job: outlive.Job[int]) -> None:
    try:
        job.result(timeout=20)
    except outlive.JobFailed:
        return
    raise AssertionError("the job was cancelled")


def as_servers_do() -> None:
    """Work like a prefork server: one process loads the app, others serve."""
    add.enqueue(100)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert len(set(pool.map(serve, range(30), chunksize=1))) == 30
    add.enqueue(100)


def serve(n: int) -> str:
    return str(add.enqueue(n).id)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
