"""A task of Django that works in a transaction of Django's own. Its settings are those of paying_settings.py."""

from __future__ import annotations

from django.db import connection, transaction

import outlive.django
from tests.django.decorator import task
from tests.guarantees.paying import say_pid


@task
@outlive.django.options(backoff=0, max_attempts=1000, max_crashes=1000, max_losses=None)
def settle(fifo: str) -> None:
    """Write an effect and end the job in the same transaction. Before it commits, its process gives its pid."""
    job = outlive.current()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("insert into effects values (%s)", [job.job_id])
        job.complete(connection)
        say_pid(fifo)
