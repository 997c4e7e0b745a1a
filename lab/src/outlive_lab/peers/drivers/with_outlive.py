"""outlive: the same jobs in each of the settings that the report names. It is executed by path."""

import os
from uuid import uuid4

import shared

import outlive

app = outlive.App()
_TABLE = "create table public.bare (like outlive.jobs including all)"
_INSERT = """
insert into public.bare (id, task, queue, args, priority, ready_at, fingerprint, created_at)
values (%s, 'with_outlive.warm', 'default', %s, 5, now(), '0123456789abcdef', now())
"""


@app.task(recycle_after=30_000)
def warm(url: str, number: int) -> None:
    shared.begin(number)


@app.task(recycle_after=100)
def recycled(url: str, number: int) -> None:
    shared.begin(number)


@app.task(recycle_after="clean")
def clean(url: str, number: int) -> None:
    shared.begin(number)


@app.task
def fresh(url: str, number: int) -> None:
    shared.begin(number)


@app.task(share=2500)
async def waiting(url: str, number: int) -> None:
    await shared.wait()


class Queue:
    def __init__(self):
        from outlive import config  # Not at the top, like what follows: workers import this file, and every fork pays.

        app.configure(config.Config(database_url=shared.POSTGRES))
        self._task = app.tasks[f"with_outlive.{os.environ.get('PEER_TASK', 'warm')}"]

    def install(self):
        from outlive import db, migrate

        self._connection = db.connect(shared.POSTGRES)
        migrate.migrate(self._connection)
        self._connection.execute(_TABLE)

    def one(self, number):
        self._task.enqueue(shared.URL, number)

    def bulk(self, numbers):
        app.enqueue_many([self._task.job(shared.URL, number) for number in numbers])

    def waiting(self, numbers):
        app.enqueue_many([waiting.job(shared.URL, number) for number in numbers])

    def left(self):
        query = "select exists (select from outlive.waiting) or exists (select from outlive.running)"
        return self._connection.execute(query).fetchone()[0]

    def bare(self, number):
        args = f'{{"url": "{shared.URL}", "number": {number}}}'
        self._connection.execute(_INSERT, [uuid4(), args], prepare=True)
