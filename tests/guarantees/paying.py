"""An app whose clients and jobs work in transactions of several libraries, and a program that kills such clients.

`python -m tests.guarantees.paying URL FIFO LIBRARY…` starts a client for each byte that it reads. A client writes
orders, each with its job in one transaction, until it is killed while it commits. At the end the program prints how
many commits its clients have begun.
"""

import functools
import itertools
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from uuid import UUID, uuid4

import outlive
from outlive import config
from tests.driving.libraries import LIBRARIES, drive

for module in (
    "asyncpg",
    "django.db.backends.postgresql.base",
    "psycopg",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.orm",
):
    import_module(module)  # Once, before any fork, and not in each process.

app = outlive.App()
NAMES = ("psycopg", "async psycopg", "asyncpg", "SQLAlchemy session", "SQLAlchemy async session", "Django")
KILLED_WITHIN_S = 0.004
"""How long after the beginning of a commit its process is killed at most. A commit takes about a tenth of that."""


@app.task(backoff=0, max_attempts=1000, max_crashes=1000, max_losses=None)
def settle(library: str, url: str, order: str, how: str, fifo: str = "") -> None:
    """Write an effect and end the job in the same transaction. Before it commits, its process gives its pid."""

    async def main() -> None:
        async with open_transaction(url) as mine:
            await mine.execute(_written("effects", UUID(order)))
            if how == "forget" and mine.is_async:
                _ = outlive.current().acomplete(mine.connection)
            elif how == "mistake":
                (outlive.current().complete if mine.is_async else outlive.current().acomplete)(mine.connection)
            else:
                await mine.complete({"order": order})
            if fifo:
                say_pid(fifo)
            await (mine.rollback() if how == "roll back" else mine.commit())

    open_transaction, is_async = LIBRARIES[library]
    drive(main(), is_async=is_async)


@app.task(max_attempts=1)
def book(library: str, url: str, order: str) -> list[bool]:
    """Make an effect three times: in a transaction that rolls back, in one that commits, and in one that follows."""
    made: list[bool] = []

    async def main(commits: bool) -> None:
        async with open_transaction(url) as mine:
            made.append(first := await mine.once("effect"))
            if first:
                await mine.execute(_written("effects", UUID(order)))
            await (mine.commit() if commits else mine.rollback())

    open_transaction, is_async = LIBRARIES[library]
    for commits in (False, True, True):
        drive(main(commits), is_async=is_async)
    return made


def _written(table: str, id: UUID) -> str:
    return f"insert into {table} values ('{id}')"  # noqa: S608


def say_pid(fifo: str) -> None:
    """Write this process's pid to the test, if it reads."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    os.write(descriptor, os.getpid().to_bytes(4, "big"))
    os.close(descriptor)


def soon() -> None:
    """Let a random time pass in which a commit is under way, or is over."""
    until = time.monotonic() + random.uniform(0, KILLED_WITHIN_S)
    while time.monotonic() < until:
        pass


def order_until_killed(library: str, url: str, fifo: str, committing: int) -> None:
    open_transaction, is_async = LIBRARIES[library]

    async def main() -> None:
        while True:
            async with open_transaction(url) as mine:
                order = uuid4()
                await mine.execute(_written("orders", order))
                await mine.enqueue(settle, library, url, str(order), "commit", fifo, id=order)
                os.write(committing, b"x")
                await mine.commit()

    drive(main(), is_async=is_async)


def kill_a_client(name: str, order: Callable[[int], None]) -> int:
    """Fork a client that orders, and kill it during one of its first commits. Returns how many it began."""
    committing, told = os.pipe()
    client = os.fork()
    if client == 0:
        try:
            order(told)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(told)
    begun = random.randint(2, 4)  # So at least one order is made.
    for _ in range(begun):
        assert os.read(committing, 1), f"the client of {name} has ended by itself"
    soon()
    os.kill(client, signal.SIGKILL)
    _, status = os.waitpid(client, 0)
    assert os.WIFSIGNALED(status), f"the client of {name} has ended by itself"
    begun += len(os.read(committing, 1000))
    os.close(committing)
    return begun


def kill_clients(clients: Mapping[str, Callable[[int], None]]) -> None:
    """Kill a client for each byte that comes, of each kind in turn; print how many commits they have begun."""
    begun = 0
    for name in itertools.cycle(clients):
        if not sys.stdin.buffer.read(1):
            break
        begun += kill_a_client(name, clients[name])
    print(begun)


if __name__ == "__main__":
    url, fifo, *libraries = sys.argv[1:]
    app.configure(config.load(environ={}, flags={"database_url": url}))
    kill_clients({one: functools.partial(order_until_killed, one, url, fifo) for one in libraries})
