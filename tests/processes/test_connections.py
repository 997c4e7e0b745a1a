"""How many connections a worker has."""

from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from outlive import Job
from outlive.states import State
from tests import faults
from tests.waiting import eventually

COUNT = "select count(*)::int from pg_stat_activity where application_name = 'counted'"
WATCHING = 3
"""The connections of a worker that watches and has nothing else to do."""


@pytest.mark.long
def test_a_flood_of_calls_takes_no_more_connections_than_the_setting_says_and_gives_them_back(
    start, queue, database_url
):
    start(url=make_conninfo(database_url, application_name="counted"), slots=8, connections="6")
    eventually(lambda: queue.value(COUNT) == WATCHING, within_s=30, what="it has nothing to do")
    most = 0
    jobs: list[Job[Any]] = [
        *(faults.gather_more.enqueue(20) for _ in range(8)),
        *(faults.step_by_step.enqueue(5) for _ in range(4)),
        *(faults.spawn_more.enqueue(20) for _ in range(4)),
    ]
    while not all(job.status() is State.SUCCEEDED for job in jobs):
        most = max(most, queue.value(COUNT))
    assert WATCHING < most <= 6
    eventually(lambda: queue.value(COUNT) == WATCHING, within_s=40, what="it has nothing to do again")


@pytest.mark.long
def test_of_four_idle_workers_three_have_a_connection_to_watch_and_each_has_two_others(start, queue, database_url):
    for _ in range(4):
        start(url=make_conninfo(database_url, application_name="counted"))
    eventually(lambda: queue.value(COUNT) == 4 * 2 + 3, within_s=40, what="they have nothing to do")
