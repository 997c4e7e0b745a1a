"""A program that kills clients, as tests/guarantees/paying.py does, which enqueue a task with Django's backend.

`python -m tests.django.ordering URL FIFO`. The variables of libpq name the same database as the URL.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import NoReturn

import django
from django.db import connection, transaction

from tests.guarantees.paying import kill_clients


def order_until_killed(fifo: str, committing: int) -> NoReturn:
    from tests.django.paying import settle

    while True:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("insert into orders values (%s)", [settle.enqueue(fifo).id])
            os.write(committing, b"x")


if __name__ == "__main__":
    django.setup()
    kill_clients({"Django's tasks": functools.partial(order_until_killed, sys.argv[2])})
