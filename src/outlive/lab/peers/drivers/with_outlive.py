"""outlive: the same jobs in each of the settings that the report names. It is executed by path."""

import os
from uuid import uuid4

import driving
import outlive
from outlive import config, db, migrate

app = outlive.App()
_TABLE = "create table bare (like outlive.jobs including all)"
_INSERT = """
insert into bare (id, task, queue, args, priority, ready_at, fingerprint, created_at)
values (%s, 'with_outlive.warm', 'default', %s, 5, now(), '0123456789abcdef', now())
"""


@app.task(recycle_after=30_000)
def warm(url: str, number: int) -> None:
    driving.begin(number)


@app.task(recycle_after=100)
def recycled(url: str, number: int) -> None:
    driving.begin(number)


@app.task(recycle_after="clean")
def clean(url: str, number: int) -> None:
    driving.begin(number)


@app.task
def fresh(url: str, number: int) -> None:
    driving.begin(number)


class Queue:
    def __init__(self):
        app.configure(config.Config(database_url=driving.POSTGRES))
        self._task = app.tasks[f"with_outlive.{os.environ.get('PEER_TASK', 'warm')}"]

    def install(self):
        self._connection = db.connect(driving.POSTGRES)
        migrate.migrate(self._connection)
        self._connection.execute(_TABLE)

    def one(self, number):
        self._task.enqueue(driving.URL, number)

    def bulk(self, numbers):
        app.enqueue_many([self._task.job(driving.URL, number) for number in numbers])

    def left(self):
        query = "select exists (select from outlive.waiting) or exists (select from outlive.running)"
        return self._connection.execute(query).fetchone()[0]

    def bare(self, number):
        args = f'{{"url": "{driving.URL}", "number": {number}}}'
        self._connection.execute(_INSERT, [uuid4(), args], prepare=True)
