"""Questions after a fault: did every job end, did it end only once, and at which cost?"""

import time
from collections.abc import Sequence
from typing import Any

import psycopg

import outlive
from outlive.states import State
from tests.waiting import eventually

ENDED = ("succeeded", "failed", "cancelled", "quarantined")


def ends(connection: psycopg.Connection[Any], jobs: Sequence[outlive.Job[Any]]) -> dict[str, int]:
    """Count the ends of these jobs by state. A job that ended twice counts twice."""
    rows = connection.execute(
        "select state, count(*) from outlive.attempts where job_id = any(%s) and state = any(%s) group by state",
        [[job.id for job in jobs], list(ENDED)],
    ).fetchall()
    return {str(state): int(count) for state, count in rows}


def all_end_once(url: str, jobs: Sequence[outlive.Job[Any]], *, within_s: float = 60) -> None:
    """Wait until every job has succeeded, and check that each ended only once and none is left in the queue."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
                left_s = max(0.0, deadline - time.monotonic())
                what = f"all {len(jobs)} jobs end"
                eventually(lambda: sum(ends(connection, jobs).values()) >= len(jobs), within_s=left_s, what=what)
                assert (found := ends(connection, jobs)) == {State.SUCCEEDED: len(jobs)}, found
                unfinished = "select from outlive.job_states where id = any(%s) and status <> 'succeeded'"
                assert connection.execute(unfinished, [[job.id for job in jobs]]).fetchall() == []
                return
        except psycopg.OperationalError:  # The server may just come back.
            assert time.monotonic() < deadline, "the server does not come back"


def outcomes(url: str, *jobs: outlive.Job[Any]) -> list[str]:
    """The outcomes of the attempts of these jobs, job by job."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = (
            "select outcome from unnest(%s::uuid[]) with ordinality as job (id, n) join outlive.attempts on job_id = id"
        )
        rows = connection.execute(f"{query} order by n, attempt", [[job.id for job in jobs]])
        return [str(outcome) for (outcome,) in rows]


def dead_workers(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        return len(connection.execute("select from outlive.workers where state = 'dead'").fetchall())
